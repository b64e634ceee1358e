"""Figures by the kind of target: what is drawn depends on what is predicted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.apps.report.figures_by_target import draw_classes, draw_numbers, padded, thinned
from bayesemble.apps.report.opened_runs import Shown

plt = pytest.importorskip("matplotlib.pyplot")


class Canvas:
    """Draws on axes that can be looked at."""

    def __init__(self, *shown):
        self.shown, self.axes = shown, {}

    def together(self, name, draw, some=None):
        _, self.axes[name] = plt.subplots()
        for one in self.shown if some is None else some:
            draw(one, self.axes[name])

    def apart(self, name, draw):
        for one in self.shown:
            _, self.axes[f"{name} {one.label}"] = plt.subplots()
            draw(one, self.axes[f"{name} {one.label}"])


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt.close("all")


def of_classes(label, number, members):
    generator = torch.Generator().manual_seed(number)
    probs = torch.randn(members, 40, 3, generator=generator).softmax(-1)
    targets = torch.randint(3, (40,), generator=generator)
    return Shown(label, number, None, None, targets, be.Predictive.from_probs(probs), None)


def of_numbers(columns):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, columns, generator=generator).numpy()
    targets = inputs.sum(1)
    predictive = be.Predictive.from_normal(torch.randn(3, 120, generator=generator), 1.0)
    split = SimpleNamespace(
        x_train=inputs, y_train=targets, x_test=inputs, x_ood=None, target_shift=1.0, target_scale=2.0
    )

    class Ensemble:
        def predict(self, grid, keep_members):
            return be.Predictive.from_normal(np.zeros((3, len(grid))), 1.0)

    return Shown("one", 0, Ensemble(), split, torch.tensor(targets), predictive, None)


def groups(ax):
    return {one.get_gid() for one in [*ax.lines, *ax.collections]} - {None, "reference", "data"}


def test_classes_are_drawn_for_all_methods_and_diversity_for_those_with_members():
    canvas = Canvas(of_classes("single", 0, 1), of_classes("several", 1, 4))
    draw_classes(canvas)
    assert canvas.axes.keys() == {"reliability", "confidence", "diversity"}
    assert groups(canvas.axes["reliability"]) == {"method-single", "method-several"}
    assert groups(canvas.axes["diversity"]) == {"method-several"}
    alone = Canvas(of_classes("single", 0, 1))
    draw_classes(alone)
    assert "diversity" not in alone.axes


def test_one_input_is_drawn_as_a_function_in_original_units():
    canvas = Canvas(of_numbers(1))
    draw_numbers(canvas)
    assert canvas.axes.keys() == {"pit one", "coverage", "bands one"}
    (mean,) = [line for line in canvas.axes["bands one"].lines if line.get_gid() == "method-one"]
    assert np.allclose(mean.get_ydata(), 1.0)  # 0 in units of the training targets


def test_several_inputs_are_drawn_against_the_truth_in_few_dots():
    canvas = Canvas(of_numbers(2))
    draw_numbers(canvas)
    assert canvas.axes.keys() == {"pit one", "coverage", "predictions one"}
    (dots,) = [line for line in canvas.axes["predictions one"].lines if line.get_gid() == "method-one"]
    assert len(dots.get_xdata()) == 80


def test_thinning_keeps_both_ends():
    assert thinned(5, 10) == [0, 1, 2, 3, 4]
    some = thinned(1000, 10, first=50)
    assert (len(some), some[0], some[-1]) == (10, 50, 999)
    assert padded([1.0, 3.0], 0.5) == (0.0, 4.0)
