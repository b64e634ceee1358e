"""One run of a comparison: its result, its cost, its failure, and going on with it."""

import json
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.apps.compare.job import Job, executor_for, perform, score_run, warm_up
from bayesemble.apps.compare.source import RunSource, contents_of, open_run
from bayesemble.core import settings
from bayesemble.methods import METHODS


@pytest.fixture
def make(tmp_path, monkeypatch):
    def make(method=None, **options):
        method = method or be.DeepEnsemble(num_members=2)
        monkeypatch.setitem(METHODS, type(method).__name__, type(method))
        given = {"data": "two_moons", "seed": 1, "epochs": 4, "batch_size": 64, "method": settings.dump(method)}
        return Job("a", RunSource(**(given | options)), tmp_path)

    return make


def test_a_run_is_trained_scored_and_measured(make):
    job = make()
    result = perform(job)
    assert result.failure is None
    ensemble, split = open_run(job.folder)
    assert score_run(ensemble, split) == result.scores, "to the last bit"
    predictive = ensemble.predict(split.x_test)
    assert result.scores["aurc"] == be.metrics.aurc(predictive, split.y_test)
    cost = result.cost
    assert cost["train_seconds"] == sum(row["seconds"] for row in ensemble.history) > 0
    assert 0 < cost["predict_seconds"] < 5
    assert cost["gradient_evaluations"] == 4 * 4 * 2, "epochs, batches of 64 of 200 rows, members"
    assert cost["parameters"] == 2 * sum(p.numel() for p in ensemble.task.module.parameters())
    assert 0 <= cost["peak_memory_mb"] < 500
    assert sorted(path.name for path in job.folder.iterdir()) == [
        "checkpoint-000003",
        "checkpoint-000004",
        "result.json",
        "source.json",
    ]


def test_numbers_have_a_crps_in_units_of_the_target(make):
    job = make(data="diabetes", epochs=1)
    result = perform(job)
    ensemble, split = open_run(job.folder)
    targets = torch.as_tensor(split.target_shift + split.target_scale * split.y_test)
    rescaled = ensemble.predict(split.x_test).rescale(split.target_shift, split.target_scale)
    assert result.scores["crps"] == be.metrics.crps(rescaled, targets)
    assert result.scores["crps"] > 10, "the targets are around 150"


def test_a_finished_run_is_not_repeated_unless_its_settings_change(make):
    job = make()
    first = perform(job)
    before = (job.folder / "result.json").stat().st_mtime_ns
    assert perform(job) == first
    assert (job.folder / "result.json").stat().st_mtime_ns == before
    longer = replace(job, source=replace(job.source, epochs=6))
    assert longer.finished() is None


def test_a_result_that_is_damaged_or_edited_is_made_again_from_the_checkpoint(make):
    job = make()
    first, path = perform(job), job.folder / "result.json"
    good = path.read_text()
    for bad in ("{", good[:-9], good.replace(repr(first.scores["nll"]), "0.0001")):
        assert bad != good
        path.write_text(bad)
        with pytest.warns(UserWarning, match=r"result\.json is damaged.*The run is scored again"):
            assert job.finished() is None
        with pytest.warns(UserWarning, match=r"result\.json is damaged"):
            assert perform(job).scores == first.scores
        assert job.finished().scores == first.scores


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(make, tmp_path):
    job = make(epochs=8)
    whole, half = perform(job), replace(job, root=tmp_path / "half")
    interrupt(half)
    resumed = perform(half)
    assert resumed.scores == whole.scores
    assert len(open_run(half.folder)[0].history) == 8


class InterruptionError(Exception):
    pass


def interrupt(job):
    """Train half of it, as `perform` does."""
    split = job.source.split()
    job.source.write(job.folder)

    def stop(_, row):
        if row["epoch"] == 5:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        be.fit(
            job.source.task(split),
            job.source.make_method(),
            (split.x_train, split.y_train),
            epochs=8,
            batch_size=64,
            seed=1,
            executor=executor_for(job.source.make_method(), job.source.dropout),
            checkpoint=job.folder,
            progress=False,
            on_epoch=stop,
        )


@dataclass(frozen=True, kw_only=True)
class Broken(be.DeepEnsemble):
    """Fails in a way that nobody thought of."""

    def step(self, state, batch, context):
        raise ZeroDivisionError("division by zero")


