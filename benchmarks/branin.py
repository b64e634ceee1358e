"""The Branin function, minimised by BoTorch with a deep ensemble as its surrogate, beside random search.

python benchmarks/branin.py                     # 10 seeds, 8 first points and 24 chosen ones, some minutes
python benchmarks/branin.py --seeds 1 --steps 4

Both ways have the same number of evaluations, and the same first points. After each evaluation an ensemble of new
networks, each time from another seed, is fitted to all values so far, standardised, and the next point is where a lower
bound on the function, the mean minus two standard deviations over networks, is least. A cell is how far the best value
lies above the minimum, 0.397887. Needs the extra `botorch`.
"""

import argparse
import math
import warnings

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.optim import optimize_acqf
from torch import Tensor, nn

import bayesemble as be

MINIMUM, FIRST = 0.397887, 8
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def branin(points: Tensor) -> Tensor:
    """Of points in the unit square, which stands for [-5, 10] x [0, 15]."""
    x, y = 15 * points[:, 0] - 5, 15 * points[:, 1]
    bowl = (y - 5.1 / (4 * math.pi**2) * x.square() + 5 / math.pi * x - 6).square()
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * x.cos() + 10


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def next_point(points: Tensor, values: Tensor, members: int, epochs: int, seed: int) -> Tensor:
    goal = -(values - values.mean()) / values.std()
    task = be.Task(network, be.Gaussian(noise=0.05))
    method = be.DeepEnsemble(num_members=members, learning_rate=0.01)
    # Inputs around 0, as wide as the networks expect.
    ensemble = be.fit(task, method, (4 * points - 2, goal), epochs=epochs, batch_size=None, seed=seed, progress=False)
    surrogate = ensemble.to_botorch()
    inside = UpperConfidenceBound(surrogate, beta=4.0)
    chosen, _ = optimize_acqf(
        lambda unit: inside(4 * unit - 2), BOUNDS, q=1, num_restarts=4, raw_samples=128, options={"maxiter": 50}
    )
    return chosen


def search(seed: int, steps: int, members: int, epochs: int) -> tuple[float, float]:
    """The best values of both ways."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(FIRST + steps, 2, generator=generator, dtype=torch.float64)
    points = drawn[:FIRST]
    torch.manual_seed(seed)  # BoTorch draws its first guesses from it
    for _ in range(steps):
        points = torch.cat([points, next_point(points, branin(points), members, epochs, 1000 * seed + len(points))])
    return float(branin(points).min()), float(branin(drawn).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=24, help="points that the surrogate chooses")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=300)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # BoTorch would rather have standardised inputs
    print("| seed | deep ensemble | random search |\n| --- | --- | --- |")
    won = 0
    for seed in range(options.seeds):
        ours, random = search(seed, options.steps, options.members, options.epochs)
        won += ours < random
        print(f"| {seed} | {ours - MINIMUM:.3f} | {random - MINIMUM:.3f} |", flush=True)
    print(f"\nbetter than random search in {won} of {options.seeds} seeds")


if __name__ == "__main__":
    main()
