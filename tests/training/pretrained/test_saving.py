"""The folder of `save_pretrained`: weights of the members, the likelihood, and measured scores on the page."""

import json

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.training.pretrained.saving import write_pretrained

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


def fitted(likelihood, targets, outputs):
    given = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, outputs))
    task = be.Task(be.adapt(given, "lora", targets="0", rank=2, head="2", backbone="hub/base"), likelihood)
    return be.fit(task, be.DeepEnsemble(num_members=2), (X, targets), epochs=2, progress=False)


def test_the_page_has_the_scores_that_were_measured(tmp_path):
    y = torch.arange(20) % 2
    ensemble = fitted(be.Categorical(), y, 2).reweight([1, 3])
    ensemble.save_pretrained(tmp_path, (X, y), 5 * X, limits="Not for doses.")
    scores, page = ensemble.evaluate((X, y), 5 * X), (tmp_path / "README.md").read_text()
    for name in ("nll", "accuracy", "ece", "ood_auroc"):
        assert f"| {scores[name]:.4g} |" in page
    assert "Measured on 20 rows" in page
    assert "- Not for doses." in page
    assert "base_model: hub/base" in page
    about = json.loads((tmp_path / "ensemble.json").read_text())
    assert about["weights"] == [0.25, 0.75]
    assert about["backbone"]["sha256"] in page


def test_what_the_likelihood_learned_is_kept(tmp_path):
    ensemble = fitted(be.Gaussian(noise="learned"), X[:, 0], 1)
    write_pretrained(ensemble, tmp_path, None, None, None, "")
    (values,) = json.loads((tmp_path / "ensemble.json").read_text())["likelihood"]["learned"].values()
    (leaf,) = ensemble.task.likelihood_leaves(ensemble.state.members.params).values()
    assert torch.allclose(torch.tensor(values), leaf)


def test_foreign_rows_alone_are_refused(tmp_path):
    with pytest.raises(be.SettingError, match="pass both"):
        fitted(be.Categorical(), torch.arange(20) % 2, 2).save_pretrained(tmp_path, ood=X)
