import json
import math

import pytest

from bayesemble.apps.tables.evaluation import Evaluation
from bayesemble.core.errors import SettingError
from bayesemble.core.files import json_text


def test_it_comes_back_from_json_without_what_does_not_apply():
    plain = Evaluation(rows=3, scores={"rmse": 1.5}, baseline={"says": 2.0, "rmse": 3.0}, words="Good.")
    assert list(plain.to_json()) == ["rows", "unlike", "scores", "baseline", "words"]
    whole = Evaluation(rows=3, unlike=1, scores={}, baseline={}, chance_ece=0.1, words="", notes=["a note"])
    for evaluation in (plain, whole):
        assert Evaluation.from_json(json.loads(json_text(evaluation.to_json()))) == evaluation


def test_scores_that_are_not_finite_survive_json_as_undefined():
    written = json_text(Evaluation(rows=3, scores={"nll": math.inf, "ece": 0.5}, baseline={}).to_json())
    assert json.loads(written)["scores"] == {"nll": None, "ece": 0.5}
    read = Evaluation.from_json(json.loads(written))
    assert math.isnan(read.scores["nll"])
    assert read.scores["ece"] == 0.5


@pytest.mark.parametrize("change", [{"rows": "3"}, {"scores": {"rmse": "low"}}, {"words": None}, {"notes": "one"}])
def test_what_is_damaged_is_refused(change):
    with pytest.raises(SettingError):
        Evaluation(**({"rows": 3, "scores": {}, "baseline": {}} | change))
