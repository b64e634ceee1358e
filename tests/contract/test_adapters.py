"""Every method of the registry trains, predicts, saves and loads adapters on a frozen backbone."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.methods import METHODS, make_method

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 4, 3, generator=GENERATOR)
Y = (X.mean((1, 2)) > 0).long()

SETTINGS = {
    "emp": {"select": "all"},
    "ecmp": {"select": "*lora_B,head.*"},
    "explicit": {"components": 2},
    "swag": {"start": 0.3, "rank": 3, "draws": 3},
    "csgmcmc": {"cycles": 1},
    "snapshot": {"snapshots": 2},
    "subspace": {"start": 0.3, "rank": 3, "dim": 2, "draws": 3},
    "laplace": {"select": "all", "structure": "diag"},
    "hmc": {"num_draws": 3, "warmup": 0.3, "max_leapfrog": 2},
}
FEWER = {"num_members": 2}


class Tiny(nn.Module):
    """One layer of attention, with dropout."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Linear(3, 6), nn.LayerNorm(6)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(6, 6) for _ in range(3))
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(6, 2)

    def forward(self, x):
        x = self.norm(self.embed(x))
        shares = (self.q_proj(x) @ self.k_proj(x).transpose(-1, -2) / 6**0.5).softmax(-1)
        return self.head(self.dropout(x + shares @ self.v_proj(x)).mean(1))


def adapted(dropout):
    with seeds.scoped(0):
        given = Tiny()
    given.dropout.p = 0.1 * dropout
    return be.adapt(given, "lora", targets="q_proj|v_proj", rank=2, head="head")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_adapters(name, tmp_path):
    model = adapted(dropout=name == "mc_dropout")
    own = {} if "num_members" in METHODS[name].fixed else FEWER
    method = make_method(name, **own, **SETTINGS.get(name, {}))
    task = be.Task(model, be.Categorical(), prior=be.NormalPrior(1.0))
    epochs, batch_size = (6, None) if method.full_batch else (6, 8)
    ensemble = be.fit(task, method, (X, Y), epochs=epochs, batch_size=batch_size, progress=False)
    state = ensemble.state
    assert set(state.members.params) == {f"{q}_proj.lora_{f}" for q in "qv" for f in "AB"} | {
        "head.weight",
        "head.bias",
    }
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen <= state.members.shared
    for leaf in frozen:
        assert state.members.buffers[leaf].data_ptr() == dict(model.named_parameters())[leaf].data_ptr()
    assert ensemble.state.members.params["q_proj.lora_B"].ne(0).any()
    expected = ensemble.predict(X)
    assert expected.probs.isfinite().all()
    ensemble.save(tmp_path / "saved")
    assert torch.equal(be.load(tmp_path / "saved", model).predict(X).probs, expected.probs)


def test_laplace_on_adapters_is_the_gaussian_of_the_curvature_by_brute_force():
    """With Gaussian noise s the posterior precision is J'J / s^2 + I, and outputs have the variances J S J'."""
    with seeds.scoped(1):
        given = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = be.adapt(given, "lora", targets="0", rank=2)
    x = X[:, 0].double()
    task = be.Task(model, be.Gaussian(noise=0.5), prior=be.NormalPrior(1.0))
    method = be.Laplace(num_members=1, select="*lora*", structure="full", learning_rate=0.05)
    ensemble = be.fit(task, method, (x, x[:, 0]), epochs=20, progress=False)
    ((params, buffers),) = ensemble.state.members.split()
    names = list(params)

    def outputs(*leaves):
        return torch.func.functional_call(model, dict(zip(names, leaves, strict=True)) | buffers, (x,))[:, 0]

    slopes = torch.autograd.functional.jacobian(outputs, tuple(params[name] for name in names))
    jacobian = torch.cat([slope.flatten(1) for slope in slopes], 1)
    covariance = torch.linalg.inv(jacobian.T @ jacobian / 0.5**2 + torch.eye(jacobian.shape[1]).double())
    expected = (jacobian @ covariance * jacobian).sum(1)
    assert torch.allclose(ensemble.predict(x).epistemic, expected, rtol=1e-6)
