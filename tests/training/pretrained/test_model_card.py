"""The page says what was measured, and what was not."""

from bayesemble.training.pretrained.model_card import Card

FACTS = {"network": "Base", "method": "Repulsive", "members": 3, "trained": 1234, "rows": 5000, "ood_rows": 0}


def test_without_data_it_says_that_nothing_was_measured():
    page = Card(**FACTS, backbone=None, sha256=None, scores={}, scored_rows=0).text()
    assert "Nothing was measured" in page
    assert "base_model" not in page
    assert "sha256" not in page
    assert "1,234 trained numbers, fitted to 5,000 rows" in page
    assert "range(3)" in page


def test_each_score_has_its_name_and_direction():
    page = Card(**FACTS, backbone="hub/a", sha256="ab", scores={"nll": 0.12345, "own": 2.0}, scored_rows=70).text()
    assert "| NLL | 0.1235 | lower is better |" in page
    assert "| own | 2 |" in page
    assert "Measured on 70 rows" in page
    assert "Whether foreign inputs are noticed was not measured." in page
    assert page.startswith("---\nlibrary_name: peft\nbase_model: hub/a\n")
    assert "`ab`" in page
