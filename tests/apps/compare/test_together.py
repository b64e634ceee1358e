"""Seeds that are trained together come to the results and the folders of seeds one by one, whatever happens."""

import json
import warnings
from dataclasses import asdict, dataclass, replace

import pytest
import torch

import bayesemble as be
from bayesemble.apps.compare import together
from bayesemble.apps.compare.compare import compare
from bayesemble.apps.compare.job import Job, Share, perform
from bayesemble.apps.compare.request import Request
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.compare.source import RunSource, open_run
from bayesemble.apps.compare.together import perform_together
from bayesemble.core import settings
from bayesemble.core.types import tensors_of
from bayesemble.methods import METHODS
from bayesemble.training import side_by_side

SEEDS = 3


def compared(out, joint, methods="map,deep_ensemble", **options):
    request = Request(data="two_moons", methods=methods, members=2, epochs=4, seeds=SEEDS, batch_size=16)
    return compare(request, out, together=joint, progress=False, **options)


def told(results):
    """What results say but for costs that differ from time to time, and for what they shared."""
    steady = ("gradient_evaluations", "parameters")
    return [
        (asdict(replace(one, cost={}, together=1)), {name: one.cost[name] for name in steady if one.cost})
        for one in results
    ]


def contents(folder):
    """The bits of the ensemble that a run folder holds, and its history but for seconds."""
    ensemble, _ = open_run(folder)
    bits = [leaf.numpy().tobytes() for leaf in tensors_of(ensemble.state.groups())]
    return bits, ensemble.describe(), [row | {"seconds": 0, "finish_seconds": 0} for row in ensemble.history]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, compared(folder, joint=False)


@pytest.fixture
def groups(monkeypatch):
    """How many runs were trained as one, each time."""
    found = []
    train = side_by_side._Together.train
    monkeypatch.setattr(
        side_by_side._Together, "train", lambda self, shown: found.append(len(self.ready)) or train(self, shown)
    )
    return found


def test_results_weights_and_folders_are_those_of_seeds_one_by_one(tmp_path, alone, groups):
    folder, expected = alone
    said = []
    found = compared(tmp_path, joint=True, say=said.append)
    assert groups == [SEEDS], "the networks of map are single"
    assert told(found.results) == told(expected.results)
    assert [one.together for one in found.results] == [1, SEEDS] * SEEDS
    assert len(said) == 2 * SEEDS
    for result in found.results:
        assert contents(tmp_path / result.run) == contents(folder / result.run)
        files, others = ({path.name for path in (root / result.run).iterdir()} for root in (tmp_path, folder))
        assert files - others == ({"together.json"} if result.together > 1 else set())
        assert others <= files
    shared = [one for one in found.results if one.together > 1]
    assert len({one.cost["train_seconds"] for one in shared}) == 1, "each has the same share"
    assert len({one.cost["peak_memory_mb"] for one in shared}) == 1
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row["together"] for row in written["results"]] == [1, SEEDS] * SEEDS
    assert [row.get("together") for row in written["summary"]] == [None, SEEDS]
    assert Comparison.read(tmp_path) == found
    assert compared(tmp_path, joint=True) == compared(tmp_path, joint=False) == found, "nothing is repeated"


def interrupt(monkeypatch, steps):
    """End the joint run at once after so many steps, as a kill would."""
    left, take = list(range(steps)), side_by_side._Together.step

    def step(*arguments):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return take(*arguments)

    monkeypatch.setattr(side_by_side._Together, "step", step)


@pytest.mark.parametrize("joint", [True, False], ids=["together", "one by one"])
def test_a_killed_joint_run_goes_on_with_the_same_command(tmp_path, alone, groups, monkeypatch, joint):
    with monkeypatch.context() as patched:
        interrupt(patched, steps=30)
        with pytest.raises(KeyboardInterrupt):
            compared(tmp_path, joint=True, methods="deep_ensemble")
    assert all("the same command goes on" in one.failure for one in Comparison.read(tmp_path).results)
    found = compared(tmp_path, joint=joint, methods="deep_ensemble")
    assert groups == ([SEEDS, SEEDS] if joint else [SEEDS])
    assert told(found.results) == told(alone[1].of("deep_ensemble"))
    assert [one.together for one in found.results] == [SEEDS] * SEEDS, "the first epochs were shared"
    for result in found.results:
        assert contents(tmp_path / result.run) == contents(alone[0] / result.run)


