"""Settings refuse what they do not take, and none is ignored.

Whatever of a method or a task differs from before, the trained ensemble differs too. That a setting does the right
thing is proven beside its method; here only that it does something, for every setting of every method in the registry.
A new setting needs a line in `NEEDS` if it acts in company only, and one in `OTHERS` if another value than its default
cannot be guessed.
"""

import contextlib
import dataclasses
import math
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods import METHODS, make_method, method_class
from helpers import norm_mlp, quick_fit, table, with_dropout

IMPLICIT = ("emp", "ecmp", "dropout", "dropconnect", "explicit")
# What a run of 8 steps is made short by; everything else stands at its default.
SHORT: dict[str, dict[str, Any]] = {
    "deep_ensemble": {"num_members": 3},
    "repulsive": {"num_members": 3},
    "svgd": {"num_members": 3},
    "hmc": {"max_leapfrog": 12, "step_size": 0.05, "num_members": 3},
    "swag": {"rank": 3, "draws": 4, "start": 0.5, "snapshots": 6},
    "subspace": {"rank": 3, "draws": 4, "start": 0.5, "snapshots": 6, "dim": 2, "warmup": 2},
    "csgmcmc": {"cycles": 2, "samples_per_cycle": 2, "exploration": 0.5},
    "snapshot": {"snapshots": 3},
    "laplace": {"draws": 4},
    "mc_dropout": {"draws": 4},
    "mean_field": {"draws": 4},
} | {name: {"draws": 4, "components": 3} for name in IMPLICIT}


def trained_network() -> nn.Module:
    with scoped(1):
        return norm_mlp()


FUNCTION = {"space": "function"}
COLOURED = {"whiten": False}  # of few members in many coordinates, whitened and calibrated, all kernels are the same
# What a setting acts in company of only.
NEEDS: dict[str, dict[str, Any]] = {
    "kernel": COLOURED,
    "bandwidth": COLOURED,
    "estimator": COLOURED,
    "eta": COLOURED | {"estimator": "sge"},
    "threshold": COLOURED | {"estimator": "ssge"},
    "anneal_share": {"anneal": "linear"},
    "noise": FUNCTION | {"points": "noise"},
    "points": FUNCTION,
    "features": FUNCTION,
    "function_prior": FUNCTION,
    "prior_draws": FUNCTION | {"prior_every": 1},
    "prior_points": FUNCTION | {"prior_every": 1},
    "prior_every": FUNCTION,
    "mixing": {"training_draws": 2, "learning_rate": 0.1},
    "vi_epochs": {"inference": "vi"},
    "vi_rate": {"inference": "vi"},
    "basis": {"num_members": 2},
    "rate_per_member": {"num_members": 3},
    "curve_epochs": {"basis": "curve", "num_members": 2, "curve_epochs": 3},
    "predict": {"select": "all"},  # the output layer alone is linear already
}
# Another value than the default, and than the one above, where no guess will do.
OTHERS: dict[str, Any] = {
    "num_members": 2,
    "optimizer": "sgd",
    "schedule": "cosine",
    "weight_decay": 0.1,
    "clip": 1e-3,
    "epsilon": 0.1,
    "beta2": 0.5,
    "rate_per_member": (3.0, 0.5, 2.0),
    "anchored": True,
    "adversarial": 0.1,
    "learning_rate": 0.03,
    "bandwidth": 0.5,
    "repulsion": 0.5,
    "measure_every": 3,
    "select": "output",
    "anneal": "linear",
    "points": "noise",
    "noise": 0.5,
    "features": "outputs",
    "function_prior": False,
    "prior_draws": 3,
    "prior_points": 2,
    "prior_every": 1,
    "threshold": 0.5,
    "eta": 0.5,
    "whiten": False,
    "components": 2,
    "assignment": "unit",
    "basis": "random",
    "rank": 4,
    "start": 0.25,
    "snapshots": 3,
    "cycles": 1,
    "samples_per_cycle": 1,
    "exploration": 0.25,
    "dim": 1,
    "temperature": 1e-4,
    "structure": "diag",
    "num_draws": 1,
    "max_leapfrog": 3,
    "trajectory": 0.3,
}
# Where a method needs another value than all others, and where a setting acts in other company.
SPECIAL: dict[tuple[str, str], Any] = {
    ("dropout", "assignment"): "element",
    ("laplace", "select"): "all",
    ("snapshot", "snapshots"): 2,
    ("hmc", "warmup"): 0.25,
    ("mean_field", "noise"): "plain",
    ("subspace", "prior"): "task",
} | {(name, "start"): trained_network() for name in IMPLICIT}
ALSO_NEEDS = {
    ("svgd", "kernel"): {"calibrate": False},
    ("snapshot", "schedule"): {"start": 0.5},
    ("snapshot", "cycle"): {"start": 0.25},
    ("explicit", "jitter"): {"start": trained_network()},
}
NEEDS_PRIOR = ("laplace", "mean_field")
REFUSED = {("explicit", "rate")} | {(name, "weight_decay") for name in NEEDS_PRIOR}
REFUSED |= {(name, "anchored") for name in (*IMPLICIT, *NEEDS_PRIOR)}
SAME = {("explicit", "train")}  # all of its leaves are components


@cache
def made(name: str, settings: tuple[tuple[str, Any], ...], task: tuple[tuple[str, Any], ...]) -> dict[str, Tensor]:
    """All weights of the trained members, and what they predict."""
    method = make_method(name, **dict(settings))
    model = partial(with_dropout, norm_mlp) if method.keeps_dropout else norm_mlp
    bound = be.Task(model, be.Categorical(), **({"prior": be.NormalPrior(std=1.0)} | dict(task)))
    data, size = table(32), {"batch_size": None} if method.full_batch else {"batch_size": 16}
    ensemble = quick_fit(bound, data, method, epochs=4, executor="vmap", **size)
    return ensemble.state.members.params | {"probs": ensemble.predict(data[0]).probs}


