"""Threads that run one network at once do not meet in its modules."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.task.per_thread import PerThread
from helpers import norm_mlp


def made() -> nn.Module:
    with scoped(0):
        return norm_mlp()


def in_another_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_the_thread_that_made_it_has_the_network_itself_and_others_have_copies_that_stay():
    network = made()
    own = PerThread(network)
    assert own.here() is network
    first, again = in_another_thread(lambda: (own.here(), own.here()))
    assert first is again is not network
    assert {type(module) for module in first.modules()} == {type(module) for module in network.modules()}


def test_copies_share_all_tensors_but_no_flags():
    own = PerThread(made())
    other = in_another_thread(own.here)
    for (name, mine), (_, theirs) in zip(own.here().state_dict().items(), other.state_dict().items(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr(), name
    other.eval()
    assert own.here().training


def test_it_survives_pickling():
    again = pickle.loads(pickle.dumps(PerThread(made())))
    assert isinstance(again.here(), nn.Sequential)


def test_a_network_that_cannot_be_copied_says_so():
    network = made()
    network.lock = threading.Lock()
    with pytest.raises(be.ModelError, match=r"Sequential cannot be copied for another thread: .*use the ensemble in"):
        in_another_thread(PerThread(network).here)


@pytest.mark.parametrize("rounds", [40])
def test_many_threads_run_other_leaves_and_modes_side_by_side(rounds):
    """Each thread has weights and a mode of its own; what it gets is what it gets alone."""
    task = be.Task(norm_mlp, be.Categorical()).bind(6, torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    starts = [task.new_member(seed) for seed in range(8)]
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))

    def run(index: int) -> torch.Tensor:
        params, buffers = starts[index % 8]
        copied = {name: buffer.clone() for name, buffer in buffers.items()}
        return task.forward(params, copied, x, training=index % 2 == 1)

    alone = [run(index) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(8 * rounds)))
    assert all(torch.equal(one, alone[index % 8]) for index, one in enumerate(found))
