import csv
import datetime
import importlib.util
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesemble import METHODS
from bayesemble.apps.tables.description import TABLE, TableRequest
from bayesemble.apps.tables.known_rows import ROWS, hash_rows, in_test
from bayesemble.apps.tables.run import diagnose_table, evaluate_table, fit_table, open_table, predict_table
from bayesemble.core.errors import BayesembleError, CheckpointError, DataError, SettingError
from bayesemble.core.files import read_json, write_json
from bayesemble.data.table_files import read_rows
from bayesemble.estimators.recipe import Recipe

SHORT = {
    "ecmp": {"draws": 4},
    "swag": {"draws": 4, "rank": 2, "start": 0.5},
    "csgmcmc": {"cycles": 2, "samples_per_cycle": 1},
    "snapshot": {"snapshots": 2},
    "subspace": {"dim": 1, "rank": 2, "draws": 4, "start": 0.5},
    "hmc": {"max_leapfrog": 4, "num_draws": 2},
    "laplace": {"draws": 4},
}


def recipe(method: str = "deep_ensemble", epochs: int = 5) -> Recipe:
    members = {} if method == "map" else {"num_members": 2}
    return Recipe(method, members | SHORT.get(method, {}), epochs=epochs, width=8, depth=0)


def write_table(path, target="price", num=150, seed=0):
    """Numbers, categories, truths, dates and missing cells, and a target of some kind."""
    draw = random.Random(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "size", "city", "garden", "day", target])
        for number in range(num):
            size, city, garden = draw.gauss(100, 20), draw.choice(["Rome", "Oslo", "Bonn"]), draw.random() < 0.5
            day = datetime.date(2020, 1, 1) + datetime.timedelta(days=draw.randrange(900))
            price = size + 30 * (city == "Rome") + 10 * garden + draw.gauss(0, 5)
            cells = [f"n{number}", "" if draw.random() < 0.1 else f"{size:.3f}", "NA" if draw.random() < 0.1 else city]
            goals = {"price": f"{price:.3f}", "kind": "dear" if price > 115 else "cheap", "visits": int(size / 20)}
            writer.writerow([*cells, "yes" if garden else "no", day, goals[target]])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def table(place):
    return write_table(place / "houses.csv")


def job(table, target="price", **options):
    return TableRequest(str(table), target, **({"recipe": recipe()} | options))


@pytest.fixture(scope="module")
def fitted(table, place):
    return fit_table(job(table), place / "run")


def cells(path):
    """The columns of a whole table."""
    (chunk,) = read_rows(path)
    return chunk.columns


def held_out_of(path, seed=0, share=0.2):
    """Which rows of a table are held out."""
    (chunk,) = read_rows(path)
    return in_test(hash_rows(chunk, list(chunk.columns), seed), share)


def test_the_columns_are_learnt_from_training_rows_alone(fitted, table):
    held_out = held_out_of(table)
    kept = [float(cell) for cell, out in zip(cells(table)["price"], held_out, strict=True) if not out]
    assert fitted.schema.target.mean == pytest.approx(np.mean(kept))
    assert fitted.schema.num_rows == len(kept)
    assert fitted.description.evaluation.rows == held_out.sum()
    assert any("'id' is not used" in note for note in fitted.notes)


TASKS = {"price": "regression", "kind": "classification", "visits": "count"}


@pytest.mark.parametrize("target", TASKS)
def test_training_stops_by_rows_of_its_own_which_are_each_class_by_its_share(target, tmp_path, monkeypatch):
    def stand_in(recipe, method, network, likelihood, inputs, targets, held_out, seed, *others):
        np.testing.assert_array_equal(held_out, recipe.hold_out(method, targets, target == "kind", seed=3))
        assert 10 <= held_out.sum() < len(targets)
        raise DataError("training begins")

    monkeypatch.setattr("bayesemble.apps.tables.run.training_on", stand_in)
    table = write_table(tmp_path / "houses.csv", target)
    with pytest.raises(DataError, match="training begins"):
        fit_table(job(table, target, task=TASKS[target], seed=3), tmp_path / "run")


