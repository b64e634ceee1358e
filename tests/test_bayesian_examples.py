"""The examples of priors and of random labels run, and show what they say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_evidence_of_random_labels_is_lower_though_they_are_fitted(capsys):
    true, random = example("random_labels").main(rows=60, epochs=150, shares=(0.0, 1.0))
    assert min(true["train"], random["train"]) > 0.9
    assert true["evidence"] > random["evidence"] + 0.5
    assert true["test"] > 0.6 > 0.3 > random["test"]
    assert "log evidence per row" in capsys.readouterr().out


def test_a_prior_is_matched_to_a_process_and_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    example("match_prior").main(str(tmp_path / "prior.png"), num=60, steps=15)
    assert (tmp_path / "prior.png").stat().st_size > 10_000
    before, after = (float(word) for word in capsys.readouterr().out.split()[1:4:2])
    assert after < 0.1 * before


def test_the_learned_prior_is_drawn_and_told_of(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    example("learned_prior").main(str(tmp_path / "prior.png"), epochs=60)
    assert (tmp_path / "prior.png").stat().st_size > 5_000
    told = capsys.readouterr().out
    assert "are of maximum likelihood" in told
    assert "are MAP points" in told
