"""Alarms, and the absence of them, in words that a person can act on."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np

from bayesemble.apps.serve.watch.stream import FEWEST_ROWS, Alarm
from bayesemble.data.schema import Column, Schema
from bayesemble.data.table_files import shown

_DOUBTS = {
    "std": "the predicted deviation",
    "epistemic_std": "the doubt that more data would settle",
    "entropy": "the entropy of the predicted classes",
    "epistemic": "the doubt that more data would settle",
}


def alarm_words(alarm: Alarm, schema: Schema) -> str:
    """One sentence: what has changed, how, and how sure that is."""
    kind = alarm.watched.kind
    what = {"column": _column, "doubt": _doubt, "surprise": _surprise, "unlike": _unlike}[kind](alarm, schema)
    sure = "p below 1e-12" if alarm.p_value < 1e-12 else f"p = {alarm.p_value:.1g}"
    return f"{what} ({alarm.over:,} {'labels' if kind == 'surprise' else 'rows'}, {sure})"


def verdict(rows: int, labels: int, tests: int, alarms: int) -> str:
    """Whether the model still knows its world, in a sentence."""
    if alarms:
        return (
            f"The model may no longer know its world: of {tests} things that are watched, {alarms} "
            f"{'is not as it was' if alarms == 1 else 'are not as they were'} when it was trained."
        )
    if rows < FEWEST_ROWS:
        return f"{rows:,} {'rows are' if rows != 1 else 'row is'} too few to tell; at least {FEWEST_ROWS} are needed."
    more = f" and {labels:,} labels" if labels else ""
    return (
        f"The model still knows its world, as far as {rows:,} rows{more} can tell: none of {tests} things that are "
        "watched has changed."
    )


def _column(alarm: Alarm, schema: Schema) -> str:
    column = next(one for one in schema.columns if one.name == alarm.watched.name)
    there, here = alarm.watched.histogram.counts, alarm.counts
    if alarm.watched.histogram.edges is None:
        shares = here / here.sum() - there / there.sum()
        moved = int(np.abs(shares).argmax())
        label = shown(column.categories[moved - 1]) if moved else "unknown categories"
        before, now = (f"{counts[moved] / counts.sum():.1%}" for counts in (there, here))
        return f"column {shown(column.name)}: {label} made {before} of the training rows, now {now}"
    missing = here[0] / here.sum(), there[0] / there.sum()
    if abs(missing[0] - missing[1]) > 0.2:
        return f"column {shown(column.name)}: missing in {missing[1]:.1%} of the training rows, now in {missing[0]:.1%}"
    middles = [alarm.watched.histogram.quantile(counts, 0.5) for counts in (there, here)]
    if middles[0] == middles[1]:
        return f"column {shown(column.name)}: its values are spread otherwise than in training"
    before, now = (_in_units(value, column) for value in middles)
    higher = "higher" if middles[1] > middles[0] else "lower"
    return f"column {shown(column.name)} is {higher} than in training: its median was {before}, now {now}"


def _in_units(value: float, column: Column) -> str:
    number = column.mean + column.scale * value
    if column.kind == "date" and math.isfinite(number):
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=number)).date().isoformat()
    return f"{number:.4g}"


def _doubt(alarm: Alarm, _: Schema) -> str:
    before, now = (alarm.watched.histogram.quantile(one, 0.5) for one in (alarm.watched.histogram.counts, alarm.counts))
    name = _DOUBTS[alarm.watched.name]
    if before == now:
        return f"{name} is spread otherwise than on held-out rows"
    return (
        f"{name} is {'larger' if now > before else 'smaller'} than on held-out rows: median {before:.3g}, now {now:.3g}"
    )


def _surprise(alarm: Alarm, _: Schema) -> str:
    before, now = (alarm.watched.histogram.quantile(one, 0.5) for one in (alarm.watched.histogram.counts, alarm.counts))
    if before == now:
        return "labels are not as probable as those of held-out rows were: it is no longer calibrated"
    more = "more" if now > before else "less"
    return f"labels surprise the model {more} than those of held-out rows did: it is no longer calibrated"


def _unlike(alarm: Alarm, _: Schema) -> str:
    before, now = (f"{one[1] / one.sum():.1%}" for one in (alarm.watched.histogram.counts, alarm.counts))
    return f"{now} of the rows are unlike the training data; of held-out rows it was {before}"
