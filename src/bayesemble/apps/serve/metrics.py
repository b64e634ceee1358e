"""Numbers about a service in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_HELP = {
    "bayesemble_requests_total": ("counter", "Requests by path and status."),
    "bayesemble_request_seconds": ("histogram", "Seconds from the head of a request to its answer."),
    "bayesemble_rows_total": ("counter", "Rows that were answered."),
    "bayesemble_batch_rows": ("histogram", "Rows that were computed together."),
    "bayesemble_unlike_rows_total": ("counter", "Rows unlike the training data."),
    "bayesemble_abstained_rows_total": ("counter", "Rows on which the model abstained."),
    "bayesemble_doubt_sum": ("counter", "Sum of the doubt of all answered rows; by rows, its mean."),
    "bayesemble_labels_total": ("counter", "Labels that came in as feedback."),
    "bayesemble_alarms_total": ("counter", "Alarms of the watch."),
    "bayesemble_reloads_total": ("counter", "Times that a run was read again, by outcome."),
    "bayesemble_queue_rows": ("gauge", "Rows that wait for their turn."),
    "bayesemble_watched": ("gauge", "Whether what comes in is compared with the training data."),
}
_BUCKETS = {"bayesemble_request_seconds": SECONDS, "bayesemble_batch_rows": ROWS}
_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and histograms, for whichever thread adds to them."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._values: dict[tuple[str, _Labels], float] = {}
        self._histograms: dict[tuple[str, _Labels], list[float]] = {}

    def add(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        key = name, tuple(labels.items())
        with self._turn:
            self._values[key] = self._values.get(key, 0.0) + value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        key, bounds = (name, tuple(labels.items())), _BUCKETS[name]
        with self._turn:
            counts = self._histograms.setdefault(key, [0.0] * (len(bounds) + 2))
            counts[bisect_left(bounds, value)] += 1
            counts[-1] += value

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter over all labels but those given."""
        with self._turn:
            return sum(v for (n, own), v in self._values.items() if n == name and labels.items() <= dict(own).items())

    def text(self, gauges: Mapping[tuple[str, _Labels], float]) -> str:
        """All of it, and gauges that are known at this moment, as Prometheus reads it."""
        with self._turn:
            values = {**self._values, **gauges}
            histograms = {key: list(counts) for key, counts in self._histograms.items()}
        lines = []
        for name, (kind, help) in _HELP.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += [
                f"{name}{_written(labels)} {_short(value)}" for (own, labels), value in values.items() if own == name
            ]
            for (own, labels), counts in histograms.items():
                if own == name:
                    lines += _histogram(name, labels, counts)
        return "\n".join(lines) + "\n"


def _histogram(name: str, labels: _Labels, counts: list[float]) -> list[str]:
    lines, upto = [], 0.0
    for bound, count in zip((*map(_short, _BUCKETS[name]), "+Inf"), counts[:-1], strict=True):
        upto += count
        lines.append(f"{name}_bucket{_written((*labels, ('le', bound)))} {_short(upto)}")
    own = _written(labels)
    return [*lines, f"{name}_sum{own} {_short(counts[-1])}", f"{name}_count{own} {_short(upto)}"]


def _written(labels: _Labels) -> str:
    signs = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inside = ",".join(f'{name}="{value.translate(signs)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _short(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