@dataclass(frozen=True, kw_only=True)
class Grows(be.DeepEnsemble):
    """The members of one seed grow until they are no longer finite; and whoever starts is warned of its seed."""

    def init(self, task, seed):
        state = super().init(task, seed)
        warnings.warn(f"this is seed {seed}", stacklevel=2)
        if seed == 1:
            state.members.params["1.bias"][:] = 20.0
        return state

    def step(self, state, batch, context):
        state, info = super().step(state, batch, context)
        for leaf in state.members.params.values():
            leaf.copy_(torch.where(leaf > 10, leaf * 100, leaf))
        return state, info


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    def jobs(name, method=None, seeds=SEEDS, **options):
        method = method or be.DeepEnsemble(num_members=2)
        monkeypatch.setitem(METHODS, type(method).__name__, type(method))
        given = {"data": "two_moons", "epochs": 3, "batch_size": 16, "method": settings.dump(method)} | options
        return [Job("a", RunSource(seed=seed, **given), tmp_path / name) for seed in range(seeds)]

    return jobs


def test_a_seed_that_fails_does_not_take_the_others_with_it(jobs, groups):
    heard = []
    found = perform_together(jobs("joint", Grows(num_members=2)), lambda job, result: heard.append(job.source.seed))
    expected = [perform(job) for job in jobs("alone", Grows(num_members=2))]
    assert groups == [SEEDS]
    assert heard == list(range(SEEDS))
    assert "epoch 2" in found[1].failure, "there was a checkpoint already"
    assert [one.failure is None for one in found] == [True, False, True]
    assert told(found) == told(expected)
    assert found[0].notes == ["this is seed 0"], "warnings of the joint run are notes too"
    assert [one.together for one in found] == [SEEDS, 1, SEEDS], "up to where one of them failed"


def test_what_is_wrong_with_a_run_or_its_data_is_told_by_that_run(jobs, groups):
    missing = jobs("missing", data="mars")
    assert all(one.failure.startswith("unknown data set") for one in perform_together(missing, lambda *_: None))
    unknown = jobs("unknown", method=None)
    unknown = [replace(job, source=replace(job.source, method={"class": "Nobody"})) for job in unknown]
    assert all("Nobody" in one.failure for one in perform_together(unknown, lambda *_: None))
    mixed = jobs("mixed", epochs=2)
    mixed[0] = replace(mixed[0], source=replace(mixed[0].source, contents={"data": "of before"}))
    found = perform_together(mixed, lambda *_: None)
    assert "is not what it was" in found[0].failure
    assert [one.together for one in found] == [1, 2, 2]
    assert groups == [2]


def test_seeds_that_are_finished_are_left_alone_and_one_that_is_left_has_nobody_to_go_with(jobs, groups):
    few, all_jobs = jobs("more", epochs=2, seeds=2), jobs("more", epochs=2)
    first, more = (perform_together(some, lambda *_: None) for some in (few, all_jobs))
    assert groups == [2]
    assert more[:2] == first
    assert [one.together for one in more] == [2, 2, 1]


def test_runs_that_would_come_to_other_bits_together_share_nothing(jobs, monkeypatch):
    monkeypatch.setattr(side_by_side._Together, "same_bits", lambda self: False)
    own = jobs("joint", epochs=2)
    found = perform_together(own, lambda *_: None)
    assert told(found) == told([perform(job) for job in jobs("alone", epochs=2)])
    assert [one.together for one in found] == [1] * SEEDS
    assert not any((job.folder / "together.json").exists() for job in own)


def test_a_share_holds_only_for_the_checkpoints_it_was_written_for(jobs):
    job = jobs("anew", epochs=2)[0]
    job.folder.mkdir(parents=True)
    Share(5, 100.0, ["of before"]).write(job.folder)
    assert Share.read(job.folder) == Share()
    result = perform(job)
    assert (result.together, result.notes) == (1, [])
    assert not (job.folder / "together.json").exists()


def test_runs_that_go_together_are_not_spread(tmp_path):
    with pytest.raises(be.SettingError, match="trained in one process, got jobs=2; leave it out"):
        compared(tmp_path / "out", joint=True, jobs=2)
    with pytest.raises(be.SettingError, match="in this process; leave out the engine"):
        compared(tmp_path / "out", joint=True, engine=lambda *_: iter(()))
    assert not (tmp_path / "out").exists()
    together.check_in_one_process(None, None)
