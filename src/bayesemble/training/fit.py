"""The one training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesemble.core.errors import CheckpointError, SettingError, TrainingError
from bayesemble.core.members import State
from bayesemble.core.offload import MEMORY, Allocator, Disk
from bayesemble.core.settings import require, whole
from bayesemble.core.types import Batch, Clock, Info
from bayesemble.execute.choose import choose, wished
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.task.task import BoundTask, Task
from bayesemble.training import checkpoint as checkpoints
from bayesemble.training.batches import ArraySource, BatchSource, LoaderSource, as_source
from bayesemble.training.checkpoint import Checkpoint, Row
from bayesemble.training.ensemble import Ensemble, restore
from bayesemble.training.progress import Progress
from bayesemble.training.recording import FOLDER, Recording
from bayesemble.training.standing import Standing

OnEpoch = Callable[[State, Row], bool | None]


def fit(
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
    executor: str | Executor = "auto",
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    keep_checkpoints: int = checkpoints.KEEP,
    resume: bool = False,
    offload: str | Path | None = None,
    record: str | None = None,
    progress: bool = True,
    on_epoch: OnEpoch | None = None,
) -> Ensemble:
    """Train an ensemble.

    Args:
        task: What is inferred.
        method: How members are placed.
        data: `(x, y)` arrays or tensors, a `Dataset`, a `DataLoader`, or `PerMember(x, y)`. Inputs may be tuples
            or mappings of tensors.
        epochs: Passes over the data.
        batch_size: Rows per step; None takes all at once, or what the `DataLoader` gives.
        validation: Data whose loss, -log p(y|x) under the averaged prediction, is taken after each epoch.
        patience: Stop when the validation loss has not improved for this many epochs, and return the best state.
        keep_best: Return the state with the best validation loss instead of the last.
        seed: All randomness derives from it.
        executor: "loop", "vmap", an object such as `Vmap(chunk=4)`, "auto" for the one that a rule gives for this
            network, members and batch, or "measure" to time them on the first batch.
        device: Where to train; None is the CPU.
        checkpoint: Folder to save the run in.
        checkpoint_every: Epochs between checkpoints.
        keep_checkpoints: How many stay; with two, a run whose newest is damaged resumes from the one before.
        resume: Go on from the folder's last checkpoint that is whole, if there is one.
        offload: Folder for members that do not fit into memory: parameters, buffers, moments and gradients lie there in
            memory-mapped files, and the executor, `Loop()` or `Vmap(chunk=...)`, brings in a few members at a time.
            The numbers are those without it. The ensemble that is returned lies there too: keep the folder as long as
            it is used, or `save` it. It is no checkpoint, and the next run with the same folder replaces it.
        record: "epoch" keeps the members at the start and after every epoch, in files of the checkpoint folder (else of
            a temporary one): `ensemble.recording`.
        progress: Show a progress bar, if there is a terminal.
        on_epoch: Called as `on_epoch(state, row)` after each epoch; return True to stop. The state is the live one:
            clone what is to be kept.
    """
    epochs = whole(epochs, f"epochs must be a whole number from 1, got {epochs!r}")
    if batch_size is not None:
        words = f"batch_size must be a whole number from 1, or None for all rows, got {batch_size!r}"
        batch_size = whole(batch_size, words)
    seed = whole(seed, f"seed must be a whole number, got {seed!r}", least=None)
    _check_settings(validation, patience, keep_best, checkpoint, checkpoint_every, resume)
    whole(keep_checkpoints, f"keep_checkpoints must be a whole number from 1, got {keep_checkpoints!r}")
    require(record in (None, "epoch"), f"record is 'epoch' or None, not {record!r}")
    device = torch.device(device or "cpu")
    if offload is not None:
        _check_offload(offload, executor, device, checkpoint)
    source = as_source(data, task.dtype, batch_size)
    bound = task.bind(source.num_data, source.example())
    source = source.checked(bound, training=True).to(device)
    source.check_members(method.num_members)
    _check_whole(method, source.steps(batch_size), batch_size)
    if device.type != "cpu":
        bound.module.to(device)
    held_out = None
    if validation is not None:
        held_out = as_source(validation, task.dtype, batch_size, shuffle=False).checked(bound, training=False)
        held_out.check_members(method.num_members)

    found = _find_checkpoint(checkpoint, resume)
    allocator = MEMORY if offload is None else Disk(offload)
    placed = replace(bound, allocator=allocator)
    plan = _Plan(epochs, batch_size, source.steps(batch_size), seed, device)
    if found is None:
        run = _start(placed, method, source, executor, plan)
    else:
        run = _resume(found, placed, method, source, executor, plan)
    if record is not None:
        run = _with_recording(run, checkpoint)
    with (
        thread_count(run.ensemble.executor),
        Progress(epochs, plan.total_steps, run.standing.epoch * plan.steps, progress) as bar,
    ):
        bar.say(f"executor: {run.ensemble.executor} ({run.ensemble.execution})")
        rows = method.member_rows(source.num_data, seed)
        while not run.standing.trained:
            run = _train_epoch(run, source, rows, plan, bar)
            if run.ensemble.recording is not None:
                run.ensemble.recording.add(run.standing.epoch, run.ensemble.state.members)
            run = _validate(run, held_out, patience, keep_best)
            if on_epoch is not None and on_epoch(run.ensemble.state, run.ensemble.history[-1]):
                run = replace(run, standing=replace(run.standing, stopped=True))
            bar.row(run.ensemble.history[-1])
            if checkpoint is not None and (run.standing.trained or run.standing.epoch % checkpoint_every == 0):
                run.save(checkpoint, keep_checkpoints)
        if not run.standing.finished:
            trained = run.best or run.ensemble.state
            run = _finish(run, source, plan)
            if checkpoint is not None and run.ensemble.state is not trained:
                run.save(checkpoint, keep_checkpoints)
    return replace(run.ensemble, task=bound, state=_settled(run.best or run.ensemble.state, allocator))


@dataclass(frozen=True)
class _Plan:
    epochs: int
    batch_size: int | None
    steps: int
    seed: int
    device: torch.device

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps

    def clock(self, epoch: int, step: int) -> Clock:
        return Clock(epoch * self.steps + step, self.total_steps, self.seed)


@dataclass(frozen=True)
class _Run:
    """Where training stands between two epochs: all that a checkpoint holds."""

    ensemble: Ensemble
    standing: Standing
    best: State | None = None

    def save(self, folder: str | Path, keep: int) -> None:
        described = self.ensemble.describe() | {"progress": self.standing.to_json()}
        found = Checkpoint(described, self.ensemble.state, self.ensemble.history, self.best)
        checkpoints.write(folder, found, keep)


def _check_settings(
    validation: Any,
    patience: int | None,
    keep_best: bool,
    checkpoint: str | Path | None,
    checkpoint_every: int,
    resume: bool,
) -> None:
    if patience is not None:
        whole(patience, f"patience must be a whole number of epochs from 1, got {patience!r}")
    if validation is None and (patience is not None or keep_best):
        raise SettingError("patience and keep_best go by the validation loss; pass validation=(x, y)")
    whole(checkpoint_every, f"checkpoint_every must be a whole number of epochs from 1, got {checkpoint_every!r}")
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


def _settled(state: State, allocator: Allocator) -> State:
    """The state where it belongs, and on disk nothing else beside it."""
    return state.with_groups(allocator.settle(state.groups()))


def _kept(state: State, allocator: Allocator) -> State:
    """A copy that training does not change."""
    return state.with_groups(allocator.copy(state.groups(), "best"))


def _find_checkpoint(folder: str | Path | None, resume: bool) -> Checkpoint | None:
    if folder is None or not checkpoints.exists(folder):
        return None
    if not resume:
        raise CheckpointError(
            f"{folder} already holds a run; pass resume=True to go on with it, or choose another folder"
        )
    return checkpoints.recover(folder)


def _start(task: BoundTask, method: Method, source: BatchSource, wish: str | Executor, plan: _Plan) -> _Run:
    state = _settled(method.init(task, plan.seed).to(plan.device), task.allocator)
    batch = next(source.epoch(0, plan.batch_size, plan.seed, method.member_rows(source.num_data, plan.seed)))

    def stepper(executor: Executor) -> Callable[[], None]:
        trial = executor.arrange(state.clone())

        def step() -> None:
            nonlocal trial
            trial, _ = method.step(trial, batch, Context(task, executor, plan.clock(0, 0)))

        return step

    choice = choose(wish, task, state, batch, stepper)
    arranged = choice.executor.arrange(state)
    ensemble = Ensemble(task, method, arranged, choice.executor, plan.seed, [], choice.reason)
    return _Run(ensemble, Standing(0, plan.epochs, plan.batch_size))


def _with_recording(run: _Run, checkpoint: str | Path | None) -> _Run:
    """Keep the members along training: in the run folder, if there is one."""
    recording = Recording(None if checkpoint is None else Path(checkpoint) / FOLDER)
    recording.add(run.standing.epoch, run.ensemble.state.members)
    return replace(run, ensemble=replace(run.ensemble, recording=recording))


def _resume(
    found: Checkpoint, task: BoundTask, method: Method, source: BatchSource, wish: str | Executor, plan: _Plan
) -> _Run:
    """Go on from a checkpoint with the executor it was made with, after checking that it is of this run."""
    standing = Standing.from_json(found.run.get("progress"))
    if standing is None:
        raise CheckpointError("the folder holds a saved ensemble, not a run that can be resumed; choose another folder")
    if isinstance(source, LoaderSource):
        source.check_resumable()
    saved = restore(found, task.model, task.output, "the checkpoint")
    here = Ensemble(task, method, saved.state, saved.executor, plan.seed).describe()
    asked = {key: here[key] for key in ("task", "method", "seed")} | {"batch_size": plan.batch_size}
    held = {key: found.run[key] for key in ("task", "method", "seed")} | {"batch_size": standing.batch_size}
    for key, value in asked.items():
        if value != held[key]:
            raise CheckpointError(
                f"the checkpoint was made with {key} {held[key]}, now it is {value}; repeat the settings"
            )
    if wished(wish) not in (None, saved.executor):
        raise CheckpointError(f"the checkpoint was made with executor {saved.executor}; ask for that or auto")
    if standing.epoch > plan.epochs:
        raise CheckpointError(f"the checkpoint is at epoch {standing.epoch} already, epochs={plan.epochs} are over")
    state = _settled(saved.state.to(plan.device), task.allocator)
    best = None if found.best is None else _kept(saved.executor.arrange(found.best).to(plan.device), task.allocator)
    standing = replace(standing, epochs=plan.epochs)
    standing = replace(standing, finished=standing.finished and standing.trained)
    return _Run(replace(saved, task=task, method=method, state=state), standing, best)


def _train_epoch(run: _Run, source: BatchSource, rows: torch.Tensor | None, plan: _Plan, bar: Progress) -> _Run:
    ensemble, start = run.ensemble, time.perf_counter()
    state, infos, epoch = ensemble.state, [], run.standing.epoch
    for step, batch in enumerate(source.epoch(epoch, plan.batch_size, plan.seed, rows)):
        context = Context(ensemble.task, ensemble.executor, plan.clock(epoch, step))
        state, info = ensemble.method.step(state, batch, context)
        infos.append(info)
        bar.step(epoch + 1)
    row: Row = {"epoch": epoch + 1}
    row["gradients"] = _count_gradients(infos, ensemble.method)
    row |= _epoch_means(infos, epoch + 1)
    _check_weights(state, epoch + 1)
    row["seconds"] = time.perf_counter() - start
    ensemble = replace(ensemble, state=state, history=[*ensemble.history, row])
    return replace(run, ensemble=ensemble, standing=replace(run.standing, epoch=epoch + 1))


def _finish(run: _Run, source: BatchSource, plan: _Plan) -> _Run:
    """Let the method complete the state that training ends with."""
    ensemble, state = run.ensemble, run.best or run.ensemble.state

    def data() -> Iterator[Batch]:
        return source.in_order(plan.batch_size)

    context, start = Context(ensemble.task, ensemble.executor, plan.clock(plan.epochs, 0)), time.perf_counter()
    finished = ensemble.method.finish(state, data, context)
    if finished is not state:
        ensemble = _with_figure(ensemble, "finish_seconds", time.perf_counter() - start)
    return _Run(replace(ensemble, state=finished), replace(run.standing, finished=True))


def _count_gradients(infos: list[Info], method: Method) -> int:
    """Gradients of one network on one batch that the steps of an epoch took; most methods take as many in each."""
    reported = [info.pop("gradients", None) for info in infos]
    return sum(method.gradients_per_step if count is None else int(count.sum()) for count in reported)


def _check_weights(state: State, epoch: int) -> None:
    """Stop before weights that are not finite are saved or returned: a loss can be finite where its gradient is not."""
    found = state.members.first_not_finite()
    if found is not None:
        member, name = found
        whose = "all members" if member is None else f"member {member}"
        raise TrainingError(
            f"{name} of {whose} is no longer finite after epoch {epoch}, though the loss was; lower the learning rate, "
            "set clip=1.0, or look for a gradient that divides by zero. The last checkpoint is intact"
        )


def _epoch_means(infos: list[Info], epoch: int) -> Row:
    """Mean over the steps of an epoch, per member; a loss that is not finite ends training with its place."""
    losses = torch.stack([info["loss"] for info in infos])
    if not losses.isfinite().all():
        step, member = (~losses.isfinite()).nonzero()[0].tolist()
        raise TrainingError(
            f"the loss of member {member} became {losses[step, member].item()} in epoch {epoch}, step {step + 1}; "
            "lower the learning rate, set clip=1.0, or check the scale of the inputs. The last checkpoint is intact"
        )
    return {key: torch.stack([info[key] for info in infos]).mean(0).tolist() for key in infos[0]}


def _validate(run: _Run, held_out: BatchSource | None, patience: int | None, keep_best: bool) -> _Run:
    if held_out is None:
        return run
    loss, standing = _validation_loss(run.ensemble, held_out), run.standing
    ensemble = _with_figure(run.ensemble, "validation_loss", loss)
    if loss < standing.best_loss:
        best = _kept(ensemble.state, ensemble.task.allocator) if keep_best or patience is not None else None
        return _Run(ensemble, replace(standing, best_loss=loss, best_epoch=standing.epoch), best)
    stopped = patience is not None and standing.epoch - standing.best_epoch >= patience
    return _Run(ensemble, replace(standing, stopped=stopped), run.best)


def _with_figure(ensemble: Ensemble, name: str, figure: float) -> Ensemble:
    """One more figure in the last row of the history."""
    *rows, last = ensemble.history
    return replace(ensemble, history=[*rows, last | {name: figure}])


def _validation_loss(ensemble: Ensemble, held_out: BatchSource) -> float:
    """-log p(y|x) of the averaged prediction; where members have data of their own, the mean of their own losses."""
    predict, total, count = None, 0.0, 0
    per_member = isinstance(held_out, ArraySource) and held_out.per_member
    for number, batch in enumerate(held_out.in_order(1024)):
        predict = predict or ensemble.predictor(batch.inputs)
        predictive = predict(batch.inputs, per_member=per_member, number=number)
        targets = batch.targets
        log_prob = predictive.member_log_prob(targets).mean(0) if per_member else predictive.log_prob(targets)
        total, count = total - float(log_prob.double().sum()), count + log_prob.numel()
    return total / count
