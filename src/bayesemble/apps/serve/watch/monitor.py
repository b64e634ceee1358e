"""What comes in to a run, compared with its profile: the rows as they come, their labels as they come later."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayesemble.apps.serve.watch.stream import Alarm, Stream, Watched
from bayesemble.apps.serve.watch.words import alarm_words
from bayesemble.apps.tables.profile import Histogram, Profile, column_values
from bayesemble.data.schema import Encoded, Schema

ALPHA = 0.005
"""The probability of any false alarm, ever. A fifth of it is for labels."""
_FOR_LABELS = 0.2
_MOST_ALARMS = 50


class Monitor:
    """Two streams, of rows and of labels, and the alarms that they have raised: each quantity once."""

    def __init__(self, schema: Schema, profile: Profile, alpha: float = ALPHA) -> None:
        self.schema, self.profile = schema, profile
        watched = [Watched("column", name, one) for name, one in profile.columns.items()]
        watched += [Watched("doubt", name, one) for name, one in profile.doubt.items()]
        if profile.held_out:
            like = np.array([profile.held_out - profile.unlike, profile.unlike], np.int64)
            watched.append(Watched("unlike", "", Histogram(None, like)))
        self.rows = Stream(watched, (1 - _FOR_LABELS) * alpha)
        surprise = [] if profile.surprise is None else [Watched("surprise", "", profile.surprise)]
        self.labels = Stream(surprise, _FOR_LABELS * alpha)
        self.unlike = 0
        self.unlike_by_column: dict[str, int] = {}
        self.alarms: list[tuple[Alarm, str]] = []
        """Alarms with their words, the oldest first."""

    def update(self, encoded: Encoded, doubts: dict[str, Any]) -> list[str]:
        """Take rows with their doubt; words of the alarms that are new."""
        unlike = encoded.unlike.astype(np.int64)
        self.unlike += int(unlike.sum())
        for cell in encoded.odd:
            self.unlike_by_column[cell.column] = self.unlike_by_column.get(cell.column, 0) + 1
        values = {("column", name): one for name, one in column_values(self.schema, encoded).items()}
        values |= {("doubt", name): one for name, one in doubts.items()}
        return self._add(self.rows.update(values | {("unlike", ""): unlike}))

    def update_labels(self, surprises: Any) -> list[str]:
        """Take the surprise of labels that have come in; words of the alarms that are new."""
        if not self.labels.watched or not len(surprises):
            return []
        return self._add(self.labels.update({("surprise", ""): surprises}))

    def finish(self) -> list[str]:
        """A last look at rows and labels, where they have an end."""
        return self._add(self.rows.finish() + (self.labels.finish() if self.labels.watched else []))

    def _add(self, alarms: list[Alarm]) -> list[str]:
        known = {(one.watched.kind, one.watched.name) for one, _ in self.alarms}
        said = []
        for alarm in sorted(alarms, key=lambda one: (one.rows, one.p_value)):
            key = alarm.watched.kind, alarm.watched.name
            if key not in known and len(self.alarms) < _MOST_ALARMS:
                known.add(key)
                said.append(alarm_words(alarm, self.schema))
                self.alarms.append((alarm, said[-1]))
        return said
