import io
import json

import pytest
from rich.console import Console

import bayesemble
from bayesemble.apps.cli.comparisons import comparison_table
from bayesemble.apps.compare.results import Comparison, Result


def test_methods_and_datasets_as_tables_and_as_json(call):
    assert "deep_ensemble" in call("methods")[1]
    assert {row["method"] for row in json.loads(call("methods", "--json")[1])} == set(bayesemble.METHODS)
    settings = {row["setting"]: row for row in json.loads(call("methods", "deep_ensemble", "--json")[1])}
    assert settings["num_members"]["default"] == "5"
    assert all(row["meaning"] for row in settings.values())
    assert settings["num_members"]["values"] == "a whole number from 1"
    assert settings["momentum"]["values"] == "a number in [0, 1)"
    of_laplace = {row["setting"]: row["values"] for row in json.loads(call("methods", "laplace", "--json")[1])}
    assert of_laplace["structure"] == "'full', 'kron' or 'diag'"
    assert of_laplace["clip"] == "a number above 0 or None"
    assert "a whole number from 1" in " ".join(call("methods", "laplace")[1].split())
    assert "digits" in call("datasets")[1]
    assert len(json.loads(call("datasets", "--json")[1])) == 7


def test_compare_prints_a_table_and_where_the_results_are(call, tmp_path):
    methods = "map,deep_ensemble:bootstrap=true"
    options = ["--data", "wine", "--methods", methods, "--epochs", "2", "--seeds", "2", "--jobs", "1"]
    options += ["--members", "2", "--out", tmp_path / "results"]
    code, out, err = call("compare", *options, columns=80)
    assert code == 0, err
    for words in ("accuracy", "NLL", "ECE", "bootstrap=true", "±", "results.json"):
        assert words in out
    assert max(len(line) for line in out.splitlines() if "results/" not in line) <= 80
    folders = sorted(path.parent.name + "/" + path.name for path in (tmp_path / "results" / "runs").glob("*/*"))
    assert folders == [
        "deep_ensemble-bootstrap=true/seed-0",
        "deep_ensemble-bootstrap=true/seed-1",
        "map/seed-0",
        "map/seed-1",
    ]
    again = call("compare", *options, "--json")[1]
    assert [row["method"] for row in json.loads(again)] == methods.split(",")


def test_seeds_that_were_trained_together_are_called_so(call, tmp_path):
    options = ["--data", "wine", "--methods", "deep_ensemble", "--epochs", "1", "--seeds", "2", "--members", "2"]
    options += ["--out", tmp_path / "results", "--together"]
    code, out, err = call("compare", *options)
    assert code == 0, err
    assert "deep_ensemble: seconds are shares of 2 runs trained together" in out
    assert json.loads(call("compare", *options, "--json")[1])[0]["together"] == 2
    code, _, err = call("compare", *options, "--jobs", "2")
    assert code == 1
    assert "trained in one process, got jobs=2" in err


def test_an_earlier_comparison_is_repeated_from_its_results(call, tmp_path):
    options = ["--data", "wine", "--methods", "map,deep_ensemble:weight_decay=0.1", "--epochs", "3", "--rows", "60"]
    options += ["--seeds", "1", "--batch-size", "32", "--jobs", "1"]
    code, out, err = call("compare", *options, "--out", tmp_path / "one")
    assert code == 1, err
    assert "deep_ensemble:weight_decay=0.1: failed: weight_decay=0.1 and the prior" in out
    config = ["--config", tmp_path / "one" / "results.json", "--jobs", "1", "--json"]
    assert call("compare", *config, "--out", tmp_path / "two")[0] == 1
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["command"] == one["command"]
    assert [row["scores"] for row in two["results"]] == [row["scores"] for row in one["results"]]
    code, _, err = call("compare", *config, "--methods", "map", "--epochs", "2", "--out", tmp_path / "three")
    assert code == 0, err
    found = json.loads((tmp_path / "three" / "results.json").read_text())["command"]
    assert found == one["command"] | {"methods": "map", "epochs": 2}, "what is given wins"


def test_a_comparison_in_which_nothing_worked_ends_with_an_error_code(call, tmp_path):
    options = ["--data", "wine", "--methods", "deep_ensemble:weight_decay=0.1", "--seeds", "1", "--jobs", "1"]
    code, out, err = call("compare", *options, "--out", tmp_path, "--json")
    assert code == 1
    assert "would both shrink the weights" in json.loads(out)[0]["failure"]
    assert "failed: weight_decay=0.1" in err


def test_a_comparison_in_which_a_method_failed_ends_with_an_error_code_and_its_report(call, tmp_path):
    options = ["--data", "wine", "--methods", "deep_ensemble:weight_decay=0.1,map", "--epochs", "1", "--seeds", "1"]
    code, out, _ = call("compare", *options, "--jobs", "1", "--out", tmp_path)
    assert code == 1
    assert "failed: weight_decay=0.1" in out
    assert "would both shrink the weights" in (tmp_path / "report.html").read_text()


def test_an_engine_that_is_not_known_is_refused(call, tmp_path):
    code, _, said = call("compare", "--backend", "spark", "--out", tmp_path)
    assert code == 1
    assert "backend is one of loky, dask, ray, submitit, got 'spark'" in said


def test_predictions_made_elsewhere_are_scored(call, tmp_path):
    (tmp_path / "own.csv").write_text("p_cat,p_dog,target\n0.9,0.1,cat\n0.2,0.8,dog\n")
    (tmp_path / "other.csv").write_text("p_cat,p_dog\n0.5,0.5\n0.45,0.55\n")
    files = [tmp_path / "own.csv", "--ood", tmp_path / "other.csv"]
    found = json.loads(call("score", *files, "--json")[1])
    assert found["accuracy"] == 1.0
    assert found["ood_auroc"] == 1.0
    shown = call("score", *files)[1]
    assert all(name in shown for name in found)
    assert "lower is better" in shown
    code, _, err = call("score", tmp_path / "missing.csv")
    assert code == 1
    assert "is not a file" in err


@pytest.mark.parametrize(
    "rows", ["target,p_a,p_b\na,0,1\nb,0,1\n", "target,mean,std\n10,0,1e-300\n"], ids=["classes", "numbers"]
)
def test_infinite_scores_are_null_in_json(call, tmp_path, rows):
    (tmp_path / "own.csv").write_text(rows)
    code, out, _ = call("score", tmp_path / "own.csv", "--json")
    assert code == 0
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["nll"] is None


def test_the_widest_table_fits_into_eighty_columns():
    scores = {"accuracy": 0.9713, "nll": 0.1123, "ece": 0.0234, "ood_auroc": 0.8765}
    label = "deep_ensemble:adversarial=0.05"
    cost = {"train_seconds": 123.4}
    results = [Result(label, seed, "", {k: v + seed / 20 for k, v in scores.items()}, cost) for seed in (0, 1)]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_table(Comparison({"data": "digits", "epochs": 20, "seeds": 2}, {}, results)))
    text = console.export_text()
    assert "…" not in text
    for words in ("accuracy ↑", "0.996±0.025", "0.137±0.025", "0.048±0.025", "0.901±0.025", "123.4", "sec"):
        assert words in text, words
