import copy
from dataclasses import replace
from typing import Any

import pytest

from bayesemble.apps.tables.description import TABLE, Description, TableRequest, begin, read_description, read_request
from bayesemble.core import settings
from bayesemble.core.errors import BayesembleError, CheckpointError, SettingError
from bayesemble.core.files import read_json, write_json
from bayesemble.data.find_schema import find_schema
from bayesemble.data.table_files import Chunk
from bayesemble.estimators.recipe import Recipe


@pytest.fixture
def description() -> Description:
    cells = {"city": ["a", "b", "a", ""], "day": ["2024-01-01", "2024-02-01", "", "2024-05-01"], "y": list("1379")}
    schema = find_schema([Chunk("t.csv", cells, range(2, 6))], "y", "regression")
    network = {"num_numbers": 6, "category_sizes": [3], "width": 8, "depth": 1, "dropout": 0.0}
    job = TableRequest("t.csv", "y", "regression", recipe=Recipe("repulsive", {"repulsion": 0.5}, epochs=3))
    return Description(job, schema, network, 5.0, {"columns": ["city", "day", "y"], "count": 4, "sum": "00ff"})


def test_it_is_written_and_read_back(tmp_path, description):
    description.write(tmp_path / "run")
    found = read_description(tmp_path / "run")
    assert found.to_json() == description.to_json()
    assert (
        found.request == description.request == read_request(tmp_path / "run") == read_request(tmp_path / "run" / TABLE)
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == [TABLE]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": ""}, "a file with rows to learn from is needed"),
        ({"target": ""}, "the name of the target column is needed"),
        ({"task": "ranking"}, "task is 'regression', 'classification', 'count' or None, got 'ranking'"),
        ({"test": 1.0}, r"test is a number in \[0, 1\), got 1.0"),
        ({"test": -0.1}, r"test is a number in \[0, 1\), got -0.1"),
        ({"seed": 0.5}, "seed is a whole number, got 0.5"),
        ({"recipe": None}, "recipe is a Recipe, got None"),
    ],
)
def test_what_cannot_be_asked_for(options, words):
    with pytest.raises(SettingError, match=words):
        TableRequest(**({"file": "t.csv", "target": "y"} | options))


DAMAGED = "is damaged|does not say how the run was made|cannot be read|is not of `bayesemble fit`"


def test_every_damaged_part_is_refused(tmp_path, description):
    description.write(tmp_path)
    good = read_json(tmp_path / TABLE)

    def refused(content: Any, read=read_description, words: str = DAMAGED) -> None:
        if isinstance(content, dict):
            write_json(tmp_path / TABLE, content)
        else:
            (tmp_path / TABLE).write_text(content)
        with pytest.raises(CheckpointError, match=words) as caught:
            read(tmp_path)
        assert TABLE in str(caught.value)

    bad = [None, [], 5, "x", -1.0, True, {}, {"class": "TableRequest"}, [1]]
    for part in ("job", "schema", "network", "baseline", "rows", "format", "stretch"):
        for value in bad:
            if (part, value) not in (("baseline", -1.0), ("format", True)):
                refused(good | {part: value})
        refused({key: value for key, value in good.items() if key != part})
    for name in ("width", "depth", "num_numbers", "category_sizes"):
        for value in (None, -1, 10**12, "x", [], 2.5):
            damaged = copy.deepcopy(good)
            damaged["network"][name] = value
            refused(damaged, words=name)
    for text in ("", "[]", "{", "\0", "[" * 100_000):
        refused(text)
        refused(text, read_request)


def test_damaged_jobs_give_a_job_or_an_error_of_ours(tmp_path, description):
    """A job that is read all the same says what stands in the file, and can be written and read again."""
    description.write(tmp_path)
    good = read_json(tmp_path / TABLE)
    tried, accepted = 0, []
    for place in ([], ["recipe"], ["recipe", "settings"]):
        for value in (None, [], 5, "x", -1.0, True, {}, [1]):
            target = good["job"]
            for name in place:
                target = target[name]
            for name in target:
                damaged = copy.deepcopy(good)
                inner = damaged["job"]
                for step in place:
                    inner = inner[step]
                inner[name] = value
                write_json(tmp_path / TABLE, damaged)
                tried += 1
                try:
                    job = read_request(tmp_path)
                except BayesembleError:
                    continue
                accepted.append(name)
                assert settings.dump(job) == damaged["job"]
    assert {"seed", "target", "file"} & set(accepted)
    assert len(accepted) < tried / 2, "most of them are refused"


def test_folders_that_hold_no_run(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a run of `bayesemble fit`: it has no table\.json"):
        read_description(tmp_path)


def test_a_place_that_cannot_be_written_to(tmp_path, description):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
        description.write(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["thesis.txt", TABLE, "checkpoint.pt"])
def test_a_folder_with_files_of_somebody_else_is_left_alone(tmp_path, description, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        CheckpointError, match=f"holds other files, such as {name}|{TABLE} is damaged or not of this library"
    ):
        begin(tmp_path, description)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_a_folder_with_hidden_files_alone_counts_as_empty(tmp_path, description):
    (tmp_path / ".gitkeep").touch()
    begin(tmp_path, description)
    assert read_description(tmp_path).request == description.request


def test_a_run_that_is_there_has_to_be_the_same(tmp_path, description):
    begin(tmp_path, description)
    begin(tmp_path, replace(description, request=replace(description.request, seed=1)))  # nothing was trained yet
    begin(tmp_path, description)
    (tmp_path / "checkpoint-000001").mkdir()
    begin(tmp_path, replace(description, request=replace(description.request, file="moved.csv")))
    other = replace(description.request, recipe=replace(description.request.recipe, settings={"repulsion": 0.7}))
    with pytest.raises(CheckpointError, match=r"holds a run with repulsion 0\.5, now it is 0\.7"):
        begin(tmp_path, replace(description, request=other))
    with pytest.raises(CheckpointError, match=r"rows of t\.csv are not those"):
        begin(tmp_path, replace(description, schema=replace(description.schema, num_rows=5)))
    (tmp_path / TABLE).unlink()
    with pytest.raises(CheckpointError, match="not of a table"):
        begin(tmp_path, description)
