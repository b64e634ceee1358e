"""The campaign of `tests/faults.py` with a few faults of each kind, in a process of its own: it forks children."""

import json
import subprocess
import sys

import pytest

from bayesemble.core.errors import SettingError
from faulting.fault import HANG, REFUSED, RIGHT, SILENT, TRACEBACK, Attempt, Fault, check, judge
from faults import KINDS
from helpers import TESTS, with_tests_on_path


@pytest.fixture(scope="module")
def campaign(tmp_path_factory) -> dict[str, list[Fault]]:
    """What came of the faults, by their kind."""
    kept = tmp_path_factory.mktemp("faults") / "faults.jsonl"
    command = [sys.executable, str(TESTS / "faults.py"), "--short", "--resume", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, env=with_tests_on_path(), timeout=280, check=False)
    found = [Fault(**json.loads(line)) for line in kept.read_text().splitlines()]
    assert done.returncode == any(fault.bad for fault in found), done.stderr[-3000:]
    return {kind: [fault for fault in found if fault.kind == kind] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_faults_end_right_refused_or_harmless(campaign, kind):
    assert len(campaign[kind]) == KINDS[kind].SHORT
    bad = [f"{fault.outcome}: {fault.done}: {fault.words}" for fault in campaign[kind] if fault.bad]
    assert not bad, "\n".join(bad)


def test_the_campaign_tells_right_from_wrong():
    def refuse():
        raise SettingError("no")

    def hang():
        while True:
            pass

    def fail():
        raise KeyError("a")

    def differ():
        check(1 == 2, SILENT, "one is not two")

    outcomes = {act: judge(Attempt("", act, seconds=0.2))[0] for act in (refuse, hang, fail, differ)}
    assert outcomes == {refuse: REFUSED, hang: HANG, fail: TRACEBACK, differ: SILENT}
    assert judge(Attempt("", lambda: (RIGHT, "done"))) == (RIGHT, "done")
