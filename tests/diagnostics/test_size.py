import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.diagnostics.size import EnsembleSize
from bayesemble.models import mlp, pyramidnet110, resnet18
from helpers import dropout_mlp, small_mlp


def counted(model, method) -> tuple[int, str]:
    found = be.count_parameters(be.Task(model, be.Categorical()), method)
    return found.total, str(found.ensemble_size)


def test_resnet_18():
    task = be.Task(resnet18, be.Categorical())
    plain = be.count_parameters(task, be.DeepEnsemble(num_members=1))
    assert plain.total == plain.network == 11_689_512
    assert plain.overhead == 0
    norm = be.count_parameters(task, be.EMP(select="norm"))
    assert (norm.total, str(norm.ensemble_size)) == (11_727_912, "5^20")
    both = be.count_parameters(task, be.EMP())
    assert (both.total, str(both.ensemble_size)) == (13_779_912, "5^21")
    assert both.overhead == pytest.approx(17.883, abs=5e-4)
    assert counted(resnet18, be.ECMP()) == (13_779_912, "5^522600")
    assert counted(resnet18, be.Explicit()) == (58_447_560, "5")
    assert be.count_parameters(task, be.DeepEnsemble(num_members=5)).total == 58_447_560


def test_pyramidnet_110():
    assert counted(pyramidnet110, be.DeepEnsemble(num_members=1)) == (28_511_307, "1")
    assert counted(pyramidnet110, be.EMP()) == (28_825_299, "5^165")
    assert counted(pyramidnet110, be.ECMP()) == (28_825_299, "5^78498")
    assert counted(pyramidnet110, be.Explicit()) == (142_556_535, "5")


def test_the_deep_perceptron_of_the_paper():
    """Its table says no sizes; these fit: 100 layers without biases, input 1, output 100, batch norm in the base."""

    def network() -> nn.Module:
        return mlp(1, [100] * 99, 100, norm=True, bias=False)

    assert counted(network, be.DeepEnsemble(num_members=1)) == (1_009_900, "1")
    assert counted(network, be.EMP()) == (1_129_100, "5^100")
    assert counted(network, be.ECMP()) == (1_129_100, "5^29800")
    assert counted(network, be.Explicit()) == (5_049_500, "5")


def test_masks_have_no_parameters_of_their_own():
    assert counted(small_mlp, be.Dropout()) == (58, "2^12")  # 4 units enter the first layer, 8 the second
    assert counted(small_mlp, be.DropConnect()) == (58, "2^48")  # all but 8 + 2 biases
    assert counted(small_mlp, be.Dropout(rate=0.0)) == (58, "1")
    assert counted(dropout_mlp, be.MCDropout(num_members=2))[0] == 2 * counted(dropout_mlp, be.MCDropout())[0]


def test_members_and_learned_probabilities_count():
    assert counted(small_mlp, be.EMP(num_members=3, components=2)) == (3 * (58 + 18), "3 x 2")
    learned = be.EMP(components=2, mixing="learned", training_draws=2)
    assert counted(small_mlp, learned)[0] == 58 + 18 + 2


def test_frozen_parameters_are_there_once():
    def frozen() -> nn.Module:
        module = small_mlp()
        module[0].requires_grad_(False)
        return module

    assert counted(frozen, be.DeepEnsemble(num_members=3))[0] == 40 + 3 * 18


def test_sizes_have_digits():
    assert EnsembleSize(1, ((5, 21),)).log10 == pytest.approx(21 * math.log10(5))
    assert EnsembleSize(3).log10 == pytest.approx(math.log10(3))
    assert str(EnsembleSize(2, ((5, 3), (2, 4)))) == "2 x 5^3 x 2^4"


def test_memory_is_that_of_parameters_gradients_and_moments():
    task = be.Task(small_mlp, be.Categorical())
    adam = be.count_parameters(task, be.DeepEnsemble(num_members=2))
    assert adam.training_bytes == 4 * 2 * 58 * 4
    assert adam.prediction_bytes == 4 * 2 * 58
    sgd = be.count_parameters(task, be.DeepEnsemble(num_members=2, optimizer="sgd", momentum=0.0))
    assert sgd.training_bytes == 4 * 2 * 58 * 2
    drawn = be.count_parameters(task, be.EMP(draws=10))
    assert drawn.prediction_bytes == 4 * (58 + 4 * 18) + 4 * 10 * 18


def test_rows_show_which_layer_gives_the_output():
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 2)
            self.body = nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.body(x)))

    task, method = be.Task(HeadFirst, be.Categorical()), be.EMP(components=2)
    assert be.count_parameters(task, method, torch.zeros(3, 4)).total == 58 + 18
    assert be.count_parameters(task, method).total == 58 + 40, "without rows, what was registered last"
