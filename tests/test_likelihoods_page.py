"""The likelihood that docs/likelihoods.md writes out is trained, saved and loaded, and is that of the library."""

import re
import sys
from pathlib import Path
from types import ModuleType

import torch

import bayesemble as be
from bayesemble.task import likelihoods

PAGE = (Path(__file__).parents[1] / "docs" / "likelihoods.md").read_text()


def test_the_page_runs_and_its_likelihood_is_the_log_normal_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page_on_likelihoods")
    monkeypatch.setitem(sys.modules, "page_on_likelihoods", module)
    text = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    exec(compile(text, "likelihoods.md", "exec"), vars(module))
    own, ready = module.TimeToFailure(), be.LogNormal()
    outputs = torch.randn(3, 400, 2, generator=module.generator).clamp(-1, 1)
    torch.testing.assert_close(own.log_prob(outputs[0], module.y, {}), ready.log_prob(outputs[0], module.y, {}))
    weights = torch.full((3,), 1 / 3)
    ours, theirs = (one.predictive(outputs, {}, weights) for one in (own, ready))
    torch.testing.assert_close(ours.log_prob(module.y), theirs.log_prob(module.y))
    torch.testing.assert_close(ours.interval(0.9), theirs.interval(0.9))
    torch.testing.assert_close(ours.variance, theirs.variance)
    loaded = module.ensemble.predict(module.x[300:])
    torch.testing.assert_close(loaded.mean, module.predictive.mean)
    # Machines fail at exp(1 + x) times e^(normal / 2), so half of them by then.
    halves = module.predictive.quantile(0.5).log() - (1 + module.x[300:, 0])
    assert halves.abs().mean() < 0.3


def test_the_table_names_every_likelihood():
    named = set(re.findall(r"`be\.(\w+)\(", PAGE))
    ready = {name for name, kind in vars(likelihoods).items() if isinstance(kind, type)}
    assert named == ready - {"Likelihood", "Heteroscedastic"}
