import dataclasses
import json

import pytest
import torch

from bayesemble.core import settings
from bayesemble.core.errors import SettingError
from bayesemble.core.settings import setting
from bayesemble.execute.schedules import SCHEDULES, Cosine, Step
from bayesemble.task.likelihoods import LIKELIHOODS, Gaussian
from bayesemble.task.priors import PRIORS, LaplacePrior, NormalPrior


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = setting(3, "how large")


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner | str = dataclasses.field(default="none")
    shares: tuple[float, ...] = setting((0.1, 0.2), "some shares")
    names: dict[str, float] | None = dataclasses.field(default=None)
    derived: int = dataclasses.field(default=0, init=False)


def through_json(value, classes, nested=()):
    return settings.parse(json.loads(json.dumps(settings.dump(value))), classes, nested)


def test_a_field_keeps_its_default_and_its_sentence():
    (field,) = dataclasses.fields(Inner)
    assert Inner().size == 3
    assert field.metadata["help"] == "how large"


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
    assert through_json(value, [Outer], nested=[Inner]) == value


@pytest.mark.parametrize(
    "value",
    [
        *[cls() for cls in (*LIKELIHOODS, *PRIORS, *SCHEDULES.values())],
        Gaussian("learned"),
        Gaussian(0.3),
        NormalPrior({"head.*": 0.1, "*": 1.0}, scaling="fan_in"),
        NormalPrior({"name": 1.0}),
        LaplacePrior(2.0),
        Cosine(warmup=0.1, floor=0.01),
        Step((0.3, 0.6, 0.9), 0.5),
    ],
    ids=str,
)
def test_every_likelihood_prior_and_schedule_comes_back_from_json_equal(value):
    assert through_json(value, (*LIKELIHOODS, *PRIORS, *SCHEDULES.values())) == value


@pytest.mark.parametrize("value", [torch.zeros(2), {1, 2}, Inner], ids=str)
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(SettingError, match="JSON, which cannot hold"):
        settings.dump({"deep": [value]})


@pytest.mark.parametrize(
    "value", [{"class": "Gone"}, {"name": "Inner"}, {}, {"size": 1}, None, 3, "Inner", [1]], ids=str
)
def test_what_is_none_of_the_classes_is_refused_with_those_that_were_needed(value):
    with pytest.raises(SettingError, match="settings of Inner, Outer were needed, got"):
        settings.parse(value, [Outer, Inner])


def test_a_class_is_revived_only_where_it_belongs():
    with pytest.raises(SettingError, match="settings of Inner were needed, got"):
        through_json(Outer(shares=(Outer(),)), [Outer], nested=[Inner])


def test_a_field_of_another_version_is_refused():
    with pytest.raises(SettingError, match=r"settings of Inner do not fit this version.*colour"):
        settings.parse({"class": "Inner", "colour": "red"}, [Inner])


def test_values_are_checked_again_when_they_come_back():
    with pytest.raises(SettingError, match="noise"):
        settings.parse({"class": "Gaussian", "noise": -1.0}, LIKELIHOODS)


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
