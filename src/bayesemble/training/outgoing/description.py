"""What an ensemble says of itself: as JSON for its folder, and as a table for notebooks."""

import math
from typing import Any

import torch

from bayesemble import __version__
from bayesemble.core import settings
from bayesemble.core.html import facts_table
from bayesemble.training.run_folders.backbone import describe_backbone
from bayesemble.training.run_folders.probe import describe_network


def describe(ensemble: Any) -> dict[str, Any]:
    """Task, method, settings, seeds, versions and what the network computes, as JSON."""
    task = ensemble.task
    return {
        "library": __version__,
        "torch": torch.__version__,
        "model": type(task.module).__name__,
        "task": {
            "likelihood": settings.dump(task.likelihood),
            "prior": settings.dump(task.prior),
            "temperature": task.temperature,
            "output": task.output if isinstance(task.output, str) else None,
            "num_data": task.num_data,
            "num_rows": task.num_rows,
            "output_shape": None if task.output_shape is None else list(task.output_shape),
            "stochastic": task.stochastic,
            "targets": task.targets,
            "train_frozen": task.train_frozen,
        }
        | ({} if task.unpack is None else {"unpack": True}),
        "said_num_data": task.said_num_data,
        "method": settings.dump(ensemble.method),
        "executor": settings.dump(ensemble.executor),
        "execution": ensemble.execution,
        "seed": ensemble.seed,
        "network": describe_network(task, ensemble.state.members),
        "backbone": describe_backbone(task, ensemble.state),
        "calibration": settings.dump(ensemble.calibration),
    } | ({} if ensemble.part is None else {"part": ensemble.part.to_json()})


def facts_of(ensemble: Any) -> str:
    """A small table for notebooks."""
    facts = {
        "members": f"{ensemble.num_members:,}",
        "network": f"{type(ensemble.task.module).__name__}, {ensemble.task.num_parameters:,} parameters",
        "likelihood": type(ensemble.task.likelihood).__name__,
        "prior": "flat" if ensemble.task.prior is None else type(ensemble.task.prior).__name__,
        "executor": str(ensemble.executor),
        "epochs": f"{len(ensemble.history):,}",
    }
    if ensemble.calibration is not None:
        facts["calibration"] = str(ensemble.calibration)
    if ensemble.history:
        facts["training"] = f"{sum(row['seconds'] for row in ensemble.history):.1f} s"
        losses = [loss for loss in ensemble.history[-1].get("loss", []) if math.isfinite(loss)]
        if losses:
            facts["last loss of members"] = f"{min(losses):.4g} to {max(losses):.4g}"
    return facts_table(f"Ensemble: {type(ensemble.method).__name__}", facts)