def test_a_run_is_opened_at_its_best_state(fitted, table):
    again = open_table(fitted.folder)
    for name, leaf in fitted.ensemble.state.members.params.items():
        assert torch.equal(leaf, again.ensemble.state.members.params[name])
    scores, before = evaluate_table(again), fitted.description.evaluation
    assert scores.scores == pytest.approx(before.scores, rel=1e-6)
    assert scores.words == before.words
    assert again.description.evaluation == before
    assert again.notes == ()


def test_an_opened_run_has_noise_as_wide_as_its_description_says(fitted, place):
    copied = place / "wider"
    shutil.copytree(fitted.folder, copied)
    replace(fitted.description, stretch=3.0).write(copied)
    found, before = (open_table(folder).ensemble.task.likelihood for folder in (copied, fitted.folder))
    assert before.stretch == fitted.description.stretch
    assert found == replace(before, stretch=3.0)


def test_scores_are_those_of_the_written_predictions(fitted, table, place):
    """RMSE, coverage and the decomposition, worked out from the files."""
    found = predict_table(open_table(fitted.folder), table, place / "all.csv", keep=["id", "price"])
    assert (found.rows, found.unlike) == (150, 0)
    assert any("'price' is in the file; it is not used" in note for note in found.notes)
    assert "id" not in "".join(note for note in found.notes if "not used" in note and "columns" in note)
    columns = cells(place / "all.csv")
    assert columns["id"] == [f"n{number}" for number in range(150)]
    assert [int(row) for row in columns["row"]] == list(range(2, 152))
    y, mean, std, low, high = (np.array(columns[name], float) for name in ("price", "mean", "std", "low", "high"))
    scores = evaluate_table(fitted, table).scores
    assert scores["rmse"] == pytest.approx(np.sqrt(np.square(y - mean).mean()), rel=1e-5)
    # The spread may put a held-out row on the very edge of its interval, which is rounded in the file.
    edge = 1e-5 * np.abs(y)
    surely, perhaps = ((low + by <= y) & (y <= high - by) for by in (edge, -edge))
    assert surely.mean() - 1e-9 <= scores["coverage_90"] <= perhaps.mean() + 1e-9
    assert (perhaps & ~surely).sum() <= 1
    parts = [np.array(columns[f"{name}_std"], float) for name in ("aleatoric", "epistemic")]
    np.testing.assert_allclose(std**2, parts[0] ** 2 + parts[1] ** 2, rtol=1e-5)
    predict_table(fitted, table, place / "half.csv", level=0.5)
    narrow = cells(place / "half.csv")
    assert (np.array(narrow["low"], float) > low).all()
    assert narrow["mean"] == columns["mean"]


