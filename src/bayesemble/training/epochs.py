"""The epochs of a run: their steps, what they told, and what becomes of members that are no longer finite."""

from __future__ import annotations

import logging
import math
import signal
import time
import warnings
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from bayesemble.core.errors import BayesembleError, DataError, Interrupted, TrainingError
from bayesemble.core.members import State
from bayesemble.core.offload import Allocator
from bayesemble.core.settings import require
from bayesemble.core.types import Batch, Clock, Info, in_parts
from bayesemble.execute.executor import thread_count
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import Method
from bayesemble.task.starts.checks import Clones
from bayesemble.training.batches import ArraySource, BatchSource
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.over_ranks.telling import (
    AgreedStop,
    ClonesEverywhere,
    check_finite_everywhere,
    mixture_log_prob,
    told_by_all,
)
from bayesemble.training.progress import Progress
from bayesemble.training.run import Plan, Run
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.checkpoint import Row
from bayesemble.training.run_folders.due import Timer
from bayesemble.training.run_folders.standing import Standing
from bayesemble.training.stepping.in_turn import StepTaker, steps_of
from bayesemble.training.stopping import StopRequest, stop_requests

logger = logging.getLogger("bayesemble")

HANDED = "the `ensemble` of this exception is what there is so far"
_ADVICE = "lower the learning rate, set clip=1.0"


def train(run: Run, source: BatchSource, held_out: BatchSource | None, plan: Plan, progress: bool) -> Run:
    """Go through the epochs that are left; whoever asks for an end gets it after a whole step."""
    ensemble, standing = run.ensemble, run.standing
    taken = standing.epoch * plan.steps + standing.step
    try:
        with (
            stop_requests(by_sigterm=plan.folder is not None) as noted,
            thread_count(ensemble.executor),
            Progress(plan.epochs, plan.total_steps, taken, progress and plan.team.is_first) as bar,
        ):
            request = noted if plan.team is ALONE else AgreedStop(noted, plan.team)
            bar.say(f"executor: {ensemble.executor} ({ensemble.execution})")
            for name, words in ensemble.method.resolved(ensemble.task).items():
                bar.say(f"{name}: {words}")
                logger.info("%s: %s", name, words)
            made = ensemble.method, ensemble.task, ensemble.executor, ensemble.state
            steps = steps_of(*made, fresh=not taken, team=plan.team)
            with request.noting():
                plan.callbacks.start(ensemble)
            run = _through_epochs(run, steps, source, held_out, plan, bar, request)
            with request.noting():
                plan.callbacks.end(run.ensemble)
    except TrainingError as error:
        if noted.signal is not None:
            raise Interrupted(f"stopped; nothing can be handed back: {error}", None) from error
        if plan.folder is None or not checkpoints.exists(plan.folder):
            raise
        raise TrainingError(
            f"{error}. The last checkpoint is intact: resume=True goes on from it, under another learning rate with "
            'change=("learning_rate",)'
        ) from error
    if request.signal is not None:
        onwards = "" if plan.folder is None else f"; resume=True goes on from {plan.folder}"
        raise Interrupted(f"stopped {run.standing}; {HANDED}{onwards}", run.result())
    return run


def _through_epochs(
    run: Run,
    steps: StepTaker,
    source: BatchSource,
    held_out: BatchSource | None,
    plan: Plan,
    bar: Progress,
    request: StopRequest,
) -> Run:
    rows, saved, due = run.ensemble.method.member_rows(source.num_data, plan.seed), run, plan.checkpoint_every.timer()
    while not run.standing.trained and request.signal is None:
        run = _train_epoch(run, steps, source, rows, plan, bar, request, due)
        if not run.standing.step:
            run = after_epoch(run, held_out, plan, bar, request)
        if isinstance(request, AgreedStop):
            request.agree()
        ended = run.standing.trained or (not run.standing.step and due.after_epoch(run.standing, plan.steps))
        if plan.folder is not None and ended:
            run.save(plan.folder, plan.keep_checkpoints, plan.spread)
            saved = run
    if plan.folder is not None and request.signal is not None and saved is not run:
        run.save(plan.folder, plan.keep_checkpoints, plan.spread)
    if request.signal == signal.SIGTERM:
        logger.warning("ended by SIGTERM %s; resumed, training goes on from %s", run.standing, plan.folder)
    return run


def after_epoch(run: Run, held_out: BatchSource | None, plan: Plan, bar: Progress, request: StopRequest) -> Run:
    """Record, validate and tell what an epoch has come to."""
    if run.ensemble.recording is not None:
        run.ensemble.recording.add(run.standing.epoch, run.ensemble.state.members)
    run = _validated(run, held_out, plan)
    with request.noting():
        if plan.team.largest(plan.callbacks.epoch(run.ensemble.state, run.ensemble.history[-1])):
            run = replace(run, standing=replace(run.standing, stopped=True))
    bar.row(run.ensemble.history[-1])
    return run


