"""The page of a comparison: its numbers are those of results.json and of the saved runs; nothing is fetched."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from bayesemble.apps.cli.main import app
from bayesemble.apps.compare.results import Comparison, Result
from bayesemble.apps.compare.source import open_run
from bayesemble.apps.report.comparison import comparison_page
from comparisons import made, tiny

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


class Cells(HTMLParser):
    """Values and standard errors of the table, by method and score."""

    def __init__(self, text):
        super().__init__()
        self.label, self.found = None, {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if tag == "tr" and "data-label" in named:
            self.label = named["data-label"]
        if tag == "td" and "data-value" in named:
            error = named.get("data-error")
            self.found[self.label, named["data-score"]] = (
                float(named["data-value"]),
                None if error is None else float(error),
            )


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    tiny(folder, methods="map,deep_ensemble,repulsive")
    return folder, comparison_page(folder)


def test_numbers_equal_the_results_and_the_saved_runs(compared):
    folder, text = compared
    cells = Cells(text).found
    content = json.loads((folder / "results.json").read_text())
    assert len(cells) >= 2 * 6
    for row in content["summary"]:
        for name, found in row.items():
            if (row["method"], name) in cells:
                assert cells[row["method"], name] == (found["mean"], found["error"])
    for label in ("map", "deep_ensemble"):
        runs = [row for row in content["results"] if row["label"] == label]
        values = []
        for row in runs:
            ensemble, split = open_run(folder / row["run"])
            values.append(ensemble.evaluate((split.x_test, split.y_test), split.x_ood))
        for name in ("nll", "accuracy", "ece", "brier", "ood_auroc"):
            mean = sum(one[name] for one in values) / len(values)
            assert cells[label, name][0] == pytest.approx(mean, rel=1e-5), name


def test_the_page_is_complete_in_itself_and_small(compared):
    _, text = compared
    assert len(text.encode()) < 3_000_000
    links = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not [part for part in text.split('"') if part.startswith(("http:", "https:")) and "w3.org" not in part]
    assert "@import" not in text
    assert "url(http" not in text


def test_the_page_shows_all_parts_in_order(compared):
    _, text = compared
    parts = ["Verdict", "Scores and cost", 'class="switches"', "Scores over seeds", "Can its confidence be trusted?"]
    parts += ["Does it know what it does not know?", "What do members add?", "agree and disagree", "Each method"]
    places = [text.index(words) for words in parts]
    assert places == sorted(places)
    assert text.count('type="checkbox"') == 3
    assert text.count("<figure") == text.count("<figcaption>")  # each says how to read it
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "learning_rate" in text
    assert "Loss over training" in text


def test_each_method_is_described_by_its_own_run(compared):
    _, text = compared
    sections = [re.sub("<[^>]+>", " ", part) for part in text.split('<details class="method"')[1:]]
    for label, members in (("map", 1), ("deep_ensemble", 3)):
        (own,) = [part for part in sections if re.search(rf"^[^>]*>\s*{label}\b", part)]
        assert re.search(rf"Networks\s+{members} averaged", own), label
        assert re.search(rf"num_members\s+{members}\s", own), label
    (own,) = [part for part in sections if re.search(r"^[^>]*>\s*repulsive\b", part)]
    assert re.search(r"repulsion\s+0\.\d+: no prior was stated; there are [\d,]+ rows for [\d,]+ weights", own)


def changed(folder, to, change):
    shutil.copytree(folder, to)
    comparison = Comparison.read(to)
    change(comparison)
    comparison.write(to)
    return to


def test_failures_and_lost_runs_are_named(compared, tmp_path):
    """A label or a reason is text, never markup."""
    lost = Result("<b>lost</b>", 0, "runs/lost/seed-0", {"nll": 9.0}, {})
    failed = Result("laplace:subset=all", 0, "runs/laplace/seed-0", failure="needs a < b & more")
    folder = changed(compared[0], tmp_path / "copy", lambda comparison: comparison.results.extend([lost, failed]))
    text = comparison_page(folder)
    assert "<b>lost" not in text
    run = folder.resolve() / "runs/lost/seed-0"
    assert f"The figures of &lt;b&gt;lost&lt;/b&gt;: its run {run} could not be opened" in text
    assert "failed: needs a &lt; b &amp; more" in text
    assert "laplace:subset=all failed: needs a &lt; b &amp; more." in text
    assert text.count('type="checkbox"') == 4  # what failed has nothing to switch
    assert 'data-score="accuracy">' in text  # a number that is not known has no value


def test_a_comparison_without_any_run_or_result_still_has_a_page(tmp_path):
    made({"one": {"nll": [0.1, 0.2]}, "two": {"nll": [0.3, 0.5]}}).write(tmp_path)
    text = comparison_page(tmp_path)
    assert "Use one" in text
    assert text.count("could not be opened") == 2
    made({}, failed={"three": "no memory"}).write(tmp_path)
    assert "No method finished" in comparison_page(tmp_path)


def test_images_are_shown_as_images_and_single_networks_have_no_gallery(tmp_path):
    tiny(tmp_path / "many", "digits", "deep_ensemble", seeds=1)
    text = comparison_page(tmp_path / "many")
    assert len(re.findall(r'<img src="data:image/png;base64,[^"]+" alt="Test row \d+">', text)) == 12
    tiny(tmp_path / "one", "sine_gap", "map", seeds=1)
    text = comparison_page(tmp_path / "one")
    assert "agree and disagree" not in text
    assert "cannot tell" in text


def test_the_command_writes_the_page(compared, tmp_path):
    folder, text = compared
    result = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert (tmp_path / "page.html").read_text() == text  # the same folder gives the same page
    assert "page.html" in result.stdout
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code != 0


def test_seconds_that_are_shares_are_called_so(tmp_path):
    scores = {label: {"nll": [0.1, 0.2], "train_seconds": [1.0, 1.0]} for label in ("map", "many")}
    data = {"contents": {}, "num_features": 2, "image_shape": None}
    for together, said in (({"many": 2}, True), ({}, False)):
        comparison = made(scores, together=together)
        replace(comparison, data=comparison.data | data).write(tmp_path)
        text = comparison_page(tmp_path)
        assert ("Seeds of many were trained together: their seconds of training are shares" in text) == said
        assert ("up to 2 seeds: the seconds are shares, the memory is that of all" in text) == said
