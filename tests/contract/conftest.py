"""Contract tests with steps of another kind:

STEPS=traced pytest tests/contract
STEPS=compiled pytest tests/contract       # compiles each kind of step once, for 15 to 25 s; kept for the next time
STEPS=traced MEMBERS=large pytest tests/contract  # members of any size are recorded as large ones are, without a copy
"""

import os
from dataclasses import replace

import pytest

from bayesemble.execute.choose import Choice
from bayesemble.execute.executor import STEPS, Executor
from bayesemble.execute.programs import workspace
from bayesemble.training import prepare
from bayesemble.training.stepping import steps

ASKED_FOR = os.environ.get("STEPS")


@pytest.fixture(autouse=True)
def _steps_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors that are named or chosen take such steps, and short runs do too; those that a test makes stay."""
    if ASKED_FOR is None:
        return
    if ASKED_FOR not in STEPS:
        pytest.exit(f"STEPS must be one of {', '.join(STEPS)}, not {ASKED_FOR}")
    choose, wished = prepare.choose, prepare.wished

    def chosen(wish: str | Executor, *arguments: object) -> Choice:
        choice = choose(wish, *arguments)  # type: ignore[arg-type]
        executor = choice.executor if isinstance(wish, Executor) else replace(choice.executor, steps=ASKED_FOR)
        return replace(choice, executor=executor)

    def named(wish: str | Executor) -> Executor | None:
        executor = wished(wish)
        return executor if executor is None or isinstance(wish, Executor) else replace(executor, steps=ASKED_FOR)

    monkeypatch.setattr(prepare, "choose", chosen)
    monkeypatch.setattr(prepare, "wished", named)
    monkeypatch.setattr(steps, "_FEWEST_STEPS", 0)
    if os.environ.get("MEMBERS") == "large":
        monkeypatch.setattr(steps, "_LARGE_BYTES", 0)
        monkeypatch.setattr(workspace, "_LARGE", 1)
