"""How objects look in a notebook: a small table of facts, without matplotlib."""

import subprocess
import sys

import torch

import bayesemble as be
from helpers import quick_fit, small_mlp, table


def test_an_ensemble_shows_what_it_is():
    x, y = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y))
    text = ensemble._repr_html_()
    assert text.startswith("<table>")
    for words in ("DeepEnsemble", "Sequential, 58 parameters", "Categorical", "NormalPrior", "last loss of members"):
        assert words in text
    predictive = ensemble.predict(x)
    shown = predictive._repr_html_()
    assert "ClassPredictive" in shown
    assert f"{float(predictive.epistemic.double().mean()):.4g}" in shown
    assert "dropped" not in shown
    assert "dropped" in predictive.reduce()._repr_html_()


def test_numbers_and_texts_are_escaped():
    from bayesemble.predictive.base import facts_table

    assert "NormalPredictive" in be.Predictive.from_normal(torch.zeros(3, 5), 1.0)._repr_html_()
    assert "&lt;b&gt;" in facts_table("<b>", {"<b>": "<b>"})
    assert "<b>" not in facts_table("<b>", {"<b>": "<b>"})


def test_it_needs_no_matplotlib():
    code = (
        "import sys, torch, bayesemble as be; be.Predictive.from_normal(torch.zeros(3, 5), 1.0)._repr_html_(); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
