"""The page of `bayesemble landscape`: where the members of one ensemble lie, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from bayesemble.apps.report.page import drawing, render
from bayesemble.core.errors import MissingExtraError, ModelError
from bayesemble.diagnostics import landscape, plots
from bayesemble.task.likelihoods import Categorical
from bayesemble.training.ensemble import Ensemble

_MOST_MEMBERS = 12  # in matrices; more cannot be told apart
_LATE = 5  # epochs at the end of training that are compared
_MAP = (5.4, 4.2)  # inches


@dataclass(frozen=True)
class LandscapePage:
    """What the page shows, filled part by part."""

    ensemble: Ensemble
    data: Any
    train: Any
    resolution: int
    epochs: int
    drawings: dict[str, str] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def parts(self) -> dict[str, Callable[[], None]]:
        """What is measured, in order, by name."""
        several = self.ensemble.num_members > 1
        recorded = len(self._recorded) > 1
        if not several:
            self.missing.append("One member alone has no other to be compared with, nor a path to it.")
        if not recorded:
            self.missing.append(
                "Training was not recorded, so nothing along it can be shown: fit(..., record='epoch'), "
                "or bayesemble compare --record."
            )
        chosen = {
            "members compared": self._similarity if several else None,
            "along training": self._along_training if recorded else None,
            "diversity and accuracy": self._diversity,
            "planes": self._planes if several else None,
            "paths between members": self._paths if several else None,
            "sharpness": self._sharpness,
        }
        return {name: part for name, part in chosen.items() if part is not None}

    def render(self, title: str) -> str:
        """The page as one text."""
        kind, size = type(self.ensemble.method).__name__, self.ensemble.task.num_parameters
        return render(
            "landscape.html",
            title=title,
            lead=f"{kind}: {self.ensemble.num_members} members of {size:,} parameters each, measured on held-out rows.",
            version=version("bayesemble"),
            drawings=self.drawings,
            facts=self.facts,
            missing=self.missing,
        )

    @property
    def _recorded(self) -> list[int]:
        """The recorded epochs after the start."""
        recording = self.ensemble.recording
        return [] if recording is None else [epoch for epoch in recording.epochs if epoch > 0]

    def _draw(self, name: str, draw: Callable[..., Any], **options: Any) -> None:
        self.drawings[name] = drawing(name, draw, **options)

    def _similarity(self) -> None:
        some = list(range(min(self.ensemble.num_members, _MOST_MEMBERS)))
        found = landscape.similarity(self.ensemble, self.data, members=some)
        self.facts.append(
            f"Two members have a cosine of {float(_pairs(found.cosine).mean()):.3f} between their weights and a "
            f"{found.difference_name} of {float(_pairs(found.difference).mean()):.3f}, on average over pairs."
        )
        self._draw("member_weights", lambda ax: plots.plot_similarity(found, ax, "cosine"))
        self._draw("member_functions", lambda ax: plots.plot_similarity(found, ax, "difference"))

    def _along_training(self) -> None:
        found = landscape.similarity(self.ensemble, self.data, members=[0], epochs=self._recorded)
        late = slice(-_LATE, None)
        cosine, difference = (_pairs(matrix[late, late]) for matrix in (found.cosine, found.difference))
        self.facts.append(
            f"The last {min(_LATE, len(self._recorded))} epochs of member 0 have a cosine of at least "
            f"{float(cosine.min()):.4f} and a {found.difference_name} of {float(difference.mean()):.3f} on average."
        )
        self._draw("path_weights", lambda ax: plots.plot_similarity(found, ax, "cosine"))
        self._draw("path_functions", lambda ax: plots.plot_similarity(found, ax, "difference"))
        some = list(range(min(self.ensemble.num_members, 3)))
        together = landscape.embedding(self.ensemble, self.data[0], members=some)
        self._draw("embedding", lambda ax: plots.plot_embedding(together, ax))

    def _diversity(self) -> None:
        if not isinstance(self.ensemble.task.likelihood, Categorical):
            self.missing.append("The plane of diversity and accuracy is for classes; this task predicts numbers.")
            return
        recorded = len(self._recorded) > 1
        kinds = ("random", "dropout", *(("diagonal", "pca") if recorded else ()))
        found = landscape.diversity_accuracy(self.ensemble, self.data, train=self.train, kinds=kinds)
        self._draw("diversity", lambda ax: plots.plot_diversity_accuracy(found, ax), size=_MAP)
        if recorded and self.ensemble.num_members > 1:
            table = landscape.ensembles_of_subspaces(self.ensemble, self.data, train=self.train, num=10)
            self._draw("subspaces", lambda ax: plots.plot_subspace_ensembles(table, ax), size=_MAP)

    def _planes(self) -> None:
        if self.ensemble.num_members > 2:
            flat = landscape.plane(self.ensemble, self.data, train=self.train, resolution=self.resolution)
            self._draw("plane_loss", lambda ax: plots.plot_plane(flat, ax, "loss"), size=_MAP)
            self._draw("plane_difference", lambda ax: plots.plot_plane(flat, ax, "difference"), size=_MAP)
        radial = landscape.radial_plane(self.ensemble, self.data, train=self.train, resolution=self.resolution)
        self._draw("radial", lambda ax: plots.plot_plane(radial, ax, "error"), size=_MAP)

    def _paths(self) -> None:
        found = {"straight line": landscape.path(self.ensemble, self.data, train=self.train)}
        try:
            found["line, units matched"] = landscape.path(self.ensemble, self.data, train=self.train, align=True)
        except ModelError as error:
            self.missing.append(f"The line between members with matched hidden units: {error}")
        curve = landscape.path(self.ensemble, self.data, kind="bezier", train=self.train, epochs=self.epochs)
        found["trained curve"] = curve
        barriers = "; ".join(f"{name} {one.barrier:.3f}" for name, one in found.items())
        self.facts.append(f"How far the loss rises between members 0 and 1, in nats: {barriers}.")

        def draw(ax: Any) -> None:
            for number, (name, one) in enumerate(found.items()):
                plots.plot_path(one, ax, label=name, number=number)

        self._draw("path_loss", draw)
        self._draw("path_difference", lambda ax: plots.plot_path(curve, ax, what="difference", label="curve"))

    def _sharpness(self) -> None:
        try:
            found = landscape.sharpness(self.ensemble, self.data)
        except (MissingExtraError, ModelError) as error:
            self.missing.append(f"Sharpness: {error}")
            return
        top = found.eigenvalues[:, 0]
        self.facts.append(
            f"The largest eigenvalue of the Hessian of a member lies between {float(top.min()):.3g} and "
            f"{float(top.max()):.3g}."
        )
        self._draw("sharpness", lambda ax: plots.plot_sharpness(found, ax))


def _pairs(matrix: Tensor) -> Tensor:
    """The entries of a symmetric matrix that belong to two different networks."""
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]