def _train_epoch(
    run: Run,
    take_step: StepTaker,
    source: BatchSource,
    rows: Tensor | None,
    plan: Plan,
    bar: Progress,
    request: StopRequest,
    due: Timer,
) -> Run:
    """Take the steps that are left of an epoch, and add its row to the history.

    If somebody asks for an end, this comes after a whole step; the epoch is then still under way. A callback that asks
    for one ends the epoch.
    """
    ensemble, standing, start = run.ensemble, run.standing, time.perf_counter()
    state, told, epoch, step = ensemble.state, list(run.gathered), standing.epoch, standing.step
    within, stopped = plan.folder is not None and due.within_epochs, False

    def now(standing: Standing) -> Run:
        seconds = standing.seconds + time.perf_counter() - start
        reached = replace(ensemble, state=state, executor=take_step.executor)
        return replace(run, ensemble=reached, standing=replace(standing, step=step, seconds=seconds), gathered=told)

    before = kept_copy(state, ensemble.task.allocator, "before") if plan.drop else None
    clones = None if epoch or step or ensemble.method.moves_members_apart else _clones(state, plan.team)
    for batch in request.until(islice(source.epoch(epoch, plan.batch_size, plan.seed, rows), step, None)):
        state, info = _step(take_step, state, batch, plan.clock(epoch, step))
        if clones is not None and not step:
            clones.refuse(state.members)
        told.append(info)
        step += 1
        bar.step(epoch + 1)
        if plan.callbacks.steps:
            require(plan.team is ALONE, "a callback was given on_step in training; executor=Ranks() cannot call it")
            with request.noting():
                stopped = plan.callbacks.step(epoch * plan.steps + step, info)
        if stopped or request.signal is not None:
            break
        if within and step < plan.steps and due.after_step(epoch * plan.steps + step):
            _save_within(now(_with_first_losses(standing, told_by_all(told[:1], plan.team))), plan)
    if not told:  # an end was asked for before the first batch came
        return run
    told = told_by_all(told, plan.team)
    standing = _with_first_losses(standing, told)
    if before is None:
        check_finite(state, told, epoch + 1, plan.team)
    else:
        state, standing = _leave_behind(state, before, told, standing)
    run = now(replace(standing, stopped=stopped))
    return run if request.signal is not None and not stopped and step < plan.steps else with_row(run, plan.team)


def _clones(state: State, team: Team) -> Clones | ClonesEverywhere:
    return Clones(state.members) if team is ALONE else ClonesEverywhere(state.members, team)


def _with_first_losses(standing: Standing, told: list[Info]) -> Standing:
    return standing if standing.epoch else replace(standing, first_losses=first_losses(told[0]))


def _save_within(run: Run, plan: Plan) -> None:
    """Write a checkpoint within an epoch; members that are no longer finite are the end of the epoch's concern."""
    try:
        check_finite(run.ensemble.state, told_by_all(run.gathered, plan.team), run.standing.epoch + 1, plan.team)
    except TrainingError:
        return
    assert plan.folder is not None
    run.save(plan.folder, plan.keep_checkpoints, plan.spread)


def first_losses(info: Info) -> list[float | None]:
    """The loss of each member at the first step, None if it is not finite."""
    return [loss if math.isfinite(loss) else None for loss in info["loss"].tolist()]


def kept_copy(state: State, allocator: Allocator, name: str) -> State:
    """A copy that training does not change; frozen leaves that all members share need none."""
    groups = state.groups()
    groups["buffers"] = {n: leaf for n, leaf in groups["buffers"].items() if n not in state.frozen}
    return state.with_groups(allocator.copy(groups, name)).with_frozen(state.members.buffers)


def _validated(run: Run, held_out: BatchSource | None, plan: Plan) -> Run:
    """Take the validation loss, keep the state if it is the best so far, and stop if it was not for too long."""
    if held_out is None:
        return run
    loss, standing = _validation_loss(run.ensemble, held_out, plan.team), run.standing
    ensemble = with_figure(run.ensemble, "validation_loss", loss)
    if loss < standing.best_loss:
        keep = plan.keep_best or plan.patience is not None
        best = kept_copy(ensemble.state, ensemble.task.allocator, "best") if keep else None
        return Run(ensemble, replace(standing, best_loss=loss, best_epoch=standing.epoch), best)
    stopped = plan.patience is not None and standing.epoch - standing.best_epoch >= plan.patience
    return Run(ensemble, replace(standing, stopped=standing.stopped or stopped), run.best)


def with_figure(ensemble: Ensemble, name: str, figure: float) -> Ensemble:
    """One more figure in the last row of the history."""
    *rows, last = ensemble.history
    return replace(ensemble, history=[*rows, last | {name: figure}])


def _step(take_step: StepTaker, state: State, batch: Batch, clock: Clock) -> tuple[State, Info]:
    """One step, or a sentence about the batch of a single row that batch norm cannot take."""
    try:
        return take_step(state, batch, clock)
    except BayesembleError:
        raise
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise DataError(
                f"a batch has a single row, which batch norm cannot be trained on ({error}); make the DataLoader with "
                "drop_last=True, or with batches of another size"
            ) from error
        raise


