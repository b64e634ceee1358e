"""The paths of members through training, in the space of functions: their predictions on a plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.diagnostics.landscape.measure import as_ensemble, chosen_members
from bayesemble.task.running import OF_LIKELIHOOD
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.run_folders.recording import Recording

_PERPLEXITY = 30.0  # what scikit-learn takes if there are enough points


@dataclass(frozen=True, eq=False)
class Embedding:
    """Where the predictions of recorded networks lie on a plane."""

    points: Tensor
    """(member, epoch, 2), without units: near points are like predictions."""
    members: list[int]
    """Which member each row of points belongs to."""
    epochs: list[int]
    """Which epoch each column of points belongs to; 0 is the start."""
    kind: str
    """How they were put there: tsne or pca."""


def embedding(
    ensemble: Ensemble,
    inputs: Any,
    *,
    members: Sequence[int] | None = None,
    epochs: Sequence[int] | None = None,
    kind: str = "tsne",
    seed: int = 0,
) -> Embedding:
    """Put what members predicted along training on one plane, all together.

    Each recorded network is a point: its probabilities (for numbers: its means) on all rows, as one long vector. Paths
    that start apart and end apart are different functions; t-SNE keeps neighbours together but neither distances nor
    sizes, PCA keeps distances along the two widest directions.

    Args:
        ensemble: Trained with `fit(..., record="epoch")`.
        inputs: Rows to predict; a few hundred are enough.
        members: Which members; None takes all.
        epochs: Which recorded epochs; None takes all.
        kind: "tsne", with a perplexity of at most a third of the other points; or "pca".
        seed: Of t-SNE.

    Reference: Fort, Hu & Lakshminarayanan (2019), "Deep ensembles: a loss landscape perspective"; van der Maaten &
    Hinton (2008), "Visualizing data using t-SNE".
    """
    require(kind in ("tsne", "pca"), f'kind is "tsne" or "pca", not {kind!r}')
    recording, chosen = recording_of(ensemble), chosen_members(ensemble, members)
    times = recording.epochs if epochs is None else list(epochs)
    chosen_indices = torch.tensor(chosen)
    columns = [
        as_ensemble(ensemble, recording.members(epoch).take(chosen_indices)).predict(inputs).member_values()
        for epoch in times
    ]
    vectors = torch.stack([column.double().flatten(1) for column in columns], dim=1)  # (member, epoch, number)
    num, size = len(chosen) * len(times), vectors.shape[-1]
    require(num >= 3 and size >= 2, f"a plane needs 3 networks and 2 numbers of each; there are {num} and {size}")
    points = _on_plane(vectors.flatten(0, 1), kind, seed)
    return Embedding(points.reshape(len(chosen), len(times), 2), chosen, times, kind)


def recording_of(ensemble: Ensemble) -> Recording:
    """The members along training, or how to get them."""
    if ensemble.recording is None or not ensemble.recording.epochs:
        raise SettingError(
            "this needs the members along training, which were not recorded; train with fit(..., record='epoch')"
        )
    return ensemble.recording


def checkpoints(ensemble: Ensemble, member: int, last: int, least: int = 1) -> Leaves:
    """Parameters of one member's network after its last recorded epochs, `(epoch, ...)`, without epoch 0, the start."""
    recording = recording_of(ensemble)
    times = [epoch for epoch in recording.epochs if epoch > 0]
    found = min(len(times), last)
    require(found >= least, f"at least {least} of the last epochs are needed, got last={last} of {len(times)} recorded")
    params = recording.along(member, times[-last:]).params
    return {name: leaf for name, leaf in params.items() if not name.startswith(OF_LIKELIHOOD)}


def _on_plane(vectors: Tensor, kind: str, seed: int) -> Tensor:
    """Points `(network, number)` on a plane, `(network, 2)`."""
    state = seeds.child(seed, "embedding") % 2**32  # as large as scikit-learn takes
    if kind == "pca":
        from sklearn.decomposition import PCA

        made = PCA(2, svd_solver="full").fit_transform(vectors.numpy())
    else:
        from sklearn.manifold import TSNE

        perplexity = max(min(_PERPLEXITY, (len(vectors) - 1) / 3), 1.0)
        made = TSNE(2, perplexity=perplexity, random_state=state).fit_transform(vectors.numpy())
    return torch.from_numpy(made).double()
