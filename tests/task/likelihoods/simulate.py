"""Train a likelihood on data that it describes, and look at fresh data."""

import torch
from torch import Tensor, nn

import bayesemble as be


def coverage_on_fresh_rows(
    likelihood: be.Likelihood, outputs: int, draw, level: float = 0.8, epochs: int = 150
) -> float:
    """Coverage of rows that were not trained on, of a linear network; `draw(x, generator)` gives the targets."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.rand(num, 1, generator=generator) * 2 - 1 for num in (600, 4000)]
    (x, y), (x_new, y_new) = ((own, draw(own[:, 0], generator)) for own in rows)
    method = be.DeepEnsemble(num_members=2, learning_rate=0.05)
    task = be.Task(lambda: nn.Linear(1, outputs), likelihood, be.NormalPrior(10.0))
    ensemble = be.fit(task, method, (x, y), epochs=epochs, batch_size=600, executor="vmap", progress=False)
    return covered(ensemble.predict(x_new), y_new, level)


def covered(predictive: be.Predictive, targets: Tensor, level: float) -> float:
    """The share of targets in the interval; of counts, beyond what the level promises of the jumps, by quantiles."""
    if isinstance(predictive, be.predictive.CountPredictive):
        calibration = be.metrics.quantile_calibration(predictive, targets, [(1 - level) / 2, (1 + level) / 2])
        return float(calibration.observed[1] - calibration.observed[0])
    return be.metrics.coverage(predictive, targets, level)