def with_row(run: Run, team: Team = ALONE) -> Run:
    """The run after its epoch, with what the epoch told in the history."""
    ensemble, standing, epoch = run.ensemble, run.standing, run.standing.epoch + 1
    row: Row = {"epoch": epoch}
    row["gradients"] = _count_gradients(run.gathered, ensemble.method, team)
    row |= _means(run.gathered, standing)
    row["seconds"] = standing.seconds
    lost = [one for one in standing.dropped if one["epoch"] == epoch]
    row |= {"dropped": lost} if lost else {}
    ensemble = replace(ensemble, history=[*ensemble.history, row])
    return replace(run, ensemble=ensemble, standing=replace(standing, epoch=epoch, step=0, seconds=0.0), gathered=[])


def _count_gradients(told: list[Info], method: Method, team: Team) -> int:
    """Gradients of one network on one batch that the steps of an epoch took; most methods take as many in each."""
    reported = [info.pop("gradients", None) for info in told]
    usual = int(team.summed(torch.tensor(method.gradients_per_step)))
    return sum(usual if count is None else int(count.sum()) for count in reported)


def _means(told: list[Info], standing: Standing) -> Row:
    """Mean over the steps of an epoch, per member; NaN of members that were left behind."""
    means = {key: torch.stack([info[key] for info in told]).mean(0).tolist() for key in told[0]}
    for one in standing.dropped:
        for values in means.values():
            values[one["member"]] = math.nan
    return means


def check_finite(state: State, told: list[Info], epoch: int, team: Team = ALONE) -> None:
    """Stop before numbers that are not finite are saved or returned: a loss can be finite where its gradient is not."""
    losses = torch.stack([info["loss"] for info in told])
    if not losses.isfinite().all():
        step, member = (~losses.isfinite()).nonzero()[0].tolist()
        raise TrainingError(
            f"the loss of member {member} became {losses[step, member].item()} in epoch {epoch}, step {step + 1}; "
            f"{_ADVICE}, or check the scale of the inputs"
        )
    found = state.members.first_not_finite()
    check_finite_everywhere(found, team)
    if found is not None:
        member, name = found
        whose = "all members" if member is None else f"member {team.first + member}"
        raise TrainingError(
            f"{name} of {whose} is no longer finite after epoch {epoch}, though the loss was; {_ADVICE}, "
            "or look for a gradient that divides by zero"
        )


def _leave_behind(state: State, before: State, told: list[Info], standing: Standing) -> tuple[State, Standing]:
    """Put members that are no longer finite back to where they were before these steps, and let them weigh nothing.

    Those that were left behind earlier take steps like all others, for members are not renumbered, and are put back.
    """
    members, epoch = state.members, standing.epoch + 1
    steps = (~torch.stack([info["loss"] for info in told]).isfinite()).cpu()
    finite = state.finite_members().cpu() & ~steps.any(0)
    gone = members.weights.cpu() == 0
    lost = (~finite & ~gone).nonzero().flatten().tolist()
    found = [
        {"member": i, "epoch": epoch, "step": 1 + int(steps[:, i].nonzero()[0]) if steps[:, i].any() else len(told)}
        for i in lost
    ]
    gone[lost] = True
    if gone.all():
        raise TrainingError(
            f"no member is finite any more in epoch {epoch}; {_ADVICE}, or check the scale of the inputs"
        )
    for one in found:
        warnings.warn(
            f"member {one['member']} is no longer finite in epoch {epoch}, step {one['step']}: it goes back to the "
            "start of the epoch, stays there and weighs nothing; the others go on",
            stacklevel=7,
        )
    state.put_back(gone.nonzero().flatten(), before)
    if lost:
        members = members.reweight((~gone).double())
    return replace(state, members=members), replace(standing, dropped=[*standing.dropped, *found])


def _validation_loss(ensemble: Ensemble, held_out: BatchSource, team: Team = ALONE) -> float:
    """-log p(y|x) of the averaged prediction; where members have data of their own, the mean of their own losses."""
    predict, total, count = ensemble.predictor(), 0.0, 0.0
    per_member = isinstance(held_out, ArraySource) and held_out.per_member
    for number, batch in enumerate(held_out.in_order(1024)):
        predictive = predict(batch.inputs, per_member=per_member, number=number)
        targets, weights = in_parts(batch.targets)
        if per_member:
            log_prob = predictive.member_log_prob(targets)[predictive.weights > 0].mean(0)
            counts = torch.ones_like(log_prob, dtype=torch.bool)
        else:
            log_prob, counts = predictive.log_prob(targets), predictive.rows_that_count(targets)
            if team is not ALONE:
                log_prob = mixture_log_prob(predictive.member_log_prob(targets), team)
        own = counts.double() if weights is None else counts * weights.cpu().double()
        total -= float((own * log_prob.double())[own > 0].sum())
        count += float(own.sum())
    return total / count
