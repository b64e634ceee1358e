"""Every method of the registry as a file: what torch and onnxruntime make of it, beside `predict`.

python benchmarks/export.py                          # 17 methods, 3 networks, 2 kinds of files: some 15 minutes
python benchmarks/export.py --methods swag,laplace --networks mlp --kinds pt2

1,000 rows are run in batches of 1 (the first 100 of them), 32 and 1,000. A cell has the largest difference to `predict`
over all outputs and batches; of numbers, as a share of the largest mean or standard deviation. Of Monte Carlo dropout
it is the difference to `predict` of single rows, 100 of them. ONNX needs the extra `export`.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble import models
from bayesemble.core.types import Inputs, map_tensors
from bayesemble.methods import METHODS, make_method, method_class
from bayesemble.training.outgoing.export import Draws, predicted
from bayesemble.training.outgoing.readings import Rules, read, tolerances

NUM_ROWS, BATCHES, FEW = 1000, (1, 32, 1000), 100
SHORT = {
    "hmc": {"max_leapfrog": 5, "num_members": 2},
    "swag": {"start": 0.3, "rank": 2},
    "subspace": {"start": 0.3, "rank": 2, "dim": 1, "warmup": 1},
}


def method_of(name: str) -> be.Method:
    known = method_class(name).__dataclass_fields__
    few = {key: value for key, value in {"num_members": 3, "draws": 6}.items() if key in known}
    return make_method(name, **(few | SHORT.get(name, {}) | dict(METHODS[name].fixed)))


def networks(dropout: float) -> dict[str, tuple[be.Task, Inputs, Tensor]]:
    """Task, rows and targets of each network; the last is a regression, with intervals."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(NUM_ROWS, 8, generator=generator)
    images = torch.randn(NUM_ROWS, 3, 8, 8, generator=generator)
    kinds = torch.randint(1, 4, (NUM_ROWS, 2), generator=generator)
    labels = torch.randint(3, (NUM_ROWS,), generator=generator)
    values = flat[:, 0] + 0.3 * torch.randn(NUM_ROWS, generator=generator)

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 3))

    def table() -> nn.Module:
        return models.tabular(8, [3, 3], 2, width=32, depth=1, dropout=dropout)

    def convnet() -> nn.Module:
        return models.small_cnn(3, size=8, dropout=dropout)

    prior = be.NormalPrior(std=1.0)
    return {
        "mlp": (be.Task(mlp, be.Categorical(), prior), flat, labels),
        "convnet": (be.Task(convnet, be.Categorical(), prior), images, labels),
        "table": (be.Task(table, be.HeteroscedasticGaussian(), prior), (flat, kinds), values),
    }


def part(rows: Inputs, begin: int, size: int) -> Inputs:
    return map_tensors(lambda leaf: leaf[begin : begin + size], rows)


def run_file(path: Path, names: list[str]):
    """A function of rows that gives what the file says of them."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        return lambda rows: module(*(rows if isinstance(rows, tuple) else (rows,)))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [value.name for value in session.get_inputs()]

    def run(rows: Inputs) -> dict[str, Tensor]:
        arrays = [leaf.numpy() for leaf in (rows if isinstance(rows, tuple) else (rows,))]
        found = session.run(names, dict(zip(inputs, arrays, strict=True)))
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    return run


@torch.no_grad()
def difference(ensemble: be.Ensemble, path: Path, names: list[str], rows: Inputs) -> float:
    """The largest share by which the file and `predict` differ."""
    run, worst = run_file(path, names), 0.0
    alone = ensemble.method.keeps_dropout
    whole = part(rows, 0, FEW) if alone else rows
    expected = predicted(ensemble, whole, Draws(None, 0))
    units, values = tolerances(expected, names, 1.0), read(expected, torch.empty(0), names, Rules(0.9))
    for size in BATCHES:
        num = FEW if alone or size == 1 else NUM_ROWS
        parts = [run(part(rows, begin, min(size, num - begin))) for begin in range(0, num, size)]
        for name in names:
            found = torch.cat([one[name] for one in parts])
            worst = max(worst, float((found - values[name][:num]).abs().max()) / units[name])
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--networks", default="mlp,convnet,table")
    parser.add_argument("--kinds", default="pt2,onnx")
    options = parser.parse_args()
    kinds, wanted = options.kinds.split(","), options.networks.split(",")
    columns = [f"{network} {kind}" for network in wanted for kind in kinds]
    print(f"| method | networks | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 2)}", flush=True)
    worst, begin = 0.0, time.perf_counter()
    for name in options.methods.split(","):
        method, cells, count = method_of(name), [], 0
        for network in wanted:
            task, rows, targets = networks(0.1 if method.keeps_dropout else 0.0)[network]
            batch = None if method.full_batch else 100
            ensemble = be.fit(task, method, (rows, targets), epochs=2, batch_size=batch, progress=False)
            count = len(ensemble.module(["outputs"]).members)
            for kind in kinds:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / f"model.{kind}"
                    found = difference(ensemble, path, ensemble.export(path), rows)
                worst = max(worst, found)
                cells.append(f"{found:.0e}")
        print(f"| `{name}` | {count} | {' | '.join(cells)} |", flush=True)
    print(f"\nlargest difference {worst:.1e}, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
