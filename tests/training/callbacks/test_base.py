import math
import signal
from types import SimpleNamespace

import pytest
import torch

import bayesemble as be
from bayesemble.training.callbacks.base import Callbacks, figures
from helpers import all_leaves, largest_difference, quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())


class Notes(be.Callback):
    """Writes down all that it is told."""

    def __init__(self, stop_at=None):
        self.told, self.stop_at = [], stop_at

    def on_start(self, ensemble):
        self.told.append(("start", len(ensemble.history)))

    def on_step(self, step, info):
        assert info["loss"].shape == (3,)
        self.told.append(("step", step))
        return step == self.stop_at

    def on_epoch(self, state, row):
        self.told.append(("epoch", row["epoch"], "validation_loss" in row))

    def on_end(self, ensemble):
        self.told.append(("end", len(ensemble.history)))


class OnlyEpochs:
    """Has one of the functions, and no class in common."""

    def __init__(self):
        self.epochs = 0

    def on_epoch(self, state, row):
        self.epochs += 1


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_everything_is_told_once_and_in_order(executor):
    notes, other, rows = Notes(), OnlyEpochs(), []
    fitted = quick_fit(
        TASK,
        table(32),
        callbacks=[notes, other],
        on_epoch=lambda state, row: rows.append(row),
        validation=table(8),
        executor=executor,
    )
    steps = [[("step", 2 * epoch - 1), ("step", 2 * epoch), ("epoch", epoch, True)] for epoch in (1, 2)]
    assert notes.told == [("start", 0), *steps[0], *steps[1], ("end", 2)]
    assert other.epochs == 2
    assert rows == fitted.history
    same = quick_fit(TASK, table(32), validation=table(8), executor=executor)
    assert largest_difference(all_leaves(fitted), all_leaves(same)) == 0, "looking on changes nothing"


def test_a_step_stops_training_and_the_row_is_of_the_steps_there_were(tmp_path):
    losses = []

    class Losses(be.Callback):
        def on_step(self, step, info):
            losses.append(info["loss"])

    notes = Notes(stop_at=4)
    stopped = quick_fit(
        TASK, table(48), epochs=5, callbacks=[Losses(), notes], validation=table(8), checkpoint=tmp_path
    )
    assert notes.told[-3:] == [("step", 4), ("epoch", 2, True), ("end", 2)]
    assert len(stopped.history) == 2
    assert stopped.history[-1]["loss"] == losses[3].tolist()
    resumed = quick_fit(TASK, table(48), epochs=5, validation=table(8), checkpoint=tmp_path, resume=True)
    assert largest_difference(all_leaves(stopped), all_leaves(resumed)) == 0, "a run that was stopped is over"


def test_a_resumed_run_begins_with_its_history(tmp_path):
    quick_fit(TASK, table(32), checkpoint=tmp_path)
    notes = Notes()
    quick_fit(TASK, table(32), checkpoint=tmp_path, epochs=3, resume=True, callbacks=[notes])
    assert notes.told == [("start", 2), ("step", 5), ("step", 6), ("epoch", 3, False), ("end", 3)]


class Interrupts(be.Callback):
    """Presses Ctrl-C after a step."""

    def __init__(self, step):
        self.step = step

    def on_step(self, step, info):
        if step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_raises_or_returns_what_there_is_as_asked(tmp_path):
    notes = Notes()
    with pytest.raises(be.Interrupted) as caught:
        quick_fit(TASK, table(32), epochs=3, callbacks=[Interrupts(3), notes])
    assert notes.told[-1] == ("end", 1), "who looks on learns of the end"
    with pytest.warns(UserWarning, match=r"stopped after step 1 of epoch 2.*what there is so far is returned"):
        returned = quick_fit(
            TASK, table(32), epochs=3, callbacks=[Interrupts(3)], on_interrupt="return", checkpoint=tmp_path
        )
    assert largest_difference(all_leaves(caught.value.ensemble), all_leaves(returned)) == 0
    assert returned.predict(table(32)[0]).probs.shape == (32, 2)
    whole, resumed = quick_fit(TASK, table(32), epochs=3), None
    resumed = quick_fit(TASK, table(32), epochs=3, checkpoint=tmp_path, resume=True)
    assert largest_difference(all_leaves(whole), all_leaves(resumed)) == 0
    with pytest.raises(be.SettingError, match="on_interrupt is 'raise' or 'return', not 'ignore'"):
        quick_fit(TASK, table(32), on_interrupt="ignore")


