"""A calibrated run: what it predicts, serves and writes are the numbers of its ensemble's calibration."""

import csv

import numpy as np
import pytest

from bayesemble.apps.serve.answers import open_model
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.rows import chunk_of_rows
from bayesemble.apps.serve.watch.table import watch_table
from bayesemble.apps.tables.calibration import calibrate_table
from bayesemble.apps.tables.export import export_table
from bayesemble.apps.tables.profile import read_profile
from bayesemble.apps.tables.run import fit_table, inputs_of, open_table, predict_table, rows_with_targets
from bayesemble.apps.tables.score import SEPARATOR, score
from bayesemble.core.errors import BayesembleError
from served_tables import draw_rows, make_run, write_csv

ROWS = draw_rows(60, 7)


@pytest.fixture(scope="module", params=["price", "kind"])
def run(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("calibrated")
    before = make_run(place, request.param)
    file = write_csv(place / "later.csv", draw_rows(300, 11), request.param)
    calibrate_table(before.folder, file, level=0.8, risk=0.3 if request.param == "kind" else None)
    return open_table(before.folder)


@pytest.fixture(scope="module")
def expected(run, tmp_path_factory):
    """Predictions of the calibrated ensemble itself."""
    file = write_csv(tmp_path_factory.mktemp("rows") / "rows.csv", ROWS, run.schema.target.name)
    encoded = rows_with_targets(run.schema, file, [])
    return run.ensemble.calibration, run.ensemble.predict(inputs_of(encoded))


def check(run, expected, cells, tolerance=1e-4):
    """Whether rows of a table of predictions are what the calibrated ensemble says."""
    calibration, predictive = expected
    if run.schema.target.name == "price":
        intervals, (shift, scale) = calibration.intervals(predictive), (run.schema.target.mean, run.schema.target.scale)
        for name, values in (("low", intervals.low), ("high", intervals.high), ("mean", predictive.mean)):
            found = np.array([float(row[name]) for row in cells])
            np.testing.assert_allclose(found, shift + scale * values.double().numpy(), atol=tolerance * scale)
        return
    np.testing.assert_allclose([float(row["p_dear"]) for row in cells], predictive.probs[:, 1], atol=tolerance)
    names = np.array(run.schema.target.categories, dtype=object)
    masks = calibration.sets(predictive).mask.numpy()
    assert [row["set"] for row in cells] == [SEPARATOR.join(names[mask]) for mask in masks]
    assert [row["abstain"] == "true" for row in cells] == calibration.decide(predictive).abstain.tolist()


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_that_is_opened_again_predicts_as_calibrated(run, expected, tmp_path):
    predict_table(run, write_csv(tmp_path / "rows.csv", ROWS, None), tmp_path / "out.csv")
    check(run, expected, read(tmp_path / "out.csv"))
    assert run.ensemble.calibration.level == 0.8


def test_a_service_answers_as_calibrated(run, expected):
    calibration, predictive = expected
    model = open_model(str(run.folder), Options(), "1")
    answers = model.answer(chunk_of_rows(ROWS, model.schema, 1000)).answers
    assert model.level == 0.8
    if run.schema.target.name == "price":
        check(run, expected, [{**one, "mean": one["prediction"]} for one in answers])
        return
    cells = [
        {"p_dear": one["probabilities"]["dear"], "set": SEPARATOR.join(one["set"]), "abstain": "true"}
        for one in answers
    ]
    unsure = calibration.decide(predictive).abstain.tolist()
    assert [one["abstain"] for one in answers] == [a or one["unlike"] for a, one in zip(unsure, answers, strict=True)]
    check(run, expected, [cell | {"abstain": str(a).lower()} for cell, a in zip(cells, unsure, strict=True)])


def test_a_model_that_is_exported_is_calibrated(run, expected, tmp_path):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    export_table(run, tmp_path / "model")
    score(tmp_path / "model", write_csv(tmp_path / "rows.csv", ROWS, None), tmp_path / "out.csv")
    check(run, expected, read(tmp_path / "out.csv"))


def test_wishes_that_do_not_go_with_the_calibration_are_refused(run, tmp_path):
    with pytest.raises(BayesembleError, match=r"calibrated at level 0\.8, got level=0\.9"):
        open_model(str(run.folder), Options(level=0.9), "1")
    with pytest.raises(BayesembleError, match=r"calibrated at level 0\.8"):
        export_table(run, tmp_path / "model", level=0.5)
    if run.schema.target.name == "kind":
        with pytest.raises(BayesembleError, match=r"calibrated for a risk of 0\.3"):
            open_model(str(run.folder), Options(max_risk=0.1), "1")
    with pytest.raises(BayesembleError, match="rows that were not trained on"):
        calibrate_table(run.folder, run.description.request.file)
    with pytest.raises(BayesembleError, match="calibrated run, which `fit` would undo"):
        fit_table(run.description.request, run.folder)


def test_what_is_watched_is_the_doubt_of_calibrated_predictions(run, tmp_path):
    profile, note = read_profile(run.folder, run.description)
    assert note == ""
    assert profile.held_out == 150
    found = watch_table(run, write_csv(tmp_path / "new.csv", draw_rows(500, 5), run.schema.target.name))
    assert found.alarms == []