@dataclass(frozen=True, kw_only=True)
class Impatient(be.DeepEnsemble):
    """As if a person had pressed Ctrl-C."""

    def step(self, state, batch, context):
        raise KeyboardInterrupt


def test_what_goes_wrong_becomes_a_reason_and_is_tried_again(make):
    job = make(be.DeepEnsemble(num_members=2, weight_decay=0.1))
    result = perform(job)
    assert "weight_decay=0.1 and the prior" in result.failure
    assert (result.scores, result.cost) == ({}, {})
    assert not (job.folder / "result.json").exists()
    assert perform(make(Broken(num_members=2))).failure == "ZeroDivisionError: division by zero"
    assert perform(make(data="mars")).failure.startswith("unknown data set 'mars'")


def test_a_person_can_still_stop_it(make):
    with pytest.raises(KeyboardInterrupt):
        perform(make(Impatient(num_members=2)))


@dataclass(frozen=True, kw_only=True)
class Slow(be.DeepEnsemble):
    """Takes its time once training is over."""

    def finish(self, state, data, context):
        time.sleep(0.3)
        warnings.warn("that took long", stacklevel=2)
        return replace(state)


def test_what_a_method_does_after_training_counts_and_its_warnings_are_notes(make):
    result = perform(make(Slow(num_members=2)))
    assert result.cost["train_seconds"] > 0.3
    assert result.notes == ["that took long"]
    assert perform(make(Slow(num_members=2))).notes == ["that took long"], "also when it is read back"


@dataclass(frozen=True, kw_only=True)
class Hungry(be.DeepEnsemble):
    """Takes memory for a moment."""

    megabytes: int = 0

    def step(self, state, batch, context):
        torch.ones(self.megabytes * 2**20, dtype=torch.uint8)
        return super().step(state, batch, context)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux starts the peak anew")
def test_the_peak_of_memory_is_that_of_the_run_alone(make, tmp_path):
    peaks = []
    for size in (200, 100):
        job = replace(make(Hungry(num_members=2, megabytes=size), epochs=1), root=tmp_path / str(size))
        peaks.append(perform(job).cost["peak_memory_mb"])
    assert peaks == pytest.approx([200, 100], abs=40), "also after a run that took more"


def test_the_executor_depends_on_the_method_alone():
    assert executor_for(be.DeepEnsemble(num_members=1), dropout=0.0) == be.Loop(draws_by_vmap=True, threads=1)
    assert executor_for(be.DeepEnsemble(num_members=2), dropout=0.0) == be.Vmap(threads=1)
    assert executor_for(be.MCDropout(num_members=2), dropout=0.1) == be.Loop(draws_by_vmap=True, threads=1)


def test_the_folder_of_a_run_is_named_after_its_method_and_seed(make):
    job = replace(make(seed=2), label="deep_ensemble:clip=1,learning_rate=0.1")
    assert job.run == "runs/deep_ensemble-clip=1-learning_rate=0.1/seed-2"


@dataclass(frozen=True, kw_only=True)
class Counted(be.DeepEnsemble):
    """Counts how often it starts."""

    def init(self, task, seed):
        starts.append(seed)
        return super().init(task, seed)


starts = []


def test_a_method_is_warmed_up_once_whatever_goes_wrong():
    for _ in range(2):
        warm_up(Counted(num_members=2))
    assert len(starts) == 1
    warm_up(Broken(num_members=2))


def test_data_that_has_changed_is_read_again(make, tmp_path):
    path = tmp_path / "a.npz"
    counts = []
    for rows in (40, 60):
        np.savez(path, x=np.arange(2.0 * rows).reshape(rows, 2), y=np.arange(float(rows)))
        os.utime(path, ns=(rows, rows))
        contents = contents_of(str(path), None)
        job = replace(make(data=str(path), epochs=1, batch_size=8, contents=contents), root=tmp_path / str(rows))
        counts.append(perform(job).cost["gradient_evaluations"])
    assert counts == [2 * 4, 2 * 6]
    late = make(data=str(path), epochs=1, contents={"data": "of before"})
    assert "a.npz is not what it was when the run was made" in perform(late).failure


def test_progress_is_the_epoch_while_it_runs(make):
    job = make()
    assert job.progress() is None
    job.folder.mkdir(parents=True)
    (job.folder / "progress").write_text("3")
    assert job.progress() == 3
    perform(job)
    assert job.progress() is None
    assert json.loads((job.folder / "result.json").read_text())["settings"]["epochs"] == 4
