"""The models of a service by their names, and the thread that looks whether their folders have changed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bayesemble.apps.serve.logs import logger
from bayesemble.apps.serve.metrics import Metrics
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.served import Served
from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require


class Registry:
    """Everything that a service serves; `start` begins to look at folders, `close` ends all of it."""

    def __init__(self, folders: Sequence[str | Path], options: Options) -> None:
        self.options, self.metrics = options, Metrics()
        self._models = {name: Served(name, folder, options, self.metrics) for name, folder in names_of(folders).items()}
        if options.tolerance is not None and all(one.model.schema.task == "classification" for one in self):
            self._close_models()
            raise SettingError("tolerance is an error of numbers, and all targets here are classes; leave it out")
        self._end = threading.Event()
        self._looker = threading.Thread(target=self._look, name="looks at run folders", daemon=True)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._models.values())

    def find(self, name: str) -> Served | None:
        """The model of a name."""
        return self._models.get(name)

    def only(self) -> Served | None:
        """The model, if there is one alone."""
        return next(iter(self)) if len(self._models) == 1 else None

    def metrics_text(self) -> str:
        """The numbers for Prometheus."""
        gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for one in self:
            label = (("model", one.name),)
            gauges["bayesemble_queue_rows", label] = float(one.batcher.waiting)
            gauges["bayesemble_watched", label] = float(one.model.profile is not None)
        return self.metrics.text(gauges)

    def start(self) -> None:
        """Begin to look at the folders."""
        if self.options.reload_seconds:
            self._looker.start()

    def close(self) -> None:
        """Answer what has been taken, then stop."""
        self._end.set()
        if self._looker.is_alive():
            self._looker.join()
        self._close_models()

    def _close_models(self) -> None:
        for one in self:
            one.close()

    def _look(self) -> None:
        while not self._end.wait(self.options.reload_seconds):
            for one in self:
                try:
                    one.look()
                except Exception:
                    logger.exception("a look at a folder failed")


def names_of(folders: Sequence[str | Path]) -> dict[str, Path]:
    """The name of each run in the service: that of its folder, or what stands before a sign of equality."""
    found = []
    for one in folders:
        name, equals, folder = str(one).partition("=")
        path = Path(folder) if equals else Path(one)
        found.append((name if equals else path.absolute().name, path))
    for name, count in Counter(name for name, _ in found).items():
        require(count == 1, f"two runs are called {name!r}; name them: one={found[0][1]} two=...")
        usable = name.isascii() and name != "" and all(sign.isalnum() or sign in "-_." for sign in name)
        require(usable, f"{name!r} cannot be the name of a model: letters, digits, - _ and . can; say NAME=FOLDER")
    return dict(found)
