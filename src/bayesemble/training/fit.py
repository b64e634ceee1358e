"""The one training loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesemble.core.errors import Interrupted
from bayesemble.core.settings import require
from bayesemble.core.types import Batch
from bayesemble.execute.executor import Executor, thread_count
from bayesemble.execute.kept_memory import kept_memory
from bayesemble.execute.ranks.ranks import Ranks
from bayesemble.methods import Method
from bayesemble.methods.base import Context
from bayesemble.task.priors import Prior
from bayesemble.task.task import Task
from bayesemble.training.batches import BatchSource
from bayesemble.training.callbacks.base import OnEpoch
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.epochs import HANDED, train, with_figure
from bayesemble.training.over_ranks.spreading import held_elsewhere, spread, whole_ensemble
from bayesemble.training.prepare import Ready, prepare
from bayesemble.training.run import Plan, Run
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.run_lock import holding


@holding("checkpoint", unless=lambda given: held_elsewhere(given.get("executor")))
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
    executor: str | Executor | Ranks = "auto",
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | str = 1,
    keep_checkpoints: int = checkpoints.KEEP,
    resume: bool = False,
    offload: str | Path | None = None,
    cache: bool | str | Path = False,
    record: str | None = None,
    progress: bool = True,
    on_epoch: OnEpoch | None = None,
    on_nonfinite: str = "raise",
    change: Sequence[str] = (),
    start: Ensemble | Sequence[Any] | None = None,
    prior: Prior | None = None,
    precision: str | None = None,
    max_batch: int | None = None,
    callbacks: Sequence[Any] = (),
    on_interrupt: str = "raise",
    weights: bool = False,
    members: range | None = None,
) -> Ensemble:
    """Train an ensemble.

    Args:
        task: What is inferred.
        method: How members are placed.
        data: `(x, y)` arrays or tensors, a `Dataset`, a `DataLoader`, `Stream(...)` or `PerMember(x, y)`. Inputs may be
            tuples or mappings of tensors. `(x, y, w)` has a weight for each row, a number from 0: the log joint is then
            that of rows repeated w times, with N the sum of the weights. With `Task(..., targets="labels")`, a mapping
            of columns, a loader of mappings such as tokenizers give, or a `datasets.Dataset`.
        epochs: Passes over the data. 0 trains nothing: the method completes given weights, as `Laplace` and `MCDropout`
            do with a network that is trained already (`Task(..., start="given")`, or `start` below).
        batch_size: Rows per step; None takes all at once, or what the `DataLoader` gives.
        validation: Data whose loss, -log p(y|x) under the averaged prediction, is taken after each epoch.
        patience: Stop when the validation loss has not improved for this many epochs, and return the best state.
        keep_best: Return the state with the best validation loss instead of the last.
        seed: All randomness derives from it.
        executor: "loop", "vmap", an object such as `Vmap(chunk=4)`, "auto" for the one that a rule gives for this
            network, members and batch, or "measure" to time them on the first batch. `Ranks(...)`, or "ranks", spreads
            members over the processes of a job, as torchrun starts it: see docs/scale.md.
        device: Where to train; None is the CPU.
        checkpoint: Folder to save the run in.
        checkpoint_every: Epochs between checkpoints, or a text such as "500 steps" or "60 s", for checkpoints within an
            epoch too. There is always one at the end.
        keep_checkpoints: How many stay; with two, a run whose newest is damaged resumes from the one before.
        resume: Go on from the folder's last checkpoint that is whole, if there is one; data, settings and what the
            network computes have to be those that the run began with.
        offload: Folder for members that do not fit into memory: parameters, buffers, moments and gradients lie there in
            memory-mapped files, and the executor, `Loop()` or `Vmap(chunk=...)`, brings in a few members at a time.
            The numbers are those without it. The ensemble that is returned lies there too: keep the folder as long as
            it is used, or `save` it. It is no checkpoint, and the next run with the same folder replaces it.
        cache: Keep what the frozen part of the network gives for each row of the data and of the validation data, so
            that it runs once for all epochs: in memory (True), or in files of a folder, which must stay while `fit`
            runs. Only for rows in memory that are the same in each epoch; see `be.adapt`. Without it, a frozen part
            that is the same for all members runs once a batch for all of them.
        record: "epoch" keeps the members at the start and after every epoch, in files of the checkpoint folder (else of
            a temporary one): `ensemble.recording`.
        progress: Show a progress bar, if there is a terminal; else write a line per epoch to standard error, unless
            epochs take less than a second. At INFO, the logger "bayesemble" has a line for every epoch.
        on_epoch: Called as `on_epoch(state, row)` after each epoch; return True to stop. The state is the live one:
            clone what is to be kept.
        on_nonfinite: What becomes of a member whose loss or weights are no longer finite. "raise" ends training with an
            error. "drop" puts it back to the start of the epoch, where it stays and weighs nothing; a warning and the
            history name it, and the others get the very bits that they would have had. Only for methods whose members
            know nothing of one another.
        change: Settings of the method that may be other than those of the checkpoint when a run is resumed, such as
            `("learning_rate", "clip")` after a divergence. `run.json` tells that they changed.
        start: Networks that members begin with, in place of the model's: an ensemble, whose members go on with equal
            weights (what its method kept beside them is made anew), or a list of modules or state dicts, one for each
            member. With `epochs=0`, `SWAG` and `Subspace` take the networks for snapshots along one training.
        prior: What is believed of the weights beforehand, in place of the task's prior: `ensemble.as_prior()` of an
            ensemble that was trained on earlier rows. The ensemble that is returned has it as `task.prior`, it is
            saved with the run, and a run that is resumed needs the same. None is the task's prior.
        precision: "bf16" runs the network in bfloat16 while it is trained, where torch holds that safe; weights, loss,
            gradients, moments and all predictions stay in single precision. None computes in the network's own type.
        max_batch: Rows that go through a member at a time. Larger batches go through in parts, whose gradients are
            added up: less memory, and the same numbers to rounding. Dropout, and noise that
            `MeanField` draws row by row, are drawn anew for each part.
        callbacks: Objects such as `be.callbacks.CSV("log.csv")` that have some of `on_start`, `on_step`, `on_epoch` and
            `on_end`, and may stop training: see `be.Callback`.
        on_interrupt: What becomes of Ctrl-C. "raise" raises `Interrupted`, so that a script ends. "return" returns what
            there is, with a warning, and the script goes on; the method has not completed it, so that predictions are
            those of the members.
        weights: Whether a `Dataset` or a `DataLoader` gives a weight with each row, (inputs, targets, weight). The
            sum of all weights is then needed as `Task(num_data=...)`. Three arrays need no such word.
        members: The numbers of the members to train here, such as `range(0, 2)` of `num_members=5`; None is all. They
            get the random numbers that they have among all, so that `Ensemble.concat` of all parts is what one run
            gives: to the bit with `executor="loop"`, else to rounding. `start` and `PerMember` data stay those of all
            members. Only for methods whose members know nothing of one another.

    Ctrl-C waits for the end of a step and raises `Interrupted`, a `KeyboardInterrupt` whose `ensemble` is what there
    was then; a second one acts at once. With `checkpoint`, a checkpoint is written before, and also on SIGTERM, after
    which the process ends as SIGTERM would end it. `resume` goes on within the epoch, to the bits of an undisturbed
    run. All this is so in the main thread, and where you have no handlers of your own for these signals.
    """
    task = task if prior is None else replace(task, prior=prior)
    require(on_interrupt in ("raise", "return"), f"on_interrupt is 'raise' or 'return', not {on_interrupt!r}")
    asked: dict[str, Any] = {"offload": offload, "record": record, "cache": cache, "start": start, "device": device}
    asked |= {"callbacks": callbacks, "checkpoint_every": checkpoint_every, "validation": validation}
    asked |= {"on_nonfinite": on_nonfinite, "members": members}
    shared = spread(executor, task, method, asked)
    ready = prepare(
        task,
        shared.own,
        data,
        epochs=epochs,
        batch_size=batch_size,
        validation=validation,
        patience=patience,
        keep_best=keep_best,
        seed=seed,
        executor=shared.inner,
        device=device,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        resume=resume,
        offload=offload,
        cache=cache,
        record=record,
        on_epoch=on_epoch,
        on_nonfinite=on_nonfinite,
        change=change,
        start=start,
        precision=precision,
        max_batch=max_batch,
        callbacks=callbacks,
        weights=weights,
        members=members,
        spread=shared,
    )
    try:
        with kept_memory():
            return whole_ensemble(complete(ready, train(*ready, progress)), shared)
    except Interrupted as stopped:
        if on_interrupt == "raise" or stopped.ensemble is None:
            raise
        words = str(stopped).split(";")[0]
        warnings.warn(f'{words}: what there is so far is returned, as on_interrupt="return" asks', stacklevel=3)
        return stopped.ensemble


def complete(ready: Ready, run: Run) -> Ensemble:
    """Let the method complete what was trained."""
    source, plan = ready.source, ready.plan
    _warn_of_ascent(run)
    if not run.standing.finished:
        trained = run.best or run.ensemble.state
        try:
            run = _finish(run, source, plan)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped while the method completed what was trained; {HANDED}", run.result()) from None
        if plan.folder is not None and (run.ensemble.state is not trained or not plan.epochs):
            run.save(plan.folder, plan.keep_checkpoints, plan.spread)
    return run.result()


def _warn_of_ascent(run: Run) -> None:
    """Warn of members whose loss has grown a lot, though it is finite; not if an earlier state is kept."""
    if not run.ensemble.history:
        return
    pairs = zip(run.standing.first_losses, run.ensemble.history[-1]["loss"], strict=True)
    grown = [
        (m, one, last) for m, (one, last) in enumerate(pairs) if one is not None and last > one + 10 + 10 * abs(one)
    ]
    if grown and run.best is None:
        member, one, last = grown[0]
        warnings.warn(
            f"the loss of member {member} went up in training, from {one:.3g} at the first step to {last:.3g} in the "
            "last epoch; lower the learning rate, or set clip=1.0",
            stacklevel=5,
        )


def _finish(run: Run, source: BatchSource, plan: Plan) -> Run:
    """Let the method complete the state that training ends with."""
    ensemble, state = run.ensemble, run.best or run.ensemble.state

    def data() -> Iterator[Batch]:
        sizes = [size for size in (plan.batch_size, ensemble.task.max_batch) if size is not None]
        return source.in_order(min(sizes, default=None))

    context, start = (
        Context(ensemble.task, ensemble.executor, plan.clock(plan.epochs, 0), team=plan.team),
        time.perf_counter(),
    )
    with thread_count(ensemble.executor):
        finished = ensemble.method.finish(state, data, context)
    if finished is not state and ensemble.history:
        ensemble = with_figure(ensemble, "finish_seconds", time.perf_counter() - start)
    return Run(replace(ensemble, state=finished), replace(run.standing, finished=True))
