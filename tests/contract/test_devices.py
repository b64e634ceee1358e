"""Every method trains and predicts on a device beside the CPU that has no float64, to the numbers of the CPU."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.methods import make_method
from other_device import NAME, OtherDevice, other_device  # noqa: F401

SHORT = {
    "csgmcmc": {"cycles": 2, "samples_per_cycle": 1},
    "snapshot": {"snapshots": 2},
    "subspace": {"dim": 1, "rank": 2, "draws": 4, "start": 0.5, "snapshots": 3},
    "hmc": {"max_leapfrog": 4, "num_draws": 2},
    "swag": {"rank": 2, "draws": 4, "snapshots": 3},
}
CASES = {name: (name, SHORT.get(name, {})) for name in be.METHODS} | {
    "lion": ("deep_ensemble", {"optimizer": "lion", "num_members": 2}),
    "torch": ("deep_ensemble", {"optimizer": "rmsprop", "num_members": 2, "learning_rate": (1e-3, 1e-2), "clip": 1.0}),
    "adversarial": ("deep_ensemble", {"adversarial": 0.01, "num_members": 2}),
    "function space": ("repulsive", {"space": "function", "num_members": 3}),
    "one by one": ("repulsive", {"sequential": True, "num_members": 3}),
    "subspace by vi": ("subspace", SHORT["subspace"] | {"inference": "vi", "vi_epochs": 2}),
    "subspace under the prior": ("subspace", SHORT["subspace"] | {"prior": "task"}),
    "laplace of all weights": ("laplace", {"structure": "full", "select": "all", "predict": "samples", "draws": 3}),
    "laplace by diagonals": ("laplace", {"structure": "diag", "select": "all"}),
    "sghmc": ("csgmcmc", SHORT["csgmcmc"] | {"sampler": "sghmc"}),
}
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 2, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


def network():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


def with_dropout():
    return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.Linear(4, 2))


def trained(name, settings, device=None):
    own = {"num_members": 2} if "num_members" not in be.METHODS[name].fixed else {}
    method = make_method(name, **own | settings)
    task = be.Task(with_dropout if name == "mc_dropout" else network, be.Categorical(), be.NormalPrior())
    options = {"epochs": 4, "batch_size": None if method.full_batch else 12, "validation": (X, Y)}
    ensemble = be.fit(task, method, (X, Y), executor=be.Vmap(steps="eager"), device=device, progress=False, **options)
    return ensemble, ensemble.evaluate((X, Y, torch.arange(24)), ood=5 * X)


@pytest.mark.filterwarnings("ignore:.*diverged", "ignore:SWAG took")
@pytest.mark.parametrize("case", CASES)
def test_a_device_without_float64_gives_the_numbers_of_the_cpu(case, other_device):  # noqa: F811
    name, settings = CASES[case]
    plain, scores = trained(name, settings)
    with other_device:
        away, found = trained(name, settings, NAME)
        assert away.state.members.weights.device.type == NAME
        probs = away.predict(X).probs
    torch.testing.assert_close(probs, plain.predict(X).probs, rtol=1e-4, atol=1e-5)
    assert found == pytest.approx(scores, rel=1e-3, abs=1e-3)


def test_the_device_refuses_what_such_a_device_refuses():
    with OtherDevice():
        leaf = torch.ones(3).to(NAME)
        assert leaf.device.type == NAME
        assert leaf.cpu().tolist() == [1, 1, 1]
        for wrong in (lambda: leaf.double(), lambda: torch.zeros(2, dtype=torch.float64, device=NAME)):
            with pytest.raises(TypeError, match="the device has no float64"):
                wrong()
        with pytest.raises(RuntimeError, match="operands on two devices"):
            leaf + torch.ones(3)
