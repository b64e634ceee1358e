"""Figures by the kind of target: what is drawn depends on what is predicted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.apps.report.figures_by_target import FIGURES_OF_CLASSES, FIGURES_OF_NUMBERS
from bayesemble.apps.report.opened_runs import Shown

plt = pytest.importorskip("matplotlib.pyplot")


def drawn(figures, *shown):
    """Axes that can be looked at, by the name of the figure and, where each method has its own, its label."""
    axes = {}
    for figure in figures:
        chosen = figure.choose(shown)
        draw = figure.prepare(chosen) if chosen else None
        for one in chosen:
            name = f"{figure.name} {one.label}" if figure.apart else figure.name
            if name not in axes:
                _, axes[name] = plt.subplots()
            draw(one, axes[name])
    return axes


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
    axes = drawn(FIGURES_OF_CLASSES, of_classes("single", 0, 1), of_classes("several", 1, 4))
    assert axes.keys() == {"reliability", "confidence", "diversity", "size_score"}
    assert groups(axes["reliability"]) == {"method-single", "method-several"}
    assert groups(axes["diversity"]) == groups(axes["size_score"]) == {"method-several"}
    assert drawn(FIGURES_OF_CLASSES, of_classes("single", 0, 1)).keys() == {"reliability", "confidence"}


def test_one_input_is_drawn_as_a_function_in_original_units():
    axes = drawn(FIGURES_OF_NUMBERS, of_numbers(1))
    assert axes.keys() == {"pit one", "coverage", "bands one", "size_score"}
    (mean,) = [line for line in axes["bands one"].lines if line.get_gid() == "method-one"]
    assert np.allclose(mean.get_ydata(), 1.0)  # 0 in units of the training targets


def test_several_inputs_are_drawn_against_the_truth_in_few_dots():
    axes = drawn(FIGURES_OF_NUMBERS, of_numbers(2))
    assert axes.keys() == {"pit one", "coverage", "predictions one", "size_score"}
    (dots,) = [line for line in axes["predictions one"].lines if line.get_gid() == "method-one"]
    assert len(dots.get_xdata()) == 80


def test_many_networks_are_counted_on_a_logarithmic_scale():
    few, many = (drawn(FIGURES_OF_CLASSES, of_classes("one", 0, members))["size_score"] for members in (4, 13))
    assert (few.get_xscale(), many.get_xscale()) == ("linear", "log")
