"""Randomise-then-optimise: a prior mean and targets of its own for each member."""

from dataclasses import replace

import torch

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.types import Batch, Leaves, WeightedTargets
from bayesemble.task.priors import NormalPrior
from bayesemble.task.task import BoundTask


def anchors(num_members: int, task: BoundTask, seed: int) -> dict[str, Leaves]:
    """Randomise-then-optimise: what each member's prior mean and targets are shifted by.

    A member that minimises |y + e - f|^2 / (2 s^2) + |w - a|^2 / (2 std^2), with a ~ prior and e ~ Normal(0, s^2),
    is an exact posterior draw for a linear model with known noise s; otherwise it is an approximate one. Where the
    likelihood has no fixed Gaussian noise, only the prior is randomised.

    Reference: Pearce et al. (2020), with the target noise of Bardsley et al. (2014).
    """
    if not isinstance(task.prior, NormalPrior):
        raise SettingError(f"anchored=True needs a NormalPrior to draw anchors from, the task has {task.prior}")
    if task.mixed:
        raise SettingError("anchored=True needs one architecture for all members, the task has several")
    spread = (task.temperature / task.prior_weight) ** 0.5

    def generators(name: str) -> list[torch.Generator]:
        return [seeds.generator(seed, "member", i, name) for i in range(num_members)]

    around_zero, centers = task.prior.at_zero(), task.prior.centers
    drawn = [around_zero.sample(task.shapes, generator, task.dtype) for generator in generators("anchor")]
    around = {name: torch.stack([one[name] for one in drawn]) * spread for name in task.shapes}
    slots = {"anchor": {name: leaf + centers[name].to(leaf) if centers else leaf for name, leaf in around.items()}}
    known = task.likelihood.target_noise()
    if known is not None:
        assert task.output_shape is not None  # it has met its data
        shape = (task.num_rows, *task.output_shape)
        noise = [torch.randn(shape, generator=g, dtype=task.dtype) for g in generators("target noise")]
        slots["target_noise"] = {"noise": torch.stack(noise) * known * spread}
    return slots


def with_target_noise(batch: Batch, slot: Leaves | None) -> Batch:
    """A batch with the noise of each member on its targets, if there is any."""
    if slot is None:
        return batch
    if isinstance(batch.targets, WeightedTargets):
        raise SettingError("anchored=True adds noise of one size to all targets, which rows with weights do not have")
    if batch.rows is None:
        raise SettingError("anchored=True perturbs each row's target: pass arrays, tensors or a TensorDataset")
    noise = slot["noise"]
    members = torch.arange(len(noise)).unsqueeze(1)
    rows = batch.rows if batch.rows.dim() == 2 else batch.rows.unsqueeze(0)
    return replace(batch, targets=batch.targets + noise[members, rows], targets_per_member=True)
