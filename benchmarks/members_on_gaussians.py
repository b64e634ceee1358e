"""Where twenty repelled members rest on a Gaussian posterior: the table of calibrations in docs/repulsion.md.

    python benchmarks/members_on_gaussians.py --dims 10,50,200

The trace of the members' covariance over the true one, after 2,000 steps of Adam from draws of the posterior. "log 2"
has variances log-uniform over two decades, "MP 2" is the spectrum of linear regression with two rows per weight.
"""

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bayesemble.methods.repulsion import density_scores
from bayesemble.methods.repulsion.interacting import products
from bayesemble.methods.repulsion.kernels import RBF, distances_of_gram

MEMBERS, STEPS = 20, 2000
SPECTRA = ("equal", "log 1", "log 2", "log 4", "MP 10", "MP 2")
CALIBRATIONS = ("none", "rescaled", "whitened", "share 1", "share 0.5")


def variances(spectrum: str, dim: int) -> Tensor:
    kind, _, number = spectrum.partition(" ")
    if kind == "equal":
        return torch.ones(dim, dtype=torch.float64)
    if kind == "log":
        return torch.logspace(0, -float(number), dim, dtype=torch.float64)
    x = torch.randn(int(number) * dim, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return 1 / torch.linalg.eigvalsh(x.T @ x)


def density_score(x: Tensor, calibration: str) -> Tensor:
    gram, dim = products([x])
    axes = density_scores.principal_axes(gram, dim)
    if calibration in ("none", "rescaled"):
        matrix = density_scores.score_matrix(distances_of_gram(gram), "kde", RBF())
    else:
        inner, back = density_scores.whitened(axes)
        matrix = density_scores.score_matrix(distances_of_gram(inner), "kde", RBF()) @ back
    if calibration == "none":
        return matrix @ x
    _, is_share, share = calibration.partition("share ")
    held = density_scores.effective_dimension(axes, dim, float(share)) if is_share else dim
    return density_scores.calibrate(matrix, gram, held) @ x


def ratio(spectrum: str, dim: int, calibration: str) -> float:
    true = variances(spectrum, dim)
    x = torch.randn(MEMBERS, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * true.sqrt()
    optimizer = torch.optim.Adam([x.requires_grad_()], lr=0.05 * float(true.mean().sqrt()))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        with torch.no_grad():
            x.grad = x / true + density_score(x, calibration)
        optimizer.step()
        schedule.step()
    return float((x - x.mean(0)).square().sum().detach() / MEMBERS / true.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="10,50,200")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dims = [int(dim) for dim in arguments.dims.split(",")]
    table = Table("calibration", "spectrum", *(f"d = {dim}" for dim in dims))
    for calibration in CALIBRATIONS:
        for spectrum in SPECTRA:
            table.add_row(calibration, spectrum, *(f"{ratio(spectrum, dim, calibration):.2f}" for dim in dims))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
