"""The page of `bayesemble landscape`: where the members of one ensemble lie, and what lies between them.

The page is made of `PARTS`: each measures something, or says in a sentence what the ensemble lacks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesemble import __version__
from bayesemble.apps.report.page import drawing, render
from bayesemble.core.errors import MissingExtraError, ModelError
from bayesemble.diagnostics import landscape, plots
from bayesemble.task.likelihoods import Categorical
from bayesemble.training.ensemble import Ensemble

_MEMBERS_OF_A_MATRIX = 12  # more cannot be told apart
_LAST_EPOCHS = 5
_MAP_INCHES = (5.4, 4.2)


@dataclass(frozen=True)
class Subject:
    """What is examined, and how closely."""

    ensemble: Ensemble
    data: Any
    """Held-out rows and their targets."""
    train: Any
    """Rows that curves are trained on and batch norm is measured with."""
    resolution: int
    """Networks along each side of a plane."""
    epochs: int
    """Passes over the data that train a curve between two members."""

    @property
    def recorded_epochs(self) -> list[int]:
        """The recorded epochs after the start."""
        recording = self.ensemble.recording
        return [] if recording is None else [epoch for epoch in recording.epochs if epoch > 0]


@dataclass(frozen=True)
class Findings:
    """What stands on the page: drawings by name, facts in sentences, and what could not be shown."""

    drawings: dict[str, str] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def draw(self, name: str, draw: Callable[..., Any], **options: Any) -> None:
        """Add a drawing."""
        self.drawings[name] = drawing(name, draw, **options)


class Part(NamedTuple):
    """One part of the page."""

    name: str
    examine: Callable[[Subject, Findings], None]
    """Adds to the findings."""
    lacks: Callable[[Subject], str] = lambda subject: ""
    """What keeps it from being shown, in a sentence; empty if nothing does."""


def examine(subject: Subject, track: Callable[[Sequence[Part]], Iterable[Part]] = iter) -> Findings:
    """Go through all parts that apply; `track` may show how far it is."""
    findings = Findings()
    lacking = {part.name: part.lacks(subject) for part in PARTS}
    findings.missing.extend(dict.fromkeys(filter(None, lacking.values())))
    for part in track([part for part in PARTS if not lacking[part.name]]):
        part.examine(subject, findings)
    return findings


def landscape_page(subject: Subject, findings: Findings, title: str) -> str:
    """The page as one text."""
    ensemble = subject.ensemble
    kind, size = type(ensemble.method).__name__, ensemble.task.num_parameters
    return render(
        "landscape.html",
        title=title,
        lead=f"{kind}: {ensemble.num_members} members of {size:,} parameters each, measured on held-out rows.",
        version=__version__,
        drawings=findings.drawings,
        facts=findings.facts,
        missing=findings.missing,
    )


def _lacks_others(subject: Subject) -> str:
    alone = subject.ensemble.num_members == 1
    return "One member alone has no other to be compared with, nor a path to it." if alone else ""


def _lacks_recording(subject: Subject) -> str:
    if len(subject.recorded_epochs) > 1:
        return ""
    return (
        "Training was not recorded, so nothing along it can be shown: fit(..., record='epoch'), "
        "or bayesemble compare --record."
    )


def _lacks_classes(subject: Subject) -> str:
    if isinstance(subject.ensemble.task.likelihood, Categorical):
        return ""
    return "The plane of diversity and accuracy is for classes; this task predicts numbers."


def _similarity(subject: Subject, findings: Findings) -> None:
    some = list(range(min(subject.ensemble.num_members, _MEMBERS_OF_A_MATRIX)))
    similarity = landscape.similarity(subject.ensemble, subject.data, members=some)
    findings.facts.append(
        f"Two members have a cosine of {float(_pairs(similarity.cosine).mean()):.3f} between their weights and a "
        f"{similarity.difference_name} of {float(_pairs(similarity.difference).mean()):.3f}, on average over pairs."
    )
    findings.draw("member_weights", lambda ax: plots.plot_similarity(similarity, ax, "cosine"))
    findings.draw("member_functions", lambda ax: plots.plot_similarity(similarity, ax, "difference"))


def _along_training(subject: Subject, findings: Findings) -> None:
    similarity = landscape.similarity(subject.ensemble, subject.data, members=[0], epochs=subject.recorded_epochs)
    late = slice(-_LAST_EPOCHS, None)
    cosine, difference = (_pairs(matrix[late, late]) for matrix in (similarity.cosine, similarity.difference))
    findings.facts.append(
        f"The last {min(_LAST_EPOCHS, len(subject.recorded_epochs))} epochs of member 0 have a cosine of at least "
        f"{float(cosine.min()):.4f} and a {similarity.difference_name} of {float(difference.mean()):.3f} on average."
    )
    findings.draw("path_weights", lambda ax: plots.plot_similarity(similarity, ax, "cosine"))
    findings.draw("path_functions", lambda ax: plots.plot_similarity(similarity, ax, "difference"))
    some = list(range(min(subject.ensemble.num_members, 3)))
    together = landscape.embedding(subject.ensemble, subject.data[0], members=some)
    findings.draw("embedding", lambda ax: plots.plot_embedding(together, ax))


def _diversity(subject: Subject, findings: Findings) -> None:
    recorded = len(subject.recorded_epochs) > 1
    kinds = ("random", "dropout", *(("diagonal", "pca") if recorded else ()))
    diversity = landscape.diversity_accuracy(subject.ensemble, subject.data, train=subject.train, kinds=kinds)
    findings.draw("diversity", lambda ax: plots.plot_diversity_accuracy(diversity, ax), size=_MAP_INCHES)
    if recorded and subject.ensemble.num_members > 1:
        table = landscape.ensembles_of_subspaces(subject.ensemble, subject.data, train=subject.train, num=10)
        findings.draw("subspaces", lambda ax: plots.plot_subspace_ensembles(table, ax), size=_MAP_INCHES)


def _planes(subject: Subject, findings: Findings) -> None:
    if subject.ensemble.num_members > 2:
        flat = landscape.plane(subject.ensemble, subject.data, train=subject.train, resolution=subject.resolution)
        findings.draw("plane_loss", lambda ax: plots.plot_plane(flat, ax, "loss"), size=_MAP_INCHES)
        findings.draw("plane_difference", lambda ax: plots.plot_plane(flat, ax, "difference"), size=_MAP_INCHES)
    radial = landscape.radial_plane(subject.ensemble, subject.data, train=subject.train, resolution=subject.resolution)
    findings.draw("radial", lambda ax: plots.plot_plane(radial, ax, "error"), size=_MAP_INCHES)


def _paths(subject: Subject, findings: Findings) -> None:
    paths = {"straight line": landscape.path(subject.ensemble, subject.data, train=subject.train)}
    try:
        paths["line, units matched"] = landscape.path(subject.ensemble, subject.data, train=subject.train, align=True)
    except ModelError as error:
        findings.missing.append(f"The line between members with matched hidden units: {error}")
    curve = landscape.path(subject.ensemble, subject.data, kind="bezier", train=subject.train, epochs=subject.epochs)
    paths["trained curve"] = curve
    barriers = "; ".join(f"{name} {one.barrier:.3f}" for name, one in paths.items())
    findings.facts.append(f"How far the loss rises between members 0 and 1, in nats: {barriers}.")

    def draw(ax: Any) -> None:
        for number, (name, one) in enumerate(paths.items()):
            plots.plot_path(one, ax, label=name, number=number)

    findings.draw("path_loss", draw)
    findings.draw("path_difference", lambda ax: plots.plot_path(curve, ax, what="difference", label="curve"))


def _sharpness(subject: Subject, findings: Findings) -> None:
    try:
        sharpness = landscape.sharpness(subject.ensemble, subject.data)
    except (MissingExtraError, ModelError) as error:
        findings.missing.append(f"Sharpness: {error}")
        return
    top = sharpness.eigenvalues[:, 0]
    findings.facts.append(
        f"The largest eigenvalue of the Hessian of a member lies between {float(top.min()):.3g} and "
        f"{float(top.max()):.3g}."
    )
    findings.draw("sharpness", lambda ax: plots.plot_sharpness(sharpness, ax))


PARTS = (
    Part("members compared", _similarity, _lacks_others),
    Part("along training", _along_training, _lacks_recording),
    Part("diversity and accuracy", _diversity, _lacks_classes),
    Part("planes", _planes, _lacks_others),
    Part("paths between members", _paths, _lacks_others),
    Part("sharpness", _sharpness),
)


def _pairs(matrix: Tensor) -> Tensor:
    """The entries of a symmetric matrix that belong to two different networks."""
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]
