"""An ensemble back from its folder, checked against the network that is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesemble import __version__
from bayesemble.core import settings
from bayesemble.core.errors import DataError
from bayesemble.core.files import understood
from bayesemble.execute.executor import Executor
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.networks import ModelSource
from bayesemble.task.priors import Prior
from bayesemble.task.task import Task
from bayesemble.training.afterwards.calibration import Calibration
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.incoming.parts import Part, parse_method
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders import recording
from bayesemble.training.run_folders.backbone import with_backbone
from bayesemble.training.run_folders.checkpoint import Checkpoint
from bayesemble.training.run_folders.probe import Probe
from bayesemble.training.run_folders.saved_members import check_members
from bayesemble.training.run_folders.standing import Standing


def load(
    folder: str | Path,
    model: ModelSource,
    *,
    output: str | Callable[[Any], Tensor] | None = None,
    unpack: Callable[[Any], Any] | None = None,
    mapped: bool = False,
) -> Ensemble:
    """Bring back an ensemble from the folder of `Ensemble.save` or of `fit(checkpoint=...)`.

    The ensemble owns its weights: whatever becomes of the folder, its predictions stay.

    Args:
        folder: The run folder.
        model: The network or factory that was trained; only its code is used, which has to compute what it did then.
        output: As for `Task`, needed again if it was a function.
        unpack: As for `Task`, needed again for loaders and streams.
        mapped: Leave the weights in the file and bring in what is used, for ensembles that do not fit into memory. The
            file must then stay as it is: if somebody overwrites it, predictions change without a word, and if somebody
            cuts it short, the process dies.
    """
    found = restore(checkpoints.read(folder, mapped).kept, model, output, str(folder), unpack)
    return replace(found, recording=recording.find(folder))


def restore(
    found: Checkpoint,
    model: ModelSource,
    output: str | Callable[[Any], Tensor] | None,
    folder: str,
    unpack: Callable[[Any], Any] | None = None,
) -> Ensemble:
    """Make an ensemble of what a checkpoint holds, checking it against the network leaf by leaf."""
    run = found.run
    with understood(f"run.json in {folder}", "does not describe a run of this library"):
        saved, probe = run["task"], Probe.from_json(run["network"])
        prior = None if saved["prior"] is None else settings.parse(saved["prior"], Prior)
        task = Task(
            model,
            settings.parse(saved["likelihood"], Likelihood),
            prior if prior is None or not prior.lacks_center else prior.centred_on(found.centers),
            temperature=saved["temperature"],
            output=output if output is not None else saved["output"],
            num_data=run.get("said_num_data"),
            targets=saved.get("targets"),
            unpack=unpack if unpack is not None or "unpack" not in saved else _forgotten,
            train_frozen=saved.get("train_frozen", True),  # runs that do not say were trained so
        ).rebind(saved, None if probe is None else probe.rows)
        method, part = parse_method(run["method"]), Part.from_json(run.get("part"))
        executor = settings.parse(run["executor"], Executor)
        known = run.get("calibration")  # runs of earlier versions say nothing of it
        calibration = None if known is None else settings.parse(known, Calibration)
        seed, execution = int(run["seed"]), str(run["execution"])
        Standing.from_json(run.get("progress"))
        versions = {"bayesemble": (run["library"], __version__), "torch": (run["torch"], torch.__version__)}
        found = with_backbone(found, task, folder)
    check_members(found.state.members, task, folder)
    if other := [f"{name} {there}, here is {here}" for name, (there, here) in versions.items() if there != here]:
        warnings.warn(f"the run was made with {' and '.join(other)}: bits may differ", stacklevel=3)
    if probe is not None:
        probe.check(task, found.kept.state.members, folder)
    state = executor.arrange(found.state)
    return Ensemble(task, method, state, executor, seed, found.history, execution, calibration=calibration, part=part)


def _forgotten(batch: Any) -> Any:
    """What stands for a function that no folder can hold."""
    raise DataError(
        "the ensemble was trained with a function for its batches, which its folder cannot hold; give it again as "
        "load(..., unpack=...)"
    )
