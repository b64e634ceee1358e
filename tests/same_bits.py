"""Whether training still gives the very same bits: figures of every method, written once and compared later.

    python tests/same_bits.py write figures.json      # at the commit to compare with
    python tests/same_bits.py compare figures.json    # at any later one, on the same machine

Bits depend on the machine's matrix products, so the file is made anew on each machine. A refactoring must not change
one of them; a change of the mathematics will.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import bayesemble as be
from bayesemble.methods import METHODS, make_method

SMALL = {
    "hmc": {"max_leapfrog": 10},
    "swag": {"start": 0.3, "rank": 2},
    "subspace": {"start": 0.3, "rank": 2, "dim": 1, "draws": 6, "warmup": 1},
}
VARIANTS = {
    "deep_ensemble adversarial": ("deep_ensemble", {"adversarial": 0.1, "bootstrap": True}),
    "deep_ensemble anchored": ("deep_ensemble", {"anchored": True, "optimizer": "sgd", "learning_rate": 0.01}),
    "repulsive function": ("repulsive", {"space": "function"}),
    "repulsive sge": ("repulsive", {"estimator": "sge", "kernel": "laplace", "calibrate": False}),
    "repulsive one by one": ("repulsive", {"sequential": True}),
    "svgd function": ("svgd", {"space": "function"}),
    "ecmp learned": ("ecmp", {"mixing": "learned", "training_draws": 2}),
    "laplace diag": ("laplace", {"structure": "diag", "select": "not norm"}),
}


def data(classes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 4, generator=generator)
    y = x[:, 0] + x[:, 1] + 0.3 * torch.randn(48, generator=generator)
    return x, (y > 0).long() if classes else y


def network(dropout: float) -> nn.Module:
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)]
    if dropout:
        layers.insert(3, nn.Dropout(dropout))
    return nn.Sequential(*layers)


def plain_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def digest(*tensors: torch.Tensor) -> str:
    joined = hashlib.sha256()
    for tensor in tensors:
        joined.update(tensor.detach().contiguous().numpy().tobytes())
    return joined.hexdigest()[:16]


def trained(name: str, settings: dict, executor: str, regression: bool) -> dict:
    small = SMALL.get(name, {}) | ({} if name == "map" else {"num_members": 3}) | settings
    method = make_method(name, **small)
    if regression:
        task = be.Task(plain_network, be.Gaussian(noise=0.3), temperature=0.9)
    else:
        task = be.Task(lambda: network(0.0 if name == "hmc" else 0.2), be.Categorical())
    x, y = data(not regression)
    batch = None if name == "hmc" else 16
    fitted = be.fit(task, method, (x, y), epochs=4, batch_size=batch, executor=executor, progress=False, seed=3)
    members = fitted.state.members
    predictive = fitted.predict(x, num_draws=5)
    said = predictive.mean if regression else predictive.probs
    return {
        "weights": digest(*(members.params[key] for key in sorted(members.params))),
        "buffers": digest(*(members.buffers[key] for key in sorted(members.buffers))),
        "predictions": digest(said),
        "nll": float(be.metrics.nll(predictive, y)),
    }


def figures() -> dict[str, dict]:
    found = {}
    for label, (name, settings) in ({name: (name, {}) for name in METHODS} | VARIANTS).items():
        for executor in ("loop", "vmap"):
            for regression in (False, True):
                if regression and (name == "mc_dropout" or "adversarial" in label or "not norm" in settings.values()):
                    continue
                key = f"{label}, {executor}, {'regression' if regression else 'classes'}"
                if name in ("emp", "ecmp") and regression:
                    settings = settings | {"select": "output"}
                found[key] = trained(name, settings, executor, regression)
    return found


def main() -> int:
    action, path = sys.argv[1], Path(sys.argv[2])
    now = figures()
    if action == "write":
        path.write_text(json.dumps(now, indent=1) + "\n")
        print(f"{len(now)} trainings written")
        return 0
    before = json.loads(path.read_text())
    different = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    for key in sorted(different):
        print(f"{key}: {before.get(key)} -> {now.get(key)}")
    print(f"{len(before) - len(different)} of {len(before)} trainings give the same bits")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