def test_columns_in_any_order_and_rows_unlike_the_others(fitted, place):
    rows = "garden,extra,day,size,city\nyes,1,2021-01-01,100,Rome\nno,2,2021-01-01,9000,Paris\n,3,2021-01-01,,NA\n"
    (place / "new.csv").write_text(rows)
    found = predict_table(fitted, place / "new.csv", place / "out.csv")
    columns = cells(place / "out.csv")
    assert columns["unlike"] == ["false", "true", "true"]
    assert "'city': 'Paris' is not in the training data" in columns["why"][1]
    assert "'size': '9000' is outside" in columns["why"][1]
    assert "'garden'" in columns["why"][2]
    assert found.unlike == 2
    assert "columns that are not used: 'extra'" in found.notes
    assert list(columns)[1:7] == ["mean", "std", "aleatoric_std", "epistemic_std", "low", "high"]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_in_and_out(fitted, table, place):
    predict_table(fitted, table, place / "one.parquet", keep=["size", "city", "garden", "day"])
    predict_table(fitted, table, place / "one.csv")
    predict_table(fitted, place / "one.parquet", place / "two.parquet")
    one, two = cells(place / "one.csv"), cells(place / "two.parquet")
    np.testing.assert_allclose(np.array(one["mean"], float), np.array(two["mean"], float), rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("size,city,garden\n1,Rome,yes\n", ["lacks 'day'"]),
        ("size,city,garden,day\n100,Rome,yes,2021-01-01\nlarge,Rome,yes,2021-01-01\n", ["row 3", "'size'", "'large'"]),
        ("size,city,garden,day\n100,Rome,perhaps,2021-01-01\n", ["row 2", "'garden'", "'perhaps'"]),
        ("size,city,garden,day\n100,Rome,yes,soon\n", ["row 2", "'day'", "'soon'"]),
        ("", ["is empty"]),
    ],
)
def test_rows_that_cannot_be_predicted(fitted, place, content, words):
    (place / "bad.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        predict_table(fitted, place / "bad.csv", place / "never.csv")
    for word in words:
        assert word in str(caught.value)
    assert not (place / "never.csv").exists()


def test_what_cannot_be_honoured_is_refused(fitted, table, place):
    for options, words in (
        ({"level": 1.0}, "between 0 and 1"),
        ({"keep": ["mean"]}, "there twice"),
        ({"keep": ["id", "id"]}, "there twice"),
    ):
        with pytest.raises(SettingError, match=words):
            predict_table(fitted, table, place / "never.csv", **options)
    with pytest.raises(DataError, match="no columns 'none' to keep"):
        predict_table(fitted, table, place / "never.csv", keep=["none"])


def test_predictions_replace_neither_inputs_nor_files_of_a_run(fitted, table, place):
    rows, linked = place / "rows.csv", place / "linked.csv"
    shutil.copy(table, rows)
    linked.symlink_to(rows)
    files = [path for path in fitted.folder.rglob("*") if path.is_file()]
    assert len(files) > 4
    before = {path: path.read_bytes() for path in (table, rows, *files)}
    refused = {
        rows: "made from",
        linked: "made from",
        table: "trained on",
        **dict.fromkeys(files, "no table by its name"),
    }
    for out, words in refused.items():
        with pytest.raises(SettingError, match=f"would replace .*{words}"):
            predict_table(fitted, rows, out)
    assert {path: path.read_bytes() for path in before} == before
    beside_the_run = fitted.folder / "predictions.csv"
    for _ in range(2):
        predict_table(fitted, rows, beside_the_run)  # predictions may be renewed
    beside_the_run.unlink()


@pytest.mark.parametrize(
    ("target", "counts"), [("kind", "poisson"), ("visits", "poisson"), ("visits", "negative_binomial")]
)
def test_classes_and_counts(place, target, counts):
    table = write_table(place / f"of-{target}.csv", target)
    task, folder = "count" if target == "visits" else None, place / f"{target}-{counts}"
    run = fit_table(job(table, target, task=task, recipe=replace(recipe(), counts=counts)), folder)
    found = predict_table(open_table(folder), table, place / f"{target}.csv", keep=["id", target])
    columns, scores = cells(place / f"{target}.csv"), evaluate_table(run, table).scores
    assert found.rows == 150
    if task == "count":
        y, mean, low = (np.array(columns[name], float) for name in (target, "mean", "low"))
        assert scores["rmse"] == pytest.approx(np.sqrt(np.square(y - mean).mean()), rel=1e-5)
        assert (low == np.floor(low)).all()
        assert abs(mean.mean() - y.mean()) < 0.2 * y.mean()  # so close after a few steps: outputs start at the mean
    else:
        right = np.array(columns["prediction"]) == np.array(columns[target])
        assert scores["accuracy"] == pytest.approx(right.mean())
        probs = np.array([columns[f"p_{label}"] for label in run.schema.target.categories], float)
        np.testing.assert_allclose(probs.sum(0), 1, atol=1e-5)


def weighted_and_repeated(place, target):
    """A table whose rows count 0 to 3 times, and the same with rows repeated as often."""
    header, *rows = (line.split(",")[1:] for line in write_table(place / "all.csv", target).read_text().splitlines())
    times = [index % 4 for index in range(len(rows))]
    weighted = [[*header, "times"], *([*row, str(num)] for row, num in zip(rows, times, strict=True))]
    repeated = [header, *(row for row, num in zip(rows, times, strict=True) for _ in range(num))]
    for name, lines in (("weighted", weighted), ("repeated", repeated)):
        (place / f"{name}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    return place / "weighted.csv", place / "repeated.csv"


@pytest.mark.parametrize(("target", "task"), [("price", None), ("kind", None), ("visits", "count")])
def test_weighted_rows_are_repeated_rows(tmp_path, target, task):
    weighted, repeated = weighted_and_repeated(tmp_path, target)
    options = {"task": task, "recipe": replace(recipe(), batch_size=1000, early_stopping=False)}
    ours = fit_table(job(weighted, target, weight_column="times", **options), tmp_path / "ours")
    expected = fit_table(job(repeated, target, **options), tmp_path / "expected")
    leaves, others = (run.ensemble.state.members.params for run in (ours, expected))
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf, others[name], atol=2e-5, rtol=1e-3)
    found, twin = ours.description.evaluation, expected.description.evaluation
    assert found.scores == pytest.approx(twin.scores, rel=1e-3)
    assert found.baseline == {
        name: one if isinstance(one, str) else pytest.approx(one) for name, one in twin.baseline.items()
    }
    assert "times" not in [column.name for column in ours.schema.columns]
    opened = open_table(tmp_path / "ours")
    assert evaluate_table(opened).scores == pytest.approx(found.scores, rel=1e-4)
    assert evaluate_table(opened, weighted).scores == pytest.approx(evaluate_table(opened, repeated).scores, rel=1e-4)
    assert (
        f"{repeated} has no column 'times', by which rows count: here all count alike"
        in evaluate_table(opened, repeated).notes
    )


def test_weights_that_leave_no_row_are_refused(tmp_path):
    weighted = tmp_path / "weighted.csv"
    weighted.write_text("size,price,times\n" + "".join(f"{number},{number},0\n" for number in range(9)))
    with pytest.raises(DataError, match="no row has a weight above 0 in the column 'times'"):
        fit_table(job(weighted, weight_column="times"), tmp_path / "run")
    with pytest.raises(SettingError, match="'price' is the target, and cannot weigh the rows too"):
        job(weighted, weight_column="price")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_fitted_and_opened_again(table, place, method):
    run = fit_table(job(table, recipe=recipe(method, epochs=4)), place / f"method-{method}")
    again = evaluate_table(open_table(run.folder))
    assert again.scores == pytest.approx(run.description.evaluation.scores, rel=1e-4)


def test_an_interrupted_run_goes_on_to_the_same_result(table, place, fitted):
    def stop(words):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_table(job(table), place / "stopped", say=stop)
    with pytest.raises(CheckpointError, match="interrupted before its first checkpoint"):
        open_table(place / "stopped")
    half = job(table, recipe=recipe(epochs=3))
    assert open_table(fit_table(half, place / "half").folder).notes == ()
    again = fit_table(job(table), place / "stopped")
    assert again.description.evaluation == fitted.description.evaluation
    repeated = fit_table(job(table), place / "stopped")
    assert repeated.description.evaluation == fitted.description.evaluation
    with pytest.raises(CheckpointError, match="holds a run with epochs 5, now it is 3"):
        fit_table(half, place / "stopped")


def test_the_rows_must_be_those_that_the_run_began_with(place, fitted):
    changed = write_table(place / "changed.csv", seed=1)
    with pytest.raises(CheckpointError, match="are not those"):
        fit_table(job(changed), fitted.folder)


@pytest.fixture
def copied(fitted, table, tmp_path):
    """A run of its own with a table of its own: the run, the table, its header and its lines, and those held out."""
    rows, folder = tmp_path / "rows.csv", tmp_path / "run"
    shutil.copy(table, rows)
    shutil.copytree(fitted.folder, folder)
    request = replace(fitted.description.request, file=str(rows))
    replace(fitted.description, request=request).write(folder)
    header, *lines = rows.read_text().splitlines()
    return open_table(folder), rows, header, lines, held_out_of(rows)


def put(path, header, lines, ending="\n"):
    path.write_bytes(ending.join([header, *lines, ""]).encode())


def test_neither_order_nor_line_endings_change_the_held_out_rows(copied, fitted):
    """On pure noise, training rows among the held-out ones would make scores far too good."""
    run, table, header, lines, _ = copied
    expected = fitted.description.evaluation

    def reordered(line):
        return ",".join(reversed(line.split(",")))

    for other in ((header, sorted(lines)), (header, lines[::-1], "\r\n"), (reordered(header), map(reordered, lines))):
        put(table, *other)
        found = evaluate_table(run)
        assert (found.rows, found.notes) == (expected.rows, [])
        assert found.scores == pytest.approx(expected.scores, rel=1e-5)
        assert diagnose_table(run)[1].scores == pytest.approx(expected.scores, rel=1e-5)


def test_new_rows_are_scored_if_they_fall_to_the_held_out_ones_and_lost_ones_are_told(copied, tmp_path):
    run, table, header, lines, held_out = copied
    write_table(tmp_path / "more.csv", num=40, seed=5)
    more = (tmp_path / "more.csv").read_text().splitlines()[1:]
    put(table, header, [*lines, *more])
    num = int(held_out_of(table).sum())
    assert num > held_out.sum()
    found = evaluate_table(run)
    assert (found.rows, found.notes) == (
        num,
        [f"{num - held_out.sum()} held-out rows were not there when the run was trained"],
    )
    last = max(np.flatnonzero(held_out))
    put(table, header, [line for i, line in enumerate(lines) if i != last])
    assert evaluate_table(run).notes == [f"1 rows that were held out then are no longer in {table}"]
    put(table, header + ",more", [f"{line},{i}" for i, line in enumerate(lines)])
    assert evaluate_table(run).rows == held_out.sum(), "a further column tells nothing of the rows there were"


@pytest.mark.parametrize("examine", [evaluate_table, diagnose_table])
def test_a_table_that_lost_trained_rows_is_refused(copied, examine):
    """A trained row that comes back with one digit changed could pass for one that was never seen."""
    run, table, header, lines, held_out = copied
    first, second, *_ = np.flatnonzero(~held_out)
    without = [line for i, line in enumerate(lines) if i not in (first, second)]
    changed = [line + "1" if i == first else line for i, line in enumerate(lines)]
    for rows, count in ((without, 2), (changed, 1)):
        put(table, header, rows)
        words = rf"{count} of the {(~held_out).sum()} different rows that the run was trained on are no longer in"
        with pytest.raises(DataError, match=words):
            examine(run)
    evaluate_table(run, table)  # asked for by name, all rows are scored, and none are called held-out
    put(table, header.replace("city", "town"), lines)
    with pytest.raises(DataError, match="lacks columns that it had when the run was trained: 'city'"):
        examine(run)


def test_a_run_does_not_go_on_with_sorted_rows_or_fewer(copied):
    run, table, header, lines, _ = copied
    for rows in (sorted(lines), lines[:-1]):
        put(table, header, rows)
        with pytest.raises(CheckpointError, match="are not those that the run"):
            fit_table(run.description.request, run.folder)


def test_classes_that_training_lacks_are_left_out_of_the_scores(place):
    for rare in range(100):  # until it is held out
        lines = [f"{i},{'rare' if i == rare else 'ab'[i % 2]}" for i in range(100)]
        (place / "rare.csv").write_text("x,y\n" + "\n".join(lines) + "\n")
        held_out = held_out_of(place / "rare.csv")
        if held_out[rare]:
            break
    run = fit_table(TableRequest(str(place / "rare.csv"), "y", recipe=recipe()), place / "rare")
    assert run.schema.target.categories == ("a", "b")
    assert run.description.evaluation.rows == held_out.sum() - 1
    assert any("1 rows to be scored are left out" in note for note in run.notes)


def test_without_held_out_rows_that_is_said(place, table):
    run = fit_table(job(table, test=0.0), place / "whole")
    assert run.schema.num_rows == 150
    assert "no held-out rows" in run.description.evaluation.words
    with pytest.raises(DataError, match="name a file"):
        diagnose_table(run)


def test_members_and_weights_are_examined(fitted):
    diagnosis, scores = diagnose_table(fitted)
    assert diagnosis.num_members == 2
    assert diagnosis.num_rows == scores.rows == fitted.description.evaluation.rows
    assert "2 of 2 members are distinct" in str(diagnosis)


def test_wrong_folders_give_a_result_or_an_error_of_ours(place, fitted, table):
    """A run with any part of it missing, cut short, emptied, or from another run; an older checkpoint is not read."""
    counted = fit_table(job(write_table(place / "counts.csv", "visits"), "visits", task="count"), place / "other")
    files = [path.relative_to(fitted.folder) for path in fitted.folder.rglob("*") if path.is_file()]
    other = {path.name: path for path in counted.folder.rglob("*") if path.is_file()}
    newest, right = max(path.parts[0] for path in files if len(path.parts) > 1), evaluate_table(fitted)
    for number, file in enumerate(files):
        whole = (fitted.folder / file).read_bytes()
        for content in (None, b"", whole[: len(whole) // 2], b"\xff" * 50, b"{}", other[file.name].read_bytes()):
            folder = place / f"wrong-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(fitted.folder, folder)
            (folder / file).unlink()
            if content is not None:
                (folder / file).write_bytes(content)
            if file.parts[0] in (TABLE, ROWS, newest):
                with pytest.raises(BayesembleError):
                    evaluate_table(open_table(folder))
            else:
                assert evaluate_table(open_table(folder)).scores == right.scores
    for folder in (place, place / "none", table):
        with pytest.raises(CheckpointError, match=r"is not a run of `bayesemble fit`: it has no table\.json"):
            open_table(folder)


def test_a_network_that_is_not_that_of_the_run_is_refused(place, fitted):
    folder = place / "network"
    shutil.copytree(fitted.folder, folder)
    good = read_json(folder / TABLE)
    for name in good["network"]:
        for value in (None, -1, 1, 10**5, 10**9, "x", [], [1], 0.5, True):
            write_json(folder / TABLE, good | {"network": good["network"] | {name: value}})
            try:
                evaluate_table(open_table(folder))
            except BayesembleError:
                continue
            assert value in (None, 0.5, True, 1) or name in ("dropout", "edges")


@pytest.mark.parametrize("changed", [{"depth": 10**5}, {"width": 10**5, "depth": 1}, {"num_outputs": 10**9}], ids=str)
def test_a_network_larger_than_the_members_is_refused_before_it_is_made(tmp_path, fitted, changed):
    shutil.copytree(fitted.folder, tmp_path / "run")
    good = read_json(tmp_path / "run" / TABLE)
    write_json(tmp_path / "run" / TABLE, good | {"network": good["network"] | changed})
    with pytest.raises(CheckpointError, match=r"table\.json does not describe the network of the run: its size"):
        open_table(tmp_path / "run")


def test_a_run_folder_that_is_being_written_is_left_alone(table, tmp_path):
    def again(words):
        with ThreadPoolExecutor() as pool, pytest.raises(CheckpointError, match="is being written by process"):
            pool.submit(fit_table, job(table), tmp_path / "run").result()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_table(job(table), tmp_path / "run", say=again)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {TABLE, ROWS}
