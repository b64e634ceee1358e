"""How much processor time the suite takes, over all workers and the processes that tests start; it stays bounded."""

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

MOST_MINUTES = 12
_SHOWN = 12
_KEY = "processor_seconds"


def spent() -> float:
    """Processor seconds of this process and of all processes it started that have ended."""
    return sum(os.times()[:4])


class ProcessorTime:
    """A plugin that adds up what the tests of each file take, and tells the total in the end."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = spent()
        result = yield
        self.seconds[item.nodeid.partition("::")[0]] += spent() - before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        result = yield
        self.seconds["imports and collection"] += spent()
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.seconds.update(getattr(node, "workeroutput", {}).get(_KEY, {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        minutes = sum(self.seconds.values()) / 60
        terminalreporter.section(f"processor time: {minutes:.1f} minutes")
        for name, seconds in self.seconds.most_common(_SHOWN):
            terminalreporter.line(f"{seconds:6.1f} s  {name}")
        if minutes > MOST_MINUTES:
            words = f"THE SUITE TOOK MORE THAN {MOST_MINUTES} MINUTES OF PROCESSOR TIME: shorten the tests above"
            terminalreporter.line(words, red=True, bold=True)
