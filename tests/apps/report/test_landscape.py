"""The page of the landscape: it shows what was measured, and says what it cannot show."""

import pytest

import bayesemble as be
from bayesemble.apps.report.landscape import PARTS, Findings, Part, Subject, examine, landscape_page
from bayesemble.diagnostics import landscape
from helpers import norm_mlp, quick_fit, small_mlp, table

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def page_of(ensemble, data, train, title="A landscape"):
    subject = Subject(ensemble, data, train, resolution=4, epochs=1)
    findings = examine(subject)
    return findings, landscape_page(subject, findings, title)


def test_a_recorded_ensemble_shows_everything():
    train, data = table(), table(40, seed=1)
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), train, epochs=4, record="epoch")
    made, text = page_of(ensemble, data, train, "A landscape & more")
    assert text.count("<figure") == len(made.drawings) == 13
    assert "A landscape &amp; more" in text
    assert not made.missing
    line = landscape.path(ensemble, data, train=train)
    assert f"straight line {line.barrier:.3f}" in text
    assert "<script src" not in text
    assert not [part for part in text.split('"') if part.startswith(("http:", "https:")) and "w3.org" not in part]


def test_what_is_missing_is_said():
    x, _ = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian(0.5)), (x, x[:, :2]), be.DeepEnsemble(num_members=1))
    made, text = page_of(ensemble, (x, x[:, :2]), None)
    assert list(made.drawings) == ["sharpness"]
    for words in ("One member alone", "Training was not recorded", "this task predicts numbers"):
        assert text.count(words) == 1, "once, however many parts lack it"


def test_two_members_have_no_plane_of_three_but_all_else():
    train = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), train, be.DeepEnsemble(num_members=2))
    made, _ = page_of(ensemble, train, train)
    assert "plane_loss" not in made.drawings
    assert {"radial", "path_loss", "member_weights", "diversity"} <= made.drawings.keys()


def test_a_further_part_is_one_row(monkeypatch):
    """Only parts that lack nothing are gone through, and whoever tracks them sees which."""
    fine = Part("fine", lambda subject, findings: findings.facts.append("It is fine."))
    lacking = Part("lacking", lambda subject, findings: findings.facts.append("never"), lambda subject: "It lacks all.")
    monkeypatch.setattr("bayesemble.apps.report.landscape.PARTS", (lacking, fine))
    seen = []

    def track(parts):
        for part in parts:
            seen.append(part.name)
            yield part

    assert examine(Subject(None, None, None, 4, 1), track) == Findings({}, ["It is fine."], ["It lacks all."])
    assert seen == ["fine"]
    assert len({part.name for part in PARTS}) == len(PARTS)
