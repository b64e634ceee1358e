"""What comes before training: settings that go together, data that can be used, and the run itself, new or resumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.members import Members
from bayesemble.core.offload import MEMORY, Disk
from bayesemble.core.settings import require, whole
from bayesemble.core.types import in_parts, widest
from bayesemble.execute.choose import Choice, choose, wished
from bayesemble.execute.executor import Executor
from bayesemble.execute.kept_memory import give_back
from bayesemble.execute.precision import check_precision
from bayesemble.execute.ranks.team import ALONE
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.methods.geometry.batch_norm import norm_buffers
from bayesemble.methods.size import check_memory
from bayesemble.task.first_look import warn_of_scale
from bayesemble.task.starts.center import check_same_center, on_device
from bayesemble.task.starts.checks import refuse_trained
from bayesemble.task.task import BoundTask, Task
from bayesemble.training.batches import ArraySource, BatchSource, source_for
from bayesemble.training.callbacks.base import Callbacks, OnEpoch
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.epochs import kept_copy
from bayesemble.training.incoming.beginnings import begin, refuse_same_batches
from bayesemble.training.incoming.loaders import LoaderSource
from bayesemble.training.incoming.parts import Part, check_part, own_rows
from bayesemble.training.over_ranks.spreading import Spread, agreed, check_sharded, check_task
from bayesemble.training.over_ranks.states import check_common, check_same_standing, find_checkpoint
from bayesemble.training.pretrained.frozen_features import Cache, FrozenFeatures, with_features
from bayesemble.training.run import Plan, Run, settled, told_by_step
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.backbone import with_backbone
from bayesemble.training.run_folders.checkpoint import Checkpoint
from bayesemble.training.run_folders.due import Every
from bayesemble.training.run_folders.fingerprint import check_same
from bayesemble.training.run_folders.loading import restore
from bayesemble.training.run_folders.recording import FOLDER, Recording
from bayesemble.training.run_folders.standing import Standing, check_same_run
from bayesemble.training.stepping.some_members import can_be_parted


class Ready(NamedTuple):
    """A run that may begin, and what it goes through."""

    run: Run
    source: BatchSource
    held_out: BatchSource | None
    plan: Plan


def prepare(
    task: Task,
    method: Method,
    data: Any,
    *,
    epochs: int,
    batch_size: int | None = None,
    validation: Any = None,
    patience: int | None = None,
    keep_best: bool = False,
    seed: int = 0,
    executor: str | Executor | Choice = "auto",
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | str = 1,
    keep_checkpoints: int = checkpoints.KEEP,
    resume: bool = False,
    offload: str | Path | None = None,
    cache: Cache = False,
    record: str | None = None,
    on_epoch: OnEpoch | None = None,
    on_nonfinite: str = "raise",
    change: Sequence[str] = (),
    start: Ensemble | Sequence[Any] | None = None,
    precision: str | None = None,
    max_batch: int | None = None,
    callbacks: Sequence[Any] = (),
    weights: bool = False,
    members: range | None = None,
    spread: Spread | None = None,
) -> Ready:
    """Refuse settings that do not go together, and make the run, or find it. The arguments are those of `fit`.

    The executor may also be one that was chosen before, for a run like this one. `spread` says which processes hold the
    members; the method and the executor are then those of the members here.
    """
    wish = executor.executor if isinstance(executor, Choice) else executor
    epochs = whole(epochs, f"epochs must be a whole number from 0, got {epochs!r}", least=0)
    if batch_size is not None:
        words = f"batch_size must be a whole number from 1, or None for all rows, got {batch_size!r}"
        batch_size = whole(batch_size, words)
    seed = whole(seed, f"seed must be a whole number, got {seed!r}", least=None)
    if max_batch is not None:
        max_batch = whole(max_batch, f"max_batch must be a whole number of rows from 1, or None, got {max_batch!r}")
    _check_settings(validation, patience, keep_best, checkpoint, resume)
    require(epochs > 0 or validation is None, "validation is looked at after each epoch, of which epochs=0 has none")
    team = ALONE if spread is None else spread.team
    every, called = Every.parse(checkpoint_every), Callbacks(callbacks if team.is_first else (), on_epoch)
    whole(keep_checkpoints, f"keep_checkpoints must be a whole number from 1, got {keep_checkpoints!r}")
    require(record in (None, "epoch"), f"record is 'epoch' or None, not {record!r}")
    _check_method(method)
    part = None if members is None else check_part(method, members, patience, keep_best)
    if part is not None:
        method, seed = part.own_method, part.seed(seed)
    elif spread is not None and spread.part is not None:
        seed = spread.part.seed(seed)
    _check_nonfinite(method, on_nonfinite)
    change = _checked_change(method, change, resume)
    device = _usable(device, task.dtype)
    if offload is not None:
        _check_offload(offload, wish, device, checkpoint)
    source = own_rows(source_for(task, data, batch_size, weights=weights), part)
    bound = task.bind(source.num_data, source.example(), source.weight_known(task.said_num_data))
    source = source.checked(bound, training=True).to(device)
    check_sharded(bound, spread, checkpoint)
    check_task(bound, team, isinstance(source, ArraySource) and source.per_member)
    source.check_members(method.num_members)
    _check_whole(method, source.steps(batch_size), batch_size)
    check_precision(precision, bound.dtype, device)
    if max_batch is not None:
        _check_max_batch(bound, offload)
    if device.type == "cpu" and offload is None:
        check_memory(bound, method)
    if device.type != "cpu":
        bound.module.to(device)
        bound = replace(bound, prior=on_device(bound.prior, device))
    held_out = None
    if validation is not None:
        held_out = own_rows(source_for(task, validation, batch_size, shuffle=False, weights=weights), part)
        held_out = held_out.checked(bound, training=False)
        held_out.check_members(method.num_members)

    _check_cache(cache, method, [folder for folder in (offload, checkpoint) if folder is not None])
    all_members = method if spread is None or team is ALONE else spread.whole
    found = find_checkpoint(checkpoint, resume, offload is not None, all_members, team)
    used = {} if checkpoint is None else {"training": source, "validation": held_out}
    allocator = MEMORY if offload is None else Disk(offload)
    placed = replace(bound, allocator=allocator, precision=precision, max_batch=max_batch)
    plan = Plan(
        epochs,
        batch_size,
        source.steps(batch_size),
        seed,
        device,
        patience=patience,
        keep_best=keep_best,
        drop=on_nonfinite == "drop",
        folder=None if checkpoint is None else Path(checkpoint),
        checkpoint_every=every,
        keep_checkpoints=keep_checkpoints,
        callbacks=called,
        data={name: rows.fingerprint() for name, rows in used.items() if rows is not None},
        team=team,
        whole=all_members,
    )
    features, plain = None if method.changes_inputs else FrozenFeatures.of(placed, device), source
    source, held_out = with_features(source, held_out, features, cache)
    if found is None:
        begun = _members_of(start) if isinstance(start, Ensemble) else start
        run = _start(placed, method, source, executor, plan, begun, part)
    else:
        run = _resume(found, placed, method, plain, wish, plan, change, part)
    if record is not None:
        run = _with_recording(run, checkpoint)
    return Ready(run, source, held_out, plan)


def _check_method(method: Any) -> None:
    if isinstance(method, Method):
        return
    came = f"the class {method.__name__}; call it" if isinstance(method, type) else repr(method)
    raise SettingError(f"method must be one such as be.DeepEnsemble(num_members=5), got {came}")


def _check_nonfinite(method: Method, on_nonfinite: str) -> None:
    """Refuse to drop members where the others would feel it."""
    require(on_nonfinite in ("raise", "drop"), f"on_nonfinite is 'raise' or 'drop', not {on_nonfinite!r}")
    if on_nonfinite == "drop" and not method.independent:
        raise SettingError(
            f"on_nonfinite='drop' needs members that know nothing of one another, but those of {type(method).__name__} "
            "may; leave it out, and lower the learning rate or set clip=1.0 if a member diverges"
        )


def _checked_change(method: Method, change: Sequence[str], resume: bool) -> tuple[str, ...]:
    """The settings that may be other than those of the checkpoint."""
    names = (change,) if isinstance(change, str) else tuple(change)
    require(resume or not names, "change=... names settings that change on resuming; pass resume=True with it")
    for name in names:
        known = ", ".join(method.changeable) or "none"
        require(
            name in method.changeable,
            f"{name!r} cannot change within a run of {type(method).__name__}; what can: {known}",
        )
    return names


def _usable(device: str | torch.device | None, dtype: torch.dtype) -> torch.device:
    """The device, after a try; numbers must have the type they are asked for on it."""
    try:
        found = torch.device(device or "cpu")
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).strip().splitlines()[0].split(". ")[0]
        raise SettingError(f"device={str(device)!r} cannot be used here: {reason}; leave it out for the CPU") from error
    if dtype == torch.float64 and widest(found) != dtype:
        raise SettingError(f"device={str(device)!r} has no float64, in which the network computes; make it .float()")
    if torch.amp.is_autocast_available(found.type) and torch.is_autocast_enabled(found.type):
        raise SettingError(
            "fit cannot run inside torch.autocast: weights, gradients and moments would have different number types; "
            "use autocast inside the network's forward, or give the network another number type"
        )
    return found


def _check_settings(
    validation: Any,
    patience: int | None,
    keep_best: bool,
    checkpoint: str | Path | None,
    resume: bool,
) -> None:
    if patience is not None:
        whole(patience, f"patience must be a whole number of epochs from 1, got {patience!r}")
    if validation is None and (patience is not None or keep_best):
        raise SettingError("patience and keep_best go by the validation loss; pass validation=(x, y)")
    if resume and checkpoint is None:
        raise SettingError("resume=True needs the folder to resume from; pass checkpoint=...")


def _check_whole(method: Method, steps: int, batch_size: int | None) -> None:
    """Refuse batches to a method that needs the whole data in every step."""
    if method.full_batch and steps > 1:
        raise SettingError(
            f"{type(method).__name__} uses the whole data in every step, but an epoch has {steps} batches "
            f"(batch_size={batch_size}); leave batch_size out, and give a DataLoader all rows in one batch"
        )


def _check_offload(
    folder: str | Path, wish: str | Executor, device: torch.device, checkpoint: str | Path | None
) -> None:
    """Refuse what would need all members in memory, or two kinds of files in one folder."""
    executor = wished(wish)
    if executor is None or not executor.runs_few_members:
        raise SettingError(
            "offload brings in a few members at a time, in plain order: ask for executor=Loop() or Vmap(chunk=...), "
            f"not {wish!r}"
        )
    require(device.type == "cpu", f"offload keeps members in files, which the CPU works on; leave out device={device}")
    if checkpoint is not None and Path(checkpoint).resolve() == Path(folder).resolve():
        raise SettingError(f"offload and checkpoint need folders of their own, both are {folder}")


def _check_max_batch(task: BoundTask, offload: str | Path | None) -> None:
    """Refuse parts of a batch where they would give other numbers, or gradients that lie on disk."""
    if norm_buffers(task.module):
        raise SettingError(
            "max_batch splits batches, but batch norm goes by the rows of a batch, so that numbers would be others; "
            "leave it out and lower batch_size"
        )
    require(offload is None, "max_batch adds up gradients in memory, offload keeps them on disk; leave one of them out")


def _check_cache(cache: Cache, method: Method, others: list[str | Path]) -> None:
    """Refuse to keep what frozen parts give where inputs change, or among other files."""
    require(isinstance(cache, bool | str | Path), f"cache is True, False or a folder, got {cache!r}")
    if cache is not False and method.changes_inputs:
        raise SettingError("cache keeps what the frozen part gives for the inputs, which adversarial training changes")
    if isinstance(cache, str | Path) and any(Path(cache).resolve() == Path(other).resolve() for other in others):
        raise SettingError(f"cache needs a folder of its own, {cache} is that of offload or checkpoint")


def _members_of(start: Ensemble) -> Members:
    """The members that go on from an ensemble; what held-out rows said of them holds no longer."""
    if start.calibration is not None:
        warnings.warn(
            "the ensemble to start from is calibrated, and what is trained from it is not: calibrate it again",
            stacklevel=4,
        )
    return start.weighed().state.members


def _start(
    task: BoundTask,
    method: Method,
    source: BatchSource,
    wish: str | Executor | Choice,
    plan: Plan,
    start: Members | Sequence[Any] | None,
    part: Part | None,
) -> Run:
    rows = method.member_rows(source.num_data, plan.seed)
    refuse_same_batches(rows, plan.steps)
    batch = next(source.epoch(0, plan.batch_size, plan.seed, rows))
    if start is None:
        refuse_trained(task, batch)
        warn_of_scale(task.likelihood, in_parts(batch.targets)[0], lambda: _first_outputs(task))
    state = settled(begin(task, method, plan.seed, start, plan.epochs).to(plan.device), task.allocator)

    def stepper(executor: Executor) -> Callable[[], None]:
        trial = executor.arrange(state.clone())

        def step() -> None:
            nonlocal trial
            trial, _ = method.step(trial, batch, Context(task, executor, plan.clock(0, 0)))

        return step

    alike = type(method).kind_of_step is not Method.kind_of_step and method.unrecorded is None
    recorded = alike and not task.stochastic
    steps = plan.total_steps if recorded else 0
    in_turn = can_be_parted(method, state, task, plan.team)
    choice = wish if isinstance(wish, Choice) else choose(wish, task, state, batch, stepper, steps, method, in_turn)
    give_back()
    check_common(state, method, plan.team)
    executor = agreed(choice.executor, plan.team)
    arranged = executor.arrange(state)
    ensemble = Ensemble(task, method, arranged, executor, int(plan.seed), [], choice.reason, part=part)
    standing = Standing(0, plan.epochs, plan.batch_size, task.max_batch, task.precision, data=plan.data)
    return Run(ensemble, standing)


def _first_outputs(task: BoundTask) -> Tensor:
    """What a network begins with, on a few rows."""
    assert task.example is not None
    with torch.no_grad():
        return task.forward(*task.new_member(seed=0), task.example)


def _with_recording(run: Run, checkpoint: str | Path | None) -> Run:
    """Keep the members along training: in the run folder, if there is one."""
    recording, standing = Recording(None if checkpoint is None else Path(checkpoint) / FOLDER), run.standing
    if not standing.step and standing.epoch not in recording.epochs:
        recording.add(standing.epoch, run.ensemble.state.members)
    return replace(run, ensemble=replace(run.ensemble, recording=recording))


def _resume(
    found: Checkpoint,
    task: BoundTask,
    method: Method,
    source: BatchSource,
    wish: str | Executor,
    plan: Plan,
    change: tuple[str, ...],
    part: Part | None,
) -> Run:
    """Go on from a checkpoint with the executor it was made with, after checking that it is of this run."""
    standing = Standing.from_json(found.run.get("progress"))
    if standing is None:
        raise CheckpointError("the folder holds a saved ensemble, not a run that can be resumed; choose another folder")
    if isinstance(source, LoaderSource):
        source.check_resumable()
    check_same(standing.data, plan.data)
    found = with_backbone(found, task, "the checkpoint")
    saved = restore(found, task.model, task.output, "the checkpoint")
    check_same_center(saved.task.prior, task.prior)
    check_same_standing(standing.epoch * plan.steps + standing.step, plan.team)
    here = Ensemble(task, plan.whole or method, saved.state, saved.executor, plan.seed).describe()
    asked = {"members": str(part or "all")} | {key: here[key] for key in ("task", "method", "seed")}
    asked |= {"batch_size": plan.batch_size, "max_batch": task.max_batch, "precision": task.precision}
    held = {"members": str(saved.part or "all")} | {key: found.run[key] for key in ("task", "method", "seed")}
    held |= {key: getattr(standing, key) for key in ("batch_size", "max_batch", "precision")}
    changed = check_same_run(held, asked, change, standing.epoch)
    if wished(wish) not in (None, saved.executor):
        raise CheckpointError(f"the checkpoint was made with executor {saved.executor}; ask for that or auto")
    if standing.dropped and not plan.drop:
        raise CheckpointError(
            f"the run has left member {standing.dropped[0]['member']} behind; resume it with on_nonfinite='drop'"
        )
    if standing.epoch > plan.epochs:
        raise CheckpointError(f"the checkpoint is at epoch {standing.epoch} already, epochs={plan.epochs} are over")
    names = [name for leaves in task.new_member(seed=0) for name in leaves]
    state = settled(saved.state.in_order(names).to(plan.device), task.allocator)
    best = None
    if found.best is not None:
        best = kept_copy(saved.executor.arrange(found.best).to(plan.device), task.allocator, "best")
    standing = replace(
        standing, epochs=plan.epochs, data=standing.data | plan.data, changed=[*standing.changed, *changed]
    )
    standing = replace(standing, finished=standing.finished and standing.trained)
    told = told_by_step({name: values.to(plan.device) for name, values in found.told.items()}, standing.step)
    return Run(replace(saved, task=task, method=method, state=state, part=part), standing, best, told)
