import dataclasses
import inspect
import json
import math
import re

import numpy as np
import pytest
import torch

from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.core.settings import allowed, setting, validate
from bayesemble.execute.schedules import Cosine, Schedule, Step, Warmup
from bayesemble.task.likelihoods import Gaussian, Likelihood
from bayesemble.task.posterior_prior import PosteriorPrior
from bayesemble.task.priors import LaplacePrior, NormalPrior, Prior


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = setting(3, "how large")


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner | str = dataclasses.field(default="none")
    shares: tuple[float, ...] = setting((0.1, 0.2), "some shares")
    names: dict[str, float] | None = dataclasses.field(default=None)
    derived: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Checked:
    """One field of each kind that `validate` tells apart."""

    needed: str = setting(dataclasses.MISSING, "what has no default", choices=("full", "kron", "diag"))
    whole: int = setting(3, "at least 2", least=2)
    positive: float = setting(1.0, "above 0", above=0)
    share: float = setting(0.5, "a half-open interval", within="[0, 1)")
    length: str | float = setting("median", "a word or a number", choices=("median",), above=0)
    often: int | None = setting(None, "a number or nothing", least=1)
    stop: bool | str = setting("auto", "a truth or a word", choices=("auto",))
    at: tuple[float, ...] = setting((0.5,), "several", within="(0, 1)")
    scale: float | dict[str, float] = setting(1.0, "one or several by name", above=0)
    free: float = setting(0.0, "any number")
    inner: Inner = dataclasses.field(default=Inner())
    switch: bool = False
    derived: int = dataclasses.field(default="later", init=False)

    def __post_init__(self) -> None:
        validate(self)


def concrete(kind):
    """The library's own classes of a kind that can be made."""
    found = [cls for one in kind.__subclasses__() for cls in (one, *concrete(one))]
    return [cls for cls in found if not inspect.isabstract(cls) and cls.__module__.startswith("bayesemble.")]


def through_json(value, kind, nested=()):
    return settings.parse(json.loads(json.dumps(settings.dump(value))), kind, nested)


def test_a_field_keeps_its_default_and_its_sentence():
    (field,) = dataclasses.fields(Inner)
    assert Inner().size == 3
    assert field.metadata["help"] == "how large"


# --- what a field takes ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("needed", word) for word in ("full", "kron", "diag")],
        ("whole", 2),
        ("whole", 10**30),
        ("positive", math.ulp(0.0)),
        ("positive", 7),
        ("share", 0),
        ("share", math.nextafter(1, 0)),
        ("length", "median"),
        ("length", 0.1),
        ("often", None),
        ("often", 1),
        *[("stop", value) for value in ("auto", True, False)],
        ("at", ()),
        ("at", (math.ulp(0.0), 0.5)),
        ("scale", 2),
        ("scale", {}),
        ("scale", {"head.*": 1, "function": 0.5}),
        ("free", math.nan),
        ("free", -math.inf),
        ("switch", True),
    ],
    ids=str,
)
def test_values_inside_the_limits_are_kept_as_they_are(name, value):
    found = getattr(Checked(**{"needed": "full", name: value}), name)
    assert found is value or found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "values", "needed"),
    [
        ("needed", ["nonsense", "", "FULL", None, 3, True, ("full",)], "'full', 'kron' or 'diag'"),
        ("whole", [1, -2, 2.0, 2.5, "2", None, True, math.inf, math.nan], "a whole number from 2"),
        (
            "positive",
            [0, 0.0, -0.0, -math.ulp(0.0), math.nan, math.inf, -math.inf, "1", None, True],
            "a number above 0",
        ),
        ("share", [-math.ulp(0.0), 1, 1.0, math.nan, math.inf, False, None], "a number in [0, 1)"),
        ("length", [0, -1.0, math.nan, math.inf, True, None, "mean", "1"], "'median' or a number above 0"),
        ("often", [0, 0.5, 1.0, False, "1"], "a whole number from 1 or None"),
        ("stop", ["yes", 1, 0.0, None], "True, False or 'auto'"),
        ("at", [(0.0,), (0.5, 1.0), (math.nan,), ("0.5",), 0.5, None], "a tuple of numbers in (0, 1)"),
        ("scale", [0, {"a": 1.0, "b": 0.0}, {"a": True}, "1"], "a number above 0 or a dict of numbers above 0"),
        ("scale", [{1: 1.0}, {"function": 0.0}, {"function": "len"}], "a number above 0 or a dict of numbers above 0"),
        ("free", [True, "1", None, torch.tensor(1.0)], "a number"),
        ("inner", [None, 3, Inner], "an Inner"),
        ("switch", [0, 1, None, "True"], "True or False"),
    ],
)
def test_values_outside_the_limits_are_refused_with_name_need_and_value(name, values, needed):
    for value in values:
        with pytest.raises(SettingError, match=f"^{re.escape(f'{name} is {needed}, got {value!r}')}$"):
            Checked(**{"needed": "full", name: value})


@pytest.mark.parametrize("number", [np.int64(5), np.int8(5), np.uint16(5)], ids=repr)
def test_whole_numbers_of_numpy_are_whole_numbers(number):
    found = Checked("full", whole=number, positive=number, at=(), scale={"a": number})
    assert type(found.whole) is type(found.positive) is type(found.scale["a"]) is int
    assert settings.dump(found)["whole"] == 5
    with pytest.raises(SettingError, match="whole is a whole number from 2, got 1"):
        Checked("full", whole=number - number + 1)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_real_numbers_of_numpy_are_numbers_but_not_whole_ones(kind):
    found = Checked("full", share=kind(0.25), at=(kind(0.5), 0.75))
    assert (found.share, found.at) == (0.25, (0.5, 0.75))
    assert type(found.share) is type(found.at[0]) is float
    for wrong in (kind("nan"), kind("inf"), kind(1)):
        with pytest.raises(SettingError, match=r"share is a number in \[0, 1\), got (nan|inf|1.0)$"):
            Checked("full", share=wrong)
    with pytest.raises(SettingError, match=r"whole is a whole number from 2, got 3\.0"):
        Checked("full", whole=kind(3))