def fingerprint(name: str, settings: dict[str, Any], **task: Any) -> dict[str, Tensor]:
    return made(name, tuple(settings.items()), tuple(task.items()))


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """By more than rounding."""
    return any(leaf.shape != other[name].shape or (leaf - other[name]).abs().max() > 1e-5 for name, leaf in one.items())


def another(name: str, before: dict[str, Any], setting: str) -> Any:
    """A value that the setting takes beside the one it has."""
    own = getattr(make_method(name, **before), setting)
    limits = next(field for field in dataclasses.fields(method_class(name)) if field.name == setting).metadata["limits"]
    guesses = [*limits.choices, True, False, 1, 0.5]
    if isinstance(own, float | int):
        guesses = [not own] if isinstance(own, bool) else [2 * own, own / 2, *guesses]
    for guess in guesses:
        with contextlib.suppress(SettingError):
            if guess != own:
                make_method(name, **(before | {setting: guess}))
                return guess
    raise AssertionError(f"no other value of {setting} than {own} could be guessed: add one to OTHERS")


CASES = [(name, field.name) for name in METHODS if name != "map" for field in dataclasses.fields(method_class(name))]


@pytest.mark.filterwarnings("ignore:SWAG took", "ignore:.*diverged")
@pytest.mark.parametrize(("name", "setting"), CASES)
def test_no_setting_is_ignored(name, setting):
    company = NEEDS.get(setting, {}) | ALSO_NEEDS.get((name, setting), {})
    before = SHORT.get(name, {}) | {key: own for key, own in company.items() if hasattr(method_class(name), key)}
    value = SPECIAL.get((name, setting), OTHERS.get(setting))
    value = another(name, before, setting) if value is None else value
    task = {"prior": None} if setting == "weight_decay" and name not in NEEDS_PRIOR else {}
    assert getattr(make_method(name, **before), setting) != value, "another value than before was needed"
    if (name, setting) in REFUSED:
        with pytest.raises(SettingError, match=setting):
            fingerprint(name, before | {setting: value}, **task)
    else:
        changed = differ(fingerprint(name, before, **task), fingerprint(name, before | {setting: value}, **task))
        assert changed == ((name, setting) not in SAME), f"{name} ignores {setting}"


@pytest.mark.filterwarnings("ignore:SWAG took", "ignore:.*diverged")
@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0.25), ("num_data", 320), ("prior", be.NormalPrior(std=0.2))]
)
@pytest.mark.parametrize("name", METHODS)
def test_no_method_ignores_what_the_task_says(name, option, value):
    settings = SHORT.get(name, {})
    if hasattr(method_class(name), "optimizer"):  # steps of adam have one size, whatever gradients are multiplied by
        settings = settings | {"optimizer": "sgd", "learning_rate": 0.05}
    changed = differ(fingerprint(name, settings), fingerprint(name, settings, **{option: value}))
    assert changed, f"{name} ignores {option}"


# --- what settings take ---


OWNERS = {method_class(name) for name in METHODS} | {be.WeightSpace, be.FunctionSpace}
over_settings = pytest.mark.parametrize("cls", sorted(OWNERS, key=lambda cls: cls.__name__))


def limits_of(cls: type):
    """Each setting with the kinds of values that it takes, such as int and None, and its limits."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield field, get_args(hints[field.name]) or (hints[field.name],), field.metadata["limits"]


def just_outside(limits, whole: bool):
    """The numbers nearest to an interval that are not in it; and those that no bounded setting takes."""
    for end, closed, away in zip(
        limits.ends, (limits.within[0] == "[", limits.within[-1] == "]"), (-1, 1), strict=True
    ):
        if math.isfinite(end):
            beyond = int(end) + away if whole else math.nextafter(end, away * math.inf)
            yield beyond if closed else int(end) if whole else end
    yield from (math.nan, math.inf, -math.inf)


@over_settings
def test_every_number_has_bounds_and_every_text_is_a_choice(cls):
    for field, kinds, limits in limits_of(cls):
        inside = [one for kind in kinds if get_origin(kind) in (tuple, list) for one in get_args(kind)]
        assert bool(limits.within) == any(kind in (int, float) for kind in (*kinds, *inside)), field.name
        assert bool(limits.choices) == (str in kinds and field.name != "select"), field.name


@over_settings
def test_a_number_just_outside_its_bounds_is_refused_by_its_name(cls):
    for field, kinds, limits in limits_of(cls):
        for value in just_outside(limits, float not in kinds) if limits.within else ():
            with pytest.raises(SettingError, match=rf"^{field.name} is .*, got {value!r}$"):
                cls(**{field.name: value})


@over_settings
def test_a_text_that_is_no_choice_is_refused_by_its_name(cls):
    for field, _, limits in limits_of(cls):
        if limits.choices:
            words = ".*".join(map(repr, limits.choices))
            with pytest.raises(SettingError, match=f"^{field.name} is {words}.*, got 'nonsense'$"):
                cls(**{field.name: "nonsense"})


@over_settings
def test_numbers_of_numpy_serve_as_those_of_python(cls):
    kinds = {int: np.int64, float: np.float32}
    plain = {field.name: field.default for field, _, _ in limits_of(cls) if type(field.default) in kinds}
    plain = {key: float(np.float32(value)) if type(value) is float else value for key, value in plain.items()}
    made = cls(**{key: kinds[type(value)](value) for key, value in plain.items()})
    assert made == cls(**plain)
    assert settings.dump(made) == settings.dump(cls(**plain))
