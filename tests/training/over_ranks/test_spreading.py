"""Two processes train what one does: members shared out, rows shared out, and what neither can do."""

import pytest

import bayesemble as be
import ranks_job
from ranks_job import found

REFUSED = {"hmc"}
VARIANTS = [name for name, _, _ in ranks_job.variants()]
MEETING = {"repulsive", "svgd", "validated"}  # weights of members meet, and sums are rounded in another order


@pytest.mark.parametrize("name", VARIANTS)
def test_two_ranks_train_what_one_process_does(name):
    difference = found()["members"][name]
    if name in REFUSED:
        assert "ranks cannot hold some of them each" in difference
    else:
        assert difference <= (1e-12 if name in MEETING else 1e-15)


@pytest.mark.parametrize("name", ["deep_ensemble", "svgd", "function space", "rates and bootstrap"])
def test_ranks_that_share_out_rows_train_what_one_process_does(name):
    assert found()["data"][name] <= 1e-12


@pytest.mark.parametrize("name", ["mc_dropout", "mean_field"])
def test_random_numbers_that_would_be_others_are_refused(name):
    assert "use data=1" in found()["data"][name]


def test_rows_count_by_their_weights_on_every_rank():
    assert found()["weighted_rows"] <= 1e-14


def test_each_rank_can_keep_its_own_members():
    assert found()["own_members"] == [2, 1]


def test_members_train_on_what_a_backbone_gives_that_ranks_hold_parts_of():
    came = found()["sharded_backbone"]
    assert came["held"] == 0.5, "after a forward pass the halves of other ranks are gone again"
    assert max(came["outputs"], came["weights"], came["predictions"]) <= 1e-6


def test_members_of_a_network_that_is_itself_sharded_are_refused():
    assert "0 is wrapped by FSDPModule" in found()["sharded_backbone"]["said"]


def test_adapters_in_a_backbone_that_ranks_hold_parts_of_train_as_in_the_whole_one():
    came = found()["adapters_in_shards"]
    assert came["held"] < 0.6, "after all passes a rank has no more than its part of the frozen weights"
    assert max(came[name] for name in ("alone", "weights", "functions")) <= 1e-12


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("uneven", "runs equally often on each, but some ranks would hold more members"),
        ("vmap", "vmap cannot run a network that is sharded"),
        ("drawn", "has members that are trained networks: use DeepEnsemble"),
        ("gathered", 'needs executor=be.Ranks(gather="predictions")'),
        ("saved", "what was trained is in ensemble.state.members of each rank"),
        ("no ranks", 'needs executor=be.Ranks(gather="predictions")'),
        ("sharded adapters", "is sharded too: name those in fully_shard"),
    ],
)
def test_what_a_sharded_network_cannot_do_is_said(name, words):
    assert words in found()["adapters_in_shards"][name]


@pytest.mark.parametrize("name", ["offload", "seconds", "start", "sequential"])
def test_what_ranks_cannot_do_is_said(name):
    said = found()["refused"][name]
    assert "cannot honour" in said or "ranks cannot hold" in said


def test_a_member_that_diverges_on_another_rank_ends_all_of_them_under_its_own_number():
    assert found()["diverged"].startswith("the loss of member 1 became")


def test_without_a_job_ranks_are_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    method = be.Repulsive(num_members=2)
    ours, expected = ranks_job.train(method, be.Ranks(inner="loop")), ranks_job.train(method, "loop")
    assert ranks_job.difference(ours, expected) == 0
    assert ranks_job.difference(ranks_job.train(method, "ranks"), ranks_job.train(method, "auto")) == 0
