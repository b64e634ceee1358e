"""One run behind the service: it answers, watches what comes in, takes labels, and is replaced while it answers."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bayesemble.apps.serve.answers import BLOCK, Answered, Model, open_model
from bayesemble.apps.serve.batching import Batcher
from bayesemble.apps.serve.labels import Label, read_label
from bayesemble.apps.serve.logs import tell
from bayesemble.apps.serve.metrics import Metrics
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.recent import RecentRows
from bayesemble.apps.serve.watch.monitor import Monitor
from bayesemble.apps.serve.watch.words import verdict
from bayesemble.apps.tables.profile import surprises_of
from bayesemble.apps.tables.targets import interval_of
from bayesemble.core.errors import BayesembleError
from bayesemble.data.table_files import Chunk
from bayesemble.predictive import ClassPredictive, RealPredictive

_MOST_ODD = 20
Stamp = tuple[tuple[str, int, int, int], ...]


class Standing:
    """What has come in since a model was read: it begins anew with the next one."""

    def __init__(self, model: Model) -> None:
        self.since = datetime.now(UTC)
        self.recent = RecentRows(model.schema)
        self.monitor = None if model.profile is None else Monitor(model.schema, model.profile)
        self.odd: deque[dict[str, Any]] = deque(maxlen=_MOST_ODD)
        self.alarms: deque[dict[str, Any]] = deque(maxlen=_MOST_ODD)
        self.rows = self.unlike = self.abstained = self.labels = self.hits = 0


@dataclass(frozen=True, eq=False)
class _Current:
    model: Model
    standing: Standing
    stamp: Stamp


class Served:
    """A run folder by its name in the service."""

    def __init__(self, name: str, folder: Path, options: Options, metrics: Metrics) -> None:
        self.name, self.folder, self.options, self.metrics = name, folder, options, metrics
        self._turn = threading.Lock()
        stamp = stamp_of(folder)
        model = open_model(str(folder), options, "1")
        self._current = _Current(model, Standing(model), stamp)  # replaced in one go
        self._seen: Stamp = stamp
        self.trouble = ""
        """Why the newest state of the folder is not the one that answers; empty if it is."""
        self.batcher = Batcher(name, options.queue_rows, options.linger, self._on_batch)

    @property
    def model(self) -> Model:
        """The model that answers now."""
        return self._current.model

    async def answer(self, model: Model, chunk: Chunk) -> list[dict[str, Any]]:
        """Answers to rows that were checked for this model, with ids for labels that come later."""
        return await self.batcher.submit(model, chunk, self.options.seconds)

    def _on_batch(self, model: Model, chunk: Chunk, answered: Answered, took: float) -> None:
        current, rows, answers = self._current, len(chunk.rows), answered.answers
        unlike, abstained = (sum(one[name] for one in answers) for name in ("unlike", "abstain"))
        doubt = float(np.nansum(next(iter(answered.doubts.values()))))
        for name, value in (("rows", rows), ("unlike_rows", unlike), ("abstained_rows", abstained)):
            self.metrics.add(f"bayesemble_{name}_total", value, model=self.name)
        if np.isfinite(doubt):
            self.metrics.add("bayesemble_doubt_sum", doubt, model=self.name)
        self.metrics.observe("bayesemble_batch_rows", rows, model=self.name)
        if model is not current.model:  # it was replaced while these rows waited
            for one in answers:
                one["id"] = ""
            return
        with self._turn:
            standing = current.standing
            for one, id in zip(answers, standing.recent.add(answered.encoded), strict=True):
                one["id"] = id
            standing.rows, standing.unlike = standing.rows + rows, standing.unlike + unlike
            standing.abstained += abstained
            now = datetime.now(UTC).isoformat(timespec="seconds")
            standing.odd.extend({"time": now, "id": one["id"], "why": one["why"]} for one in answers if one["unlike"])
            said = standing.monitor.update(answered.encoded, answered.doubts) if standing.monitor else []
            self._alarm(standing, said)

    def feed_back(self, labels: list[dict[str, Any]]) -> dict[str, Any]:
        """Take labels of rows by their ids; how many were taken, and which ids are not known."""
        current = self._current
        model, standing = current.model, current.standing
        read = [read_label(one, number, model.schema) for number, one in enumerate(labels)]
        with self._turn:
            taken: dict[int, Label] = {}
            unknown = []
            for label in read:
                place = standing.recent.place(label.id)
                if place is None or place in taken:
                    unknown.append(label.id)
                else:
                    taken[place] = label
            numbers, categories = standing.recent.take(list(taken))
        found = list(taken.values())
        surprises, hits = [], 0
        for begin in range(0, len(found), BLOCK):
            part = slice(begin, begin + BLOCK)
            more, right = _judge(model, numbers[part], categories[part], found[part])
            surprises.append(more)
            hits += right
        with self._turn:
            standing.labels, standing.hits = standing.labels + len(found), standing.hits + hits
            if standing.monitor and surprises:
                self._alarm(standing, standing.monitor.update_labels(np.concatenate(surprises)))
        self.metrics.add("bayesemble_labels_total", len(found), model=self.name)
        return {"model": self.name, "taken": len(found), "unknown": unknown}

    def _alarm(self, standing: Standing, said: list[str]) -> None:
        for words in said:
            self.metrics.add("bayesemble_alarms_total", model=self.name)
            standing.alarms.append({"time": datetime.now(UTC).isoformat(timespec="seconds"), "words": words})
            tell("alarm", 30, model=self.name, words=words)

    def state(self) -> dict[str, Any]:
        """What the live page shows of it."""
        current = self._current
        model, standing = current.model, current.standing
        with self._turn:
            monitor = standing.monitor
            watched = None if monitor is None else _watched(monitor)
            return {
                "name": self.name,
                "version": model.version,
                "target": model.schema.target.name,
                "task": model.schema.task,
                "level": model.level,
                "since": standing.since.isoformat(timespec="seconds"),
                "notes": [*model.notes, *([self.trouble] if self.trouble else [])],
                "rows": standing.rows,
                "unlike": standing.unlike,
                "abstained": standing.abstained,
                "labels": standing.labels,
                "hits": standing.hits,
                "waiting": self.batcher.waiting,
                "odd": list(standing.odd)[::-1],
                "alarms": list(standing.alarms)[::-1],
                "watched": watched,
            }

    def look(self) -> None:
        """Read the folder again if it has changed since, and has come to rest; what answers stays if that fails."""
        stamp = stamp_of(self.folder)
        before, self._seen = self._seen, stamp
        if stamp == self._current.stamp or stamp != before:
            return
        try:
            version = str(int(self.model.version) + 1)
            model = open_model(str(self.folder), self.options, version)
            if model.run.description.evaluation is None:
                raise BayesembleError("training goes on there")
            self._current, self.trouble = _Current(model, Standing(model), stamp), ""
        except (BayesembleError, OSError) as error:
            self.trouble = f"the folder has changed, but cannot be read: {error}; the run before goes on answering"
            self._current = _Current(self._current.model, self._current.standing, stamp)  # no second try as it stands
            self.metrics.add("bayesemble_reloads_total", model=self.name, outcome="failed")
            tell("reload failed", 40, model=self.name, error=str(error))
        else:
            self.metrics.add("bayesemble_reloads_total", model=self.name, outcome="done")
            tell("reloaded", model=self.name, version=version)

    def close(self) -> None:
        """Answer what has been taken, then stop."""
        self.batcher.close()


def _watched(monitor: Monitor) -> dict[str, Any]:
    """Histograms of doubt: of held-out rows, and of what has come in; and what the watch says."""
    stream = monitor.rows
    doubts = []
    for one, counts in zip(stream.watched, stream.total, strict=True):
        if one.kind == "doubt":
            assert one.histogram.edges is not None
            edges = one.histogram.edges.tolist()
            doubts.append(
                {"name": one.name, "edges": edges, "before": one.histogram.counts.tolist(), "now": counts.tolist()}
            )
    tests = len(stream.watched) + (len(monitor.labels.watched) if monitor.labels.rows else 0)
    words = verdict(stream.rows, monitor.labels.rows, tests, len(monitor.alarms))
    return {"words": words, "alarms": len(monitor.alarms), "doubts": doubts, "by_column": monitor.unlike_by_column}


def _judge(model: Model, numbers: Any, categories: Any, labels: list[Label]) -> tuple[Any, int]:
    """The surprise of labels, infinite for classes that are not known, and how many the set or interval holds."""
    num = len(labels)
    predictive = model.predict_block(numbers, categories).take_rows(list(range(num)))
    known = np.array([label.target is not None for label in labels])
    targets = np.array([0 if label.target is None else label.target for label in labels])
    surprises = np.where(known, surprises_of(predictive, targets), np.inf)
    if isinstance(predictive, ClassPredictive):
        return surprises, int(((predictive.probs.argmax(-1).numpy() == targets) & known).sum())
    assert isinstance(predictive, RealPredictive)
    low, high = (end.numpy() for end in interval_of(predictive, model.rules))
    return surprises, int(((low <= targets) & (targets <= high)).sum())


def stamp_of(folder: Path) -> Stamp:
    """What tells one state of a folder from another: names, times and sizes of its files; links are followed."""
    found = []
    try:
        for path in sorted(folder.resolve().rglob("*")):
            if not path.name.startswith(".") and path.is_file():
                known = path.stat()
                found.append((str(path), known.st_mtime_ns, known.st_size, known.st_ino))
    except OSError:  # it is being replaced at this very moment
        return ()
    return tuple(found)
