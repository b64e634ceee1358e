import torch

import bayesemble as be
from bayesemble.execute.executor import slopes, thread_count


def test_threads_are_set_inside_and_given_back():
    before = torch.get_num_threads()
    with thread_count(be.Loop(threads=before + 1)):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_an_unused_leaf_has_gradient_zero():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    gradients = slopes((used**2).sum(), {"used": used, "unused": unused})
    assert gradients[0].tolist() == [2, 2]
    assert gradients[1].tolist() == [0, 0, 0]
