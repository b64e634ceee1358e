import json

import numpy as np
import pytest

from bayesemble.apps.tables.profile import (
    PROFILE,
    Histogram,
    column_values,
    doubts_of,
    losses_of,
    read_profile,
    surprises_of,
    targets_of,
)
from bayesemble.apps.tables.run import open_table
from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.files import read_json, write_json
from bayesemble.data.table_files import read_rows
from served_tables import draw_rows, make_run, write_csv


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("profile"), "price")


def test_shares_at_edges_are_those_of_the_values():
    values = np.random.default_rng(0).normal(size=1_000).astype(np.float32)
    found = Histogram.of(np.concatenate([values, [np.nan, np.nan]]), most_edges=50)
    assert len(found.edges) == 50
    upto = np.cumsum(found.counts)
    assert upto[0] == 2
    for edge, count in zip(found.edges, upto[1:], strict=False):
        assert count == 2 + (values <= edge).sum()
    assert found.counts[-1] == 0
    assert found.quantile(found.counts, 0.5) == pytest.approx(np.median(values), abs=0.06)


def test_other_values_fall_where_they_belong():
    found = Histogram.of(np.array([1.0, 2.0, 3.0]))
    others = np.array([np.nan, 0.0, 1.0, 1.5, 3.0, 9.0, np.inf, -np.inf])
    assert found.count(others).tolist() == [1, 3, 1, 1, 2]


def test_categories_are_counted_by_their_numbers():
    found = Histogram.of_codes(np.array([1, 1, 3]), 4)
    assert found.counts.tolist() == [0, 2, 0, 1]
    assert found.count(np.array([0, 3])).tolist() == [1, 0, 0, 1]


def test_json_brings_back_the_same_bits():
    found = Histogram.of(np.random.default_rng(0).normal(size=200).astype(np.float32) * 1e-3)
    again = Histogram.from_json(json.loads(json.dumps(found.to_json())))
    assert np.array_equal(found.edges, again.edges)
    assert np.array_equal(found.counts, again.counts)


@pytest.mark.parametrize("damage", [{"counts": [1, -1]}, {"edges": [2.0, 1.0], "counts": [1] * 4}, {"edges": [1.0]}])
def test_a_histogram_that_is_not_whole_is_refused(damage):
    with pytest.raises(SettingError):
        Histogram.from_json({"edges": None, "counts": [1, 2]} | damage)


def test_columns_are_those_of_the_rows(run, tmp_path):
    rows = draw_rows(50, 3)
    chunk = next(read_rows(write_csv(tmp_path / "rows.csv", rows, "price")))
    values = column_values(run.schema, run.schema.encode(chunk))
    by_name = {column.name: column for column in run.schema.columns}
    for name in ("size", "width"):
        expected = [(row[name] - by_name[name].mean) / by_name[name].scale for row in rows]
        assert np.allclose(values[name], expected, atol=1e-5)
    labels = ("?", *by_name["city"].categories)
    assert [labels[code] for code in values["city"]] == [row["city"] or "" for row in rows]


def test_the_profile_is_of_rows_that_were_not_trained_on(run):
    profile, why = read_profile(run.folder, open_table(run.folder).description)
    assert why == ""
    assert profile.held_out == run.description.evaluation.rows
    assert {one.counts.sum() for one in profile.columns.values()} == {run.schema.num_rows}
    assert {one.counts.sum() for one in profile.doubt.values()} == {profile.held_out}
    assert profile.surprise.counts.sum() == profile.held_out == len(profile.pairs)


def test_surprise_and_losses_are_those_of_the_scores(run, tmp_path):
    chunk = next(read_rows(write_csv(tmp_path / "rows.csv", draw_rows(60, 4), "price")))
    encoded = run.schema.encode(chunk)
    predictive, targets = run.predict(encoded), targets_of(run.schema, encoded)
    scores = run.evaluate([encoded], "").scores
    assert surprises_of(predictive, targets).mean() == pytest.approx(scores["nll"], rel=1e-6)
    assert np.sqrt(np.square(losses_of(predictive, targets)).mean()) == pytest.approx(scores["rmse"], rel=1e-6)
    doubts = doubts_of(predictive)
    assert (doubts["std"] >= doubts["epistemic_std"]).all()


def test_without_test_rows_validation_rows_serve(tmp_path):
    run = make_run(tmp_path, "kind", num=150, test=0.0)
    profile, _ = read_profile(run.folder, run.description)
    assert 0 < profile.held_out < 150


def test_runs_without_a_profile_say_so_and_damaged_ones_are_refused(tmp_path):
    run = make_run(tmp_path, "price", num=120)
    path = run.folder / PROFILE
    whole = path.read_bytes()
    path.unlink()
    assert read_profile(run.folder, run.description)[0] is None
    assert "not watched" in read_profile(run.folder, run.description)[1]
    path.write_bytes(whole.replace(b'"unlike": 0', b'"unlike": 1'))
    with pytest.raises(CheckpointError, match="damaged"):
        read_profile(run.folder, run.description)
    path.write_bytes(whole)
    values = read_json(path)
    for change in ({"of": "another"}, {"columns": {}}, {"unlike": 1e9}, {"pairs": [[1, None]]}, {"format": 2}):
        write_json(path, values | change)
        if "of" in change:
            assert "another state" in read_profile(run.folder, run.description)[1]
        else:
            with pytest.raises(CheckpointError):
                read_profile(run.folder, run.description)
