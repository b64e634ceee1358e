"""How alike networks are, in weights and in what they predict: across members, along training, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.members import Members
from bayesemble.core.settings import require
from bayesemble.diagnostics.landscape.embeddings import recording_of
from bayesemble.diagnostics.landscape.measure import as_ensemble, chosen_members, members_of
from bayesemble.metrics.diversity import disagreement_matrix, jensen_shannon_matrix, weight_cosine
from bayesemble.predictive import ClassPredictive
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.task.select import NORM_LAYERS
from bayesemble.training.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Similarity:
    """Networks compared in pairs; each matrix is `(network, network)`."""

    names: list[tuple[int, int | None]]
    """Which network is which: its member and its recorded epoch, None for the fitted member."""
    cosine: Tensor
    """Cosine between the parameters, 1 for the same direction."""
    difference: Tensor
    """Share of rows with different classes; for numbers, the root mean squared difference of the means."""
    difference_name: str
    """What `difference` holds, in words."""
    jensen_shannon: Tensor | None
    """Mean Jensen-Shannon divergence of the probabilities in nats; None for numbers."""


def similarity(
    ensemble: Ensemble,
    data: Any,
    *,
    epochs: Sequence[int] | None = None,
    members: Sequence[int] | None = None,
    norms: bool = False,
) -> Similarity:
    """Compare networks in weights and in predictions.

    Across members: `similarity(ensemble, data)`. Along one path: `similarity(ensemble, data, epochs=range(10),
    members=[0])`. Across both: several of each, one member after the other. All networks are in memory at once.

    Cosines go over all parameters of the network as one vector; batch-norm statistics and parameters of the likelihood
    do not count. Scales of norm layers start at one in every member, which raises the cosine of any two networks: they
    are left out unless asked for.

    C_mn = <w_m, w_n> / (|w_m| |w_n|),  D_mn = mean_x [argmax p_m(x) != argmax p_n(x)]

    Args:
        ensemble: Of any method; its members are compared.
        data: `(x, y)`, a `Dataset` or a `DataLoader`.
        epochs: Recorded epochs, for an ensemble trained with `fit(..., record="epoch")`; None takes the fitted members.
        members: Which members; None takes all.
        norms: Whether parameters of norm layers count in the cosine.

    Reference: Fort, Hu & Lakshminarayanan (2019), "Deep ensembles: a loss landscape perspective".
    """
    networks, names = _networks(ensemble, chosen_members(ensemble, members), epochs)
    cosine = weight_cosine(networks, _left_out(ensemble.task.module, networks, norms))
    difference, divergence = _differences(ensemble, networks, data)
    name = "disagreement" if divergence is not None else "RMS difference of means"
    return Similarity(names, cosine, difference, name, divergence)


def _networks(
    ensemble: Ensemble, members: list[int], epochs: Sequence[int] | None
) -> tuple[Members, list[tuple[int, int | None]]]:
    """The networks side by side, and member and epoch of each."""
    if epochs is None:
        return members_of(ensemble).take(torch.tensor(members)), [(member, None) for member in members]
    times, recording = list(epochs), recording_of(ensemble)
    require(bool(times), "epochs is a list of recorded epochs, or None for the fitted members; it is empty")
    networks = Members.concat([recording.along(member, times) for member in members])
    return networks, [(member, epoch) for member in members for epoch in times]


def _left_out(module: nn.Module, networks: Members, norms: bool) -> list[str]:
    """Names of the parameters that do not count in the cosine."""
    of_likelihood = [name for name in networks.params if name.startswith(OF_LIKELIHOOD)]
    layers = {} if norms else {path: layer for path, layer in module.named_modules() if isinstance(layer, NORM_LAYERS)}
    owned = {f"{path}.{name}" for path, layer in layers.items() for name, _ in layer.named_parameters(recurse=False)}
    return of_likelihood + [name for name in networks.params if name in owned]


def _differences(ensemble: Ensemble, networks: Members, data: Any) -> tuple[Tensor, Tensor | None]:
    """How differently networks predict, and the divergence of their probabilities, batch by batch."""
    rows, difference = 0, torch.zeros(networks.num_members, networks.num_members, dtype=torch.float64)
    divergence, classes = torch.zeros_like(difference), True
    for predictive, _ in as_ensemble(ensemble, networks).predictions(data):
        own = predictive.num_rows
        rows, classes = rows + own, predictive.kind == "classes"
        if isinstance(predictive, ClassPredictive):
            difference += own * disagreement_matrix(predictive)
            divergence += own * jensen_shannon_matrix(predictive)
        else:
            means = predictive.member_values().double().flatten(1)
            difference += own * torch.stack([(means - one).square().mean(1) for one in means])
    difference, divergence = difference / rows, divergence / rows
    return (difference, divergence) if classes else (difference.sqrt(), None)
