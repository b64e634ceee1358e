"""The page of a comparison: the verdict in words, the table, figures in which methods can be switched, and each run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bayesemble import __version__
from bayesemble.apps.compare.results import Comparison, gather
from bayesemble.apps.report.figures import DRAWN_SCORES, draw_figures, history_drawing
from bayesemble.apps.report.opened_runs import Example, Shown, examples, open_methods
from bayesemble.apps.report.page import render
from bayesemble.apps.report.score_table import COSTS, Row, columns_of, rows_of
from bayesemble.apps.report.verdict import duration, listed, mean_of, standing, verdict
from bayesemble.core import settings
from bayesemble.core.errors import BayesembleError
from bayesemble.diagnostics.plots.gallery import data_uris
from bayesemble.metrics.catalogue import SCORES


@dataclass(frozen=True)
class Gallery:
    """Test rows on which the members of one method agree and disagree most."""

    label: str
    agree: list[Example]
    disagree: list[Example]
    images: dict[int, str]
    """Addresses of images by the number of their row; empty where rows are no images."""

    @property
    def num_inputs(self) -> int:
        """How many inputs of a row are shown."""
        return max((len(one.inputs) for one in self.agree), default=0)


@dataclass(frozen=True)
class Details:
    """All that is known of one method."""

    row: Row
    idea: str = ""
    settings: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value, and what it means."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    history: str = ""
    notes: list[str] = field(default_factory=list)
    """Warnings of its runs."""


def comparison_page(*folders: str | Path) -> str:
    """The page of the comparison in a folder, or of several comparisons and runs together, as one text."""
    comparison = gather(folders)
    columns = columns_of(comparison)
    rows = rows_of(comparison, columns)
    shown, missing = open_methods(Path(), comparison)  # runs are named by whole paths
    drawn = draw_figures(comparison, shown)
    return render(
        "comparison.html",
        title=f"{comparison.data.get('name', 'A comparison')}: {_count(len(rows), 'method')} compared",
        lead=_lead(comparison),
        version=__version__,
        facts=_facts(comparison),
        verdict=verdict(comparison),
        columns=columns,
        rows=rows,
        switches=sorted(rows, key=lambda row: row.number),
        several_seeds=_num_seeds(comparison) > 1,
        shared=_shared(comparison),
        titles=drawn.titles,
        weighed=drawn.weighed,
        scores={name: SCORES[name] for name in DRAWN_SCORES},
        drawings=drawn.drawings,
        multiples=drawn.multiples,
        gallery=_gallery(comparison, shown),
        details=[_details(comparison, row, shown) for row in rows],
        missing=[*missing, *drawn.missing],
    )


def _lead(comparison: Comparison) -> str:
    data, seeds = comparison.data, _num_seeds(comparison)
    kind = f"{data['num_classes']} classes" if data["num_classes"] else "A regression"
    rows = f"trained on {data['num_train']:,} rows and judged on {data['num_test']:,} others"
    return f"{kind}, {rows}, {_count(seeds, 'seed')} each."


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    """What was run and at what cost."""
    command, finished = comparison.command, [result for result in comparison.results if result.failure is None]
    seconds = sum(result.cost.get("train_seconds", 0.0) for result in finished)
    gradients = sum(result.cost.get("gradient_evaluations", 0.0) for result in finished)
    facts = [
        ("Runs", f"{len(finished)} of {len(comparison.results)} finished"),
        ("Members", command.get("members")),
        ("Epochs", command.get("epochs")),
        ("Batch", f"{command['batch_size']} rows" if command.get("batch_size") else None),
        ("Same budget of", command.get("budget")),
        ("Foreign data", command.get("ood") or ("of the set" if comparison.data["ood"] else None)),
        ("Training in all", duration(seconds) if seconds else None),
        ("Gradients in all", f"{gradients:,.0f}" if gradients else None),
    ]
    return [(name, str(value)) for name, value in facts if value is not None]


def _shared(comparison: Comparison) -> str:
    """What to know of the costs of methods whose seeds were trained together."""
    labels = [label for label in comparison.labels if comparison.together(label) > 1]
    if not labels:
        return ""
    return (
        f"Seeds of {listed(labels)} were trained together: their seconds of training are shares of a joint run, not "
        "what the method takes alone, and memory is that of the joint run."
    )


def _gallery(comparison: Comparison, shown: list[Shown]) -> Gallery | None:
    """Test rows of the method that has the best NLL of those with several members."""
    order = standing(comparison, "nll")
    several = sorted((one for one in shown if one.several), key=lambda one: order.index(one.label))
    if not several:
        return None
    shape = comparison.data.get("image_shape")
    agree, disagree = examples(several[0], shape)
    pictured = [one for one in (*agree, *disagree) if one.image is not None]
    images = data_uris(np.stack([one.image for one in pictured])) if pictured else []  # type: ignore[misc]
    rows = [one.row for one in pictured]
    return Gallery(several[0].label, agree, disagree, dict(zip(rows, images, strict=True)))


def _details(comparison: Comparison, row: Row, shown: list[Shown]) -> Details:
    costs = [(heading, mean_of(comparison, row.label, name), unit) for name, (heading, unit, _) in COSTS.items()]
    facts = [
        (heading, f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}")
        for heading, value, unit in costs
        if value == value
    ]
    runs = comparison.together(row.label)
    if runs > 1:
        facts.append(("Trained together", f"up to {runs} seeds: the seconds are shares, the memory is that of all"))
    notes = list(dict.fromkeys(note for result in comparison.of(row.label) for note in result.notes))
    one = next((one for one in shown if one.label == row.label), None)
    if one is None:
        return Details(row, facts=facts, notes=notes)
    method, run = one.ensemble.method, one.ensemble.describe()
    values, found = settings.dump(method), method.resolved(one.ensemble.task)
    rows = [
        (part.name, found.get(part.name, _plain(values[part.name])), part.metadata.get("help", ""))
        for part in dataclasses.fields(method)
        if part.name in values
    ]
    facts += [
        ("Networks", f"{one.predictive.num_members} averaged, {one.ensemble.task.num_parameters:,} parameters each"),
        ("Likelihood", _plain(run["task"]["likelihood"])),
        ("Prior", _plain(run["task"]["prior"])),
        ("Executor", f"{_plain(run['executor'])}; {run['execution']}".rstrip("; ")),
    ]
    idea = (type(method).__doc__ or "").strip().splitlines()[0]
    try:
        history = history_drawing(one)
    except BayesembleError:
        history = ""  # a method without epochs has no losses to draw
    return Details(row, idea, rows, facts, history, notes)


def _plain(value: Any) -> str:
    """A setting in words: `NormalPrior(std=1.0)`."""
    if isinstance(value, dict) and "class" in value:
        inside = ", ".join(f"{key}={_plain(item)}" for key, item in value.items() if key != "class")
        return f"{value['class']}({inside})" if inside else str(value["class"])
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _num_seeds(comparison: Comparison) -> int:
    return len({result.seed for result in comparison.results})


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