def test_a_truth_of_numpy_is_none():
    with pytest.raises(SettingError, match="switch is True or False, got "):
        Checked("full", switch=np.bool_(True))
    with pytest.raises(SettingError, match="whole is a whole number from 2, got "):
        Checked("full", whole=np.bool_(True))


def test_long_values_are_shortened():
    with pytest.raises(SettingError) as caught:
        Checked("full", positive="x" * 10_000)
    assert len(str(caught.value)) < 150


def test_what_each_field_takes_is_said_in_words():
    found = allowed(Checked)
    assert found["length"] == "'median' or a number above 0"
    assert list(found) == [field.name for field in dataclasses.fields(Checked) if field.name != "derived"]


def test_a_field_has_one_interval():
    with pytest.raises(TypeError, match=r"one of least, above and within, got \[0, 1\] and \(0, inf\)"):
        setting(0.5, "two of them", within="[0, 1]", above=0)


# --- JSON ---


def test_settings_are_written_by_class_name_and_fields_without_derived_ones():
    assert settings.dump(Outer(Inner(7))) == {
        "class": "Outer",
        "inner": {"class": "Inner", "size": 7},
        "shares": [0.1, 0.2],
        "names": None,
    }


@pytest.mark.parametrize(
    "value",
    [
        Outer(),
        Outer(Inner(7), shares=(), names={"head.*": 0.5}),
        Outer(shares=(Inner(1), Inner(2))),
        Outer(names={"a": Inner(1), "b": (True, None, "text")}),
    ],
    ids=str,
)
def test_nested_settings_come_back_from_json_equal(value):
    assert through_json(value, Outer, nested=[Inner]) == value


@pytest.mark.parametrize(
    "value",
    [
        *[cls() for kind in (Likelihood, Prior, Schedule) for cls in concrete(kind) if cls is not PosteriorPrior],
        PosteriorPrior.of({"w": torch.ones(2)}, {"w": torch.full((2,), 0.5)}),
        Gaussian("learned"),
        Gaussian(0.3),
        NormalPrior({"head.*": 0.1, "*": 1.0}, scaling="fan_in"),
        NormalPrior({"name": 1.0}),
        LaplacePrior(2.0),
        Cosine(warmup=0.1, floor=0.01),
        Step((0.3, 0.6, 0.9), 0.5),
        Warmup(0.2, then=Cosine(floor=0.1)),
    ],
    ids=str,
)
def test_every_likelihood_prior_and_schedule_comes_back_from_json_equal(value):
    kind = next(kind for kind in (Likelihood, Prior, Schedule) if isinstance(value, kind))
    assert through_json(value, kind, (Schedule,)) == value


@pytest.mark.parametrize("value", [torch.zeros(2), {1, 2}, Inner], ids=str)
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(SettingError, match="JSON, which cannot hold"):
        settings.dump({"deep": [value]})


@pytest.mark.parametrize(
    "value", [{"class": "Gone"}, {"name": "Inner"}, {}, {"size": 1}, None, 3, "Inner", [1]], ids=str
)
def test_what_is_none_of_the_classes_is_refused_with_those_that_were_needed(value):
    with pytest.raises(SettingError, match="settings of Inner were needed, got"):
        settings.parse(value, Inner)


def test_a_class_is_revived_only_where_it_belongs():
    with pytest.raises(SettingError, match="'Outer', which is not known here"):
        through_json(Outer(shares=(Outer(),)), Outer, nested=[Inner])


def test_a_class_of_ones_own_is_found_by_its_name_once_it_is_defined():
    @dataclasses.dataclass(frozen=True)
    class Mine(Inner):
        depth: int = 1

    assert through_json(Mine(4, 2), Inner) == Mine(4, 2)
    assert through_json(Outer(Mine(4, 2)), Outer, nested=[Inner]) == Outer(Mine(4, 2))


def test_of_two_classes_with_one_name_the_librarys_own_is_taken_else_the_newer():
    impostor = dataclasses.make_dataclass("Cosine", [], bases=(Schedule,), frozen=True)
    assert type(through_json(Cosine(0.1), Schedule)) is Cosine is not impostor
    made = [dataclasses.make_dataclass("Twice", [], bases=(Inner,), frozen=True) for _ in range(2)]
    assert type(through_json(made[1](), Inner)) is made[1]


def test_a_field_of_another_version_is_refused():
    with pytest.raises(SettingError, match=r"settings of Inner do not fit this version.*colour"):
        settings.parse({"class": "Inner", "colour": "red"}, Inner)


def test_values_are_checked_again_when_they_come_back():
    with pytest.raises(SettingError, match="noise"):
        settings.parse({"class": "Gaussian", "noise": -1.0}, Likelihood)


def test_require_raises_only_when_the_condition_fails():
    settings.require(True, "fine")
    with pytest.raises(SettingError, match="too small"):
        settings.require(False, "too small")


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-0.5", -0.5), ("1e-3", 0.001), ("True", True), ("false", False), ("none", None), ("rbf", "rbf")],
)
def test_what_a_person_writes_becomes_a_value(text, value):
    found = settings.parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_function_is_named_but_not_saved():
    assert settings.dump({"points": len}) == {"points": {"function": "len"}}
