"""The trained leaves of a network around the network itself; `ranks_job.py` tries it with real shards, on two ranks."""

import copy
import threading

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import ModelError
from bayesemble.task.adapters.around_shards import AroundShards, obstacle


def adapted(kind: str = "lora") -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6))
    network = nn.Sequential(inner, nn.Tanh(), nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    return be.adapt(network, kind, head="2", **({"targets": "0.0|0.3", "rank": 2} if kind == "lora" else {}))


def task(network: nn.Module) -> be.Task:
    return be.Task(network, be.Categorical())


@pytest.mark.parametrize("kind", ["lora", "head"])
def test_members_begin_and_compute_as_those_of_the_network_in_one_piece(kind):
    network, x = adapted(kind), torch.randn(7, 4)
    plain, around = task(network), task(AroundShards(adapted(kind)))
    own, frozen = (
        plain.new_member(seed=3),
        [name for name, one in network.named_parameters() if not one.requires_grad],
    )
    found = around.new_member(seed=3)
    assert found[0].keys() == own[0].keys()
    assert all(torch.equal(found[0][name], leaf) for name, leaf in own[0].items())
    assert found[1].keys() < own[1].keys()
    assert not set(found[1]) & set(frozen), "frozen weights are in no member"
    for training in (False, True, False):  # batch norm of the head learns, that of the backbone stands still
        assert torch.equal(plain.forward(*own, x, training=training), around.forward(*found, x, training=training))
    assert all(torch.equal(leaf, own[1][name]) for name, leaf in found[1].items())


def test_copies_share_the_network():
    around = AroundShards(adapted())
    other = copy.deepcopy(around)
    assert other._kept.network is around._kept.network
    assert not {id(one) for one in other.parameters()} & {id(one) for one in around.parameters()}


def test_another_thread_is_refused():
    around, said = AroundShards(adapted()), []

    def run() -> None:
        try:
            around(torch.ones(3, 4))
        except ModelError as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert said == ["a network that is sharded over processes runs in the thread that made its task alone"]


def test_networks_without_adapters_of_ours_are_refused():
    assert obstacle(adapted()) is None
    assert "only adapters of be.adapt" in obstacle(nn.Linear(2, 2))
    assert "only adapters of be.adapt" in obstacle(be.adapt(nn.Linear(2, 2), "bias"))
