"""A situation stays the same as long as a network does, and changes with whatever its operations depend on."""

import copy

import numpy as np
import torch
from torch import nn

from bayesemble.core import seeds
from bayesemble.execute.programs.situation import Looks, Situations


def network() -> nn.Module:
    with seeds.scoped(0):
        return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.LeakyReLU(0.1), nn.Dropout(0.2)), nn.Linear(4, 2))


def test_what_somebody_changes_changes_it_and_changing_it_back_brings_it_back():
    situations, net = Situations(), network()
    first = situations(net)
    assert situations(net) == first == situations(copy.deepcopy(net))
    net[1][0].negative_slope = 0.5
    assert situations(net) != first
    net[1][0].negative_slope = 0.1
    assert situations(net) == first
    net.eval()
    assert situations(net) != first
    net.train()[1].note = "new"
    assert situations(net) != first


def test_a_layer_that_is_put_in_the_place_of_another_is_noticed():
    situations, net = Situations(), network()
    first = situations(net)
    net[1][0] = nn.LeakyReLU(0.7)
    assert situations(net) != first


def test_attributes_that_are_not_simply_compared_do_no_harm():
    situations, net = Situations(), network()
    net.table, net.mask = np.zeros(3), [torch.zeros(3)]
    first = situations(net)
    net.table, net.mask = np.ones(3), [torch.ones(3)]
    assert situations(net) == first  # neither is a number or a word


def test_modes_of_torch_belong_to_it():
    situations, net = Situations(), network()
    first = situations(net)
    with torch.autocast("cpu", torch.bfloat16):
        assert situations(net) != first
    torch.set_default_dtype(torch.float64)
    try:
        assert situations(net) != first
    finally:
        torch.set_default_dtype(torch.float32)
    assert situations(net) == first


def test_there_is_none_while_somebody_listens():
    situations, net = Situations(), network()
    first = situations(net)
    for listen in (net[1][0].register_forward_hook, net[2].register_forward_pre_hook):
        with listen(lambda *_: None):
            assert situations(net) is None
        assert situations(net) == first
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert situations(net) is None
    assert situations(net) == first


def test_networks_are_not_held():
    situations, net = Situations(), network()
    situations(net)
    assert len(situations._seen) == 1
    del net
    assert not situations._seen


def test_numbers_that_leave_torch_are_seen():
    for look, expected in ((lambda x: x.numpy(), True), (lambda x: x.tolist(), True), (lambda x: x + 1, False)):
        with Looks() as looks:
            look(torch.zeros(2))
        assert looks.seen == expected
