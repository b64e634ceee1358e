"""What is asked of ranks, and what cannot be honoured."""

import pytest

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.execute.ranks.team import ALONE
from ranks_job import found


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_job_one_process_holds_all_members():
    assert be.Ranks().team(3) is ALONE
    with pytest.raises(SettingError, match="data=2 needs as many ranks"):
        be.Ranks(data=2).team(3)


def test_ranks_do_not_measure():
    with pytest.raises(SettingError, match="would not wait for one another"):
        be.Ranks(inner="measure")


@pytest.mark.parametrize("settings", [{"data": 0}, {"timeout": 0.0}])
def test_settings_have_limits(settings):
    with pytest.raises(SettingError):
        be.Ranks(**settings)


def test_ranks_that_do_not_come_out_are_refused():
    assert "need one each" in found()["refused"]["few members"]
    assert "cannot be 3 for each share" in found()["refused"]["uneven"]


def test_a_rank_gives_back_what_a_run_needed():
    for what, counts in found()["held"].items():
        assert len(set(counts)) == 1, f"{what}: {counts}"