class Dies(be.Callback):
    """Ends the process's part in a run, as a power cut would."""

    def __init__(self, step):
        self.step = step

    def on_step(self, step, info):
        if step == self.step:
            raise MemoryError


@pytest.mark.parametrize("every", ["3 steps", "0.000001 s"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_run_killed_within_an_epoch_goes_on_from_the_checkpoint_there_to_the_same_bits(every, executor, tmp_path):
    settings = {"epochs": 3, "batch_size": 4, "executor": executor}
    whole = quick_fit(TASK, table(32), **settings)
    with pytest.raises(MemoryError):
        quick_fit(TASK, table(32), checkpoint=tmp_path, checkpoint_every=every, callbacks=[Dies(14)], **settings)
    notes = Notes()
    resumed = quick_fit(TASK, table(32), checkpoint=tmp_path, resume=True, callbacks=[notes], **settings)
    assert notes.told[1] == ("step", 13 if every == "3 steps" else 14)
    assert largest_difference(all_leaves(whole), all_leaves(resumed)) == 0
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


class Assigned(be.Callback):
    """Has functions that were put into it, before training or in `on_start`."""

    def __init__(self, late):
        self.told, self.late = [], late
        if not late:
            self.listen(None)

    def listen(self, ensemble):
        for event in ("on_step", "on_epoch", "on_end"):
            setattr(self, event, lambda *_, event=event: self.told.append(event))

    def on_start(self, ensemble):
        if self.late:
            self.listen(ensemble)


@pytest.mark.parametrize("late", [False, True], ids=["before", "in on_start"])
def test_functions_that_are_put_into_a_callback_are_called(late):
    callback = Assigned(late)
    quick_fit(TASK, table(32), callbacks=[callback])
    assert callback.told == 2 * ["on_step", "on_step", "on_epoch"] + ["on_end"]


def test_a_rank_does_not_begin_to_listen_to_steps(monkeypatch):
    """The others would go on where this one stops."""
    monkeypatch.setattr("bayesemble.training.epochs.ALONE", None)
    with pytest.raises(be.SettingError, match=r"was given on_step in training; executor=Ranks\(\) cannot call it"):
        quick_fit(TASK, table(32), callbacks=[Assigned(late=True)])


def test_a_callback_can_stop_listening():
    class Twice(be.Callback):
        steps = 0

        def on_step(self, step, info):
            self.steps += 1
            if step == 2:
                self.on_step = None

    callback = Twice()
    quick_fit(TASK, table(32), callbacks=[callback])
    assert callback.steps == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SimpleNamespace(on_step=print, on_epoch=3), "on_epoch of a callback is a function, got 3"),
        (Notes, "a callback is an object, got the class Notes; call it"),
        (lambda state, row: None, "a function of state and row goes to on_epoch="),
        (3, "a callback has on_start, on_step, on_epoch or on_end, got 3"),
    ],
)
def test_what_is_no_callback_is_refused(given, message):
    with pytest.raises(be.SettingError, match=message):
        Callbacks([given])


def test_nothing_is_called_after_steps_if_nobody_asks():
    assert Callbacks([OnlyEpochs(), be.Callback()]).steps == []


def test_fits_side_by_side_refuse_callbacks():
    with pytest.raises(be.SettingError, match="callbacks belongs to a single fit"):
        be.fit_side_by_side(TASK, be.DeepEnsemble(), [table(32)] * 2, epochs=1, callbacks=[Notes()])


def test_figures_of_a_row_are_flat_and_the_mean_is_of_members_that_are_finite():
    row = {"epoch": 2, "loss": [1.0, math.nan, 3.0], "seconds": 0.5, "dropped": [{"member": 1}]}
    found = figures(row)
    assert math.isnan(found.pop("loss/1"))
    assert found == {"epoch": 2, "loss/mean": 2.0, "loss/0": 1.0, "loss/2": 3.0, "seconds": 0.5}
    assert torch.tensor(figures({"loss": [math.nan]})["loss/mean"]).isnan()
