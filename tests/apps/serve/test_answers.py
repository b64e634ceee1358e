from dataclasses import replace

import numpy as np
import pytest

from bayesemble.apps.serve.answers import BLOCK, abstention, open_model, smallest_set
from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.rows import chunk_of_rows
from bayesemble.apps.tables.profile import read_profile
from bayesemble.apps.tables.run import predict_table
from bayesemble.core.errors import BayesembleError
from served_tables import draw_rows, write_csv

ROWS = draw_rows(150, 7)


@pytest.mark.parametrize("target", ["price", "kind"])
def test_an_answer_is_the_same_bits_alone_and_among_others(models, target):
    model = models[target]
    together = model.answer(chunk_of_rows(ROWS, model.schema, 1000)).answers
    order = np.random.default_rng(0).permutation(len(ROWS))
    shuffled = model.answer(chunk_of_rows([ROWS[i] for i in order], model.schema, 1000)).answers
    assert [shuffled[place] for place in np.argsort(order)] == together
    for i in (0, 1, BLOCK - 1, BLOCK, 149):
        assert model.answer(chunk_of_rows([ROWS[i]], model.schema, 1000)).answers == [together[i]]


@pytest.mark.parametrize("target", ["price", "kind"])
def test_answers_are_those_of_predict(models, runs, tmp_path, target):
    import csv

    model, file = models[target], write_csv(tmp_path / "rows.csv", ROWS, None)
    predict_table(runs[target], file, tmp_path / "out.csv", level=0.9)
    answers = model.answer(chunk_of_rows(ROWS, model.schema, 1000)).answers
    with (tmp_path / "out.csv").open() as opened:
        for row, answer in zip(csv.DictReader(opened), answers, strict=True):
            if target == "kind":
                assert row["prediction"] == answer["prediction"]
                assert float(row["p_dear"]) == pytest.approx(answer["probabilities"]["dear"], abs=1e-5)
                assert float(row["epistemic"]) == pytest.approx(answer["epistemic"], abs=1e-5)
            else:
                for there, here in (("mean", "prediction"), ("low", "low"), ("high", "high"), ("std", "std")):
                    assert float(row[there]) == pytest.approx(answer[here], rel=1e-4)
            assert (row["unlike"] == "true", row["why"]) == (answer["unlike"], answer["why"])


def test_a_row_unlike_the_training_says_why(models):
    model = models["price"]
    rows = [ROWS[0], ROWS[0] | {"size": 1e6, "city": "Atlantis"}]
    usual, odd = model.answer(chunk_of_rows(rows, model.schema, 10)).answers
    assert (usual["unlike"], usual["why"]) == (False, "")
    assert odd["unlike"]
    assert "'size'" in odd["why"]
    assert "'Atlantis' is not in the training data" in odd["why"]


def test_sets_hold_the_level():
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    assert smallest_set(shares, 0.5) == ["a"]
    assert smallest_set(shares, 0.6) == ["a", "b"]
    assert smallest_set(shares, 0.9) == ["a", "b", "c"]


def test_the_chosen_risk_is_kept_on_the_rows_it_was_fitted_on(runs):
    run = runs["kind"]
    profile, _ = read_profile(run.folder, run.description)
    rule = abstention(run.schema, profile, Options(max_risk=0.4))
    doubt, wrong = np.array(profile.pairs).T
    answered = doubt < rule.threshold
    assert answered.any()
    assert wrong[answered].mean() == pytest.approx(rule.expected_risk)
    assert rule.expected_risk <= rule.risk_bound <= 0.4
    model = open_model(str(run.folder), Options(max_risk=0.4), "1")
    found = model.answer(chunk_of_rows(ROWS, model.schema, 1000))
    by_rule = ~(np.asarray(found.doubts["entropy"], np.float64) < rule.threshold) | found.encoded.unlike
    assert [one["abstain"] for one in found.answers] == by_rule.tolist()
    assert all(bool(one["abstain_why"]) == one["abstain"] for one in found.answers)


def test_for_numbers_a_tolerance_says_what_is_wrong(runs):
    run = runs["price"]
    profile, _ = read_profile(run.folder, run.description)
    with pytest.raises(BayesembleError, match="tolerance"):
        abstention(run.schema, profile, Options(max_risk=0.1))
    wide = abstention(run.schema, profile, Options(max_risk=0.1, tolerance=1e6))
    assert wide.coverage == 1.0
    strict = abstention(run.schema, profile, Options(max_risk=0.1, tolerance=1e-9))
    assert strict.abstains_always


def test_no_risk_is_promised_without_rows_that_were_held_out(runs):
    profile, _ = read_profile(runs["kind"].folder, runs["kind"].description)
    for lacking in (None, replace(profile, pairs=())):
        with pytest.raises(BayesembleError, match="held out"):
            abstention(runs["kind"].schema, lacking, Options(max_risk=0.1))
