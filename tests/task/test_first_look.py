import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import bayesemble as be
from bayesemble.core.errors import DataError, ModelError
from bayesemble.task.first_look import Seen, look

ROWS = torch.ones(4, 3)


def test_a_plain_network_is_seen_as_such():
    assert look("the network", ROWS, lambda rows, training: ROWS[:, :2]) == Seen(
        (2,), stochastic=False, recomputes=False
    )


def test_random_numbers_count_if_they_are_drawn_in_training():
    assert look("it", ROWS, lambda rows, training: functional.dropout(rows, 0.5, training)).stochastic
    assert not look("it", ROWS, lambda rows, training: functional.dropout(rows, 0.5, not training)).stochastic


def test_what_runs_again_in_the_backward_pass_is_seen():
    assert look("it", ROWS, lambda rows, training: checkpoint(torch.sin, ROWS, use_reentrant=False)).recomputes


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda rows, training: ROWS @ ROWS, r"it cannot run on inputs of shape \[\(4, 3\)\]: mat1 and mat2"),
        (lambda rows, training: ROWS.sum(), r"it must give one output per row: 4 rows, outputs \(\)"),
        (lambda rows, training: ROWS[:3], r"4 rows, outputs \(3, 3\)"),
    ],
)
def test_rows_that_it_cannot_run_on_are_refused(run, words):
    with pytest.raises(DataError, match=words):
        look("it", ROWS, run)


def test_a_network_that_changes_its_rows_is_refused():
    with pytest.raises(ModelError, match="it changes its inputs in place"):
        look("it", ROWS, lambda rows, training: rows.mul_(2))
    assert torch.equal(ROWS, torch.ones(4, 3))


def test_a_network_that_ends_in_a_softmax_is_warned_of_where_logits_are_wanted():
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    make = lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))  # noqa: E731
    with pytest.warns(UserWarning, match="seems to end in a softmax, but Categorical takes logits"):
        be.Task(make, be.Categorical()).bind(5, x)
    be.Task(make, be.Gaussian(0.1)).bind(5, x)  # shares of a whole may be what is predicted
    be.Task(lambda: nn.Linear(4, 3), be.Categorical()).bind(5, x)


@pytest.mark.parametrize(
    ("factor", "likelihood", "heads", "words"),
    [
        (1e4, be.Gaussian(0.1), 1, "begin at about 0.[1-9], and training would hardly get there"),
        (1e4, be.Gaussian("learned"), 1, "begin at about"),
        (1e4, be.HeteroscedasticGaussian(), 2, "begin at about"),
        (1e4, be.GaussianMixture(2), 6, "begin at about"),
        (1e-5, be.Gaussian(), 1, r"the noise of Gaussian\(noise=1.0\) is more than a thousand times as large"),
        (1e-5, be.HeteroscedasticStudent(), 2, "hides them"),
        (1.0, be.Gaussian(1e-4), 1, None),
        (100.0, be.Gaussian(), 1, None),
        (1e-5, be.Gaussian(1e-6), 1, None),
        (0.0, be.Gaussian(), 1, None),
        (1e6, be.Poisson(), 1, None),
    ],
)
def test_targets_far_from_the_scale_of_the_outputs_are_warned_of(factor, likelihood, heads, words, recwarn):
    x = torch.linspace(-1, 1, 20)[:, None]
    y = (factor * x[:, 0].abs()).round() if isinstance(likelihood, be.Poisson) else factor * x[:, 0]
    task = be.Task(lambda: nn.Linear(1, heads), likelihood)
    be.fit(task, be.DeepEnsemble(num_members=1, learning_rate=1e-9), (x, y), epochs=1, progress=False)
    told = [str(one.message) for one in recwarn if "in size" in str(one.message)]
    assert len(told) == (words is not None)
    if words is not None:
        assert re.search(words, told[0])
        assert "divide the targets by their standard deviation" in told[0]
        assert next(one for one in recwarn if "in size" in str(one.message)).filename == __file__


def test_a_network_that_begins_with_large_outputs_may_have_large_targets():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 1e4 * super().forward(x)

    x = torch.linspace(-1, 1, 20)[:, None]
    data, method = (x, 1e4 * x[:, 0]), be.DeepEnsemble(num_members=1)
    be.fit(be.Task(lambda: Scaled(1, 1), be.Gaussian(10.0)), method, data, epochs=1, progress=False)


def test_classes_on_axis_1_are_recognised():
    x = torch.randn(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(4, 6, 5, dtype=torch.long)
    bound = be.Task(lambda: nn.Conv2d(3, 2, 1), be.Categorical()).bind(4, x)
    with pytest.raises(DataError, match=r"the classes stand on axis 1 there.*output=lambda out: out.movedim\(1, -1\)"):
        bound.likelihood.check_targets(labels, bound.output_shape)
    bound = be.Task(lambda: nn.Conv2d(3, 2, 1), be.Categorical(), output=lambda out: out.movedim(1, -1)).bind(4, x)
    assert bound.likelihood.check_targets(labels, bound.output_shape).shape == (4, 6, 5)


def two_labels(end):
    return be.Task(lambda: nn.Sequential(nn.Linear(4, 2), *end), be.Bernoulli())


def test_a_network_that_ends_in_a_sigmoid_is_warned_of_where_logits_are_wanted(recwarn, generator):
    x = torch.randn(4, 4, generator=generator)
    with pytest.warns(UserWarning, match="seems to end in a sigmoid, but Bernoulli takes logits"):
        two_labels([nn.Sigmoid()]).bind(4, x)
    two_labels([]).bind(4, x)
    two_labels([nn.Hardtanh(0.4, 0.6), nn.Flatten()]).bind(4, torch.zeros(4, 4))  # which says nothing of its end
    constant = nn.Linear(4, 2, device="meta").to_empty(device="cpu")
    nn.init.zeros_(constant.weight)
    nn.init.constant_(constant.bias, 0.5)
    be.Task(constant, be.Bernoulli(), start="given").bind(4, x)
    assert not recwarn.list


def test_a_network_may_refuse_inputs_that_are_far_larger_in_its_own_way(recwarn, generator):
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            assert x.abs().max() < 10, "inputs are to be standardised"
            return self.linear(x).sigmoid()

    be.Task(Careful, be.Bernoulli()).bind(4, torch.randn(4, 4, generator=generator))
    assert not recwarn.list


class ClassesLast(nn.Conv2d):
    def __init__(self):
        super().__init__(1, 3, 1)

    def forward(self, x):
        return super().forward(x).movedim(1, -1)


def test_classes_that_may_be_on_the_first_axis_or_the_last_are_warned_of(recwarn, generator):
    pictures = torch.randn(2, 1, 3, 3, generator=generator)
    pixels = lambda: nn.Conv2d(1, 3, 1)  # noqa: E731
    with pytest.warns(UserWarning, match=r"gives \(3, 3, 3\) for each row, of which Categorical takes the last axis"):
        be.Task(pixels, be.Categorical()).bind(2, pictures)
    be.Task(pixels, be.Categorical(), output=lambda out: out.movedim(1, -1)).bind(2, pictures)
    be.Task(lambda: nn.Linear(3, 3), be.Categorical()).bind(2, pictures[:, 0])
    be.Task(ClassesLast, be.Categorical()).bind(2, pictures)
    be.Task(pixels, be.Gaussian()).bind(2, pictures)
    assert not recwarn.list
