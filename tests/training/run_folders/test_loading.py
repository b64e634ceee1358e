import pytest
import torch
from torch import nn

import bayesemble as be
from helpers import quick_fit, table


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (be.Gaussian(noise=0.5), 1, "real"),
        (be.Gaussian(noise="learned"), 1, "real"),
        (be.HeteroscedasticGaussian(), 2, "real"),
        (be.HeteroscedasticStudent(degrees=7), 2, "real"),
        (be.Poisson(), 1, "count"),
        (be.Bernoulli(), 1, "label"),
        (be.Categorical(), 2, "label"),
    ],
    ids=repr,
)
def test_every_likelihood_survives_saving_and_loading(likelihood, outputs, targets, tmp_path):
    def make():
        return nn.Linear(4, outputs)

    x, label = table()
    y = {"real": x[:, 0], "count": x[:, 0].abs().round(), "label": label}[targets]
    prior = be.NormalPrior(std={"weight": 0.5, "*": 2.0}, scaling="fan_in")
    ensemble = quick_fit(be.Task(make, likelihood, prior, temperature=0.5), (x, y))
    ensemble.save(tmp_path)
    loaded = be.load(tmp_path, make)
    assert (loaded.task.likelihood, loaded.task.prior, loaded.task.temperature) == (likelihood, prior, 0.5)
    assert torch.equal(loaded.predict(x).log_prob(y), ensemble.predict(x).log_prob(y))
    assert loaded.history == ensemble.history


def test_the_name_of_the_output_is_saved_a_function_is_asked_for_again(tmp_path):
    class Wrapped(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}

    def make():
        return Wrapped(4, 2)

    x = table()[0]
    named = quick_fit(be.Task(make, be.Categorical(), output="logits"), table())
    named.save(tmp_path / "named")
    assert torch.equal(be.load(tmp_path / "named", make).predict(x).probs, named.predict(x).probs)
    chosen = quick_fit(be.Task(make, be.Categorical(), output=lambda result: result["logits"]), table())
    chosen.save(tmp_path / "chosen")
    loaded = be.load(tmp_path / "chosen", make, output=lambda result: result["logits"])
    assert torch.equal(loaded.predict(x).probs, chosen.predict(x).probs)
