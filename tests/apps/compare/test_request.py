"""What a comparison is asked for: methods as texts, and settings that are refused."""

import inspect
from dataclasses import asdict, fields

import pytest

import bayesemble as be
from bayesemble.apps.cli import comparisons
from bayesemble.apps.compare.request import DEFAULT_METHODS, Request, parse_methods, read_request
from bayesemble.core.files import write_json


def test_settings_after_a_colon_belong_to_their_method():
    methods = parse_methods("map, deep_ensemble:bootstrap=true,learning_rate=0.01,deep_ensemble:clip=1", members=7)
    assert methods == {
        "map": be.DeepEnsemble(num_members=1),
        "deep_ensemble:bootstrap=true,learning_rate=0.01": be.DeepEnsemble(
            num_members=7, bootstrap=True, learning_rate=0.01
        ),
        "deep_ensemble:clip=1": be.DeepEnsemble(num_members=7, clip=1),
    }
    assert next(iter(methods)) == "map", "in the order asked for"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no method was named; choose from map, deep_ensemble"),
        ("boosting", "unknown method 'boosting'; choose one of map"),
        ("clip=1,map", "stands before any method"),
        ("deep_ensemble:clip", "written key=value, got 'clip'"),
        ("deep_ensemble:colour=red", "has no setting 'colour'; it has num_members"),
        (
            "deep_ensemble:learning_rate=fast",
            "method 'deep_ensemble': learning_rate is a number above 0, .* got 'fast'",
        ),
        ("deep_ensemble:bootstrap=3", "method 'deep_ensemble': bootstrap is True or False, got 3"),
        ("map:num_members=4", "always has num_members=1"),
        ("map,map", "compared once"),
    ],
)
def test_a_wish_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(be.SettingError, match=message):
        parse_methods(text, members=5)


def test_every_method_that_is_compared_by_default_can_be_made():
    assert len(parse_methods(DEFAULT_METHODS, members=2)) == DEFAULT_METHODS.count(",") + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "seeds is a whole number .* got 0"),
        ({"members": 0}, "members is a whole number .* got 0"),
        ({"epochs": 0}, "epochs is a whole number .* got 0"),
        ({"batch_size": 0}, "batch_size is a whole number .* got 0"),
        ({"budget": "dollars"}, "budget is .*steps.*seconds.* got 'dollars'"),
        ({"rows": "all"}, "rows is .* got 'all'"),
        ({"record": 1}, "record is True or False, got 1"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings, message):
    with pytest.raises(be.SettingError, match=message):
        Request(**settings)


def test_a_run_of_a_method_has_what_the_method_needs():
    request = Request(data="wine", batch_size=32, rows=50, record=True)
    plain = request.source(be.DeepEnsemble(num_members=2), seed=3, epochs=7)
    assert (plain.data, plain.seed, plain.epochs, plain.rows, plain.record) == ("wine", 3, 7, 50, True)
    assert (plain.batch_size, plain.dropout) == (32, 0.0)
    assert plain.make_method() == be.DeepEnsemble(num_members=2)
    assert request.source(be.HMC(), seed=0, epochs=1).batch_size is None, "it needs all rows"
    assert request.source(be.MCDropout(), seed=0, epochs=1).dropout > 0, "it needs dropout layers"


def test_the_command_line_shows_the_defaults_of_a_request():
    shown = inspect.signature(comparisons.compare).parameters
    for field in fields(Request):
        default = None if field.name == "methods" else field.default  # too long for help
        assert shown[field.name].default == default, field.name


@pytest.mark.parametrize("command", [{"data": 3}, {"colour": "red"}, {"members": True}, {"rows": "all"}], ids=str)
def test_a_command_that_cannot_be_repeated_is_refused(tmp_path, command):
    write_json(tmp_path / "results.json", {"command": command, "data": {}, "results": []})
    with pytest.raises(be.CheckpointError, match="does not say how to repeat its comparison"):
        read_request(tmp_path)


def test_a_command_is_read_back(tmp_path):
    command = asdict(Request(data="wine", members=2, ood="digits"))
    write_json(tmp_path / "results.json", {"command": command, "data": {}, "results": []})
    assert read_request(tmp_path) == read_request(tmp_path / "results.json") == Request(**command)
