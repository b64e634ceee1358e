"""Fits side by side come to the bits of fits one by one, and are what `fit` would have given in everything else."""

import signal

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import scoped
from bayesemble.core.types import tensors_of
from bayesemble.training import side_by_side
from bayesemble.training.callbacks.base import Callbacks
from bayesemble.training.fit import complete
from bayesemble.training.prepare import prepare
from bayesemble.training.side_by_side import fit_side_by_side, groups_of, train_side_by_side
from helpers import small_mlp

SEEDS = (3, 3, 8, 0)


def wide(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 13), nn.ReLU(), nn.Linear(13, 7), nn.ReLU(), nn.Linear(7, outputs))


def split(number: int, num_rows: int = 37) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(num_rows, 4, generator=generator)
    return x, (x.sum(1) + x[:, 0] ** 2).unsqueeze(1)


SPLITS = [split(number) for number in range(len(SEEDS))]
TASK = be.Task(wide, be.Gaussian(0.5))
NORMED = be.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)), be.Gaussian())
BY_PLACE = be.Task(lambda: nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 1)), be.Gaussian())
SETTINGS = {"epochs": 3, "batch_size": 10, "executor": be.Vmap(), "progress": False}


def same(one: be.Ensemble, other: be.Ensemble) -> bool:
    """Whether two ensembles are the same but for the time that they took."""
    facts = [(found.describe(), [row | {"seconds": 0} for row in found.history]) for found in (one, other)]
    groups = [found.state.groups() | {"weights": {"": found.state.members.weights}} for found in (one, other)]
    return facts[0] == facts[1] and all(
        groups[0][group].keys() == leaves.keys()
        and all(torch.equal(groups[0][group][name], leaves[name]) for name in leaves)
        for group, leaves in groups[1].items()
    )


@pytest.fixture
def alone(monkeypatch) -> list:
    """The runs that were trained one by one."""
    found = []

    def noted(run, *rest):
        found.append(run)
        return train(run, *rest)

    train = side_by_side.train
    monkeypatch.setattr(side_by_side, "train", noted)
    return found


METHODS = {
    "plain": be.DeepEnsemble(num_members=3),
    "sgd": be.DeepEnsemble(num_members=2, optimizer="sgd", schedule="cosine"),
    "adamw": be.DeepEnsemble(num_members=2, optimizer="adamw", learning_rate=0.01),
    "clip": be.DeepEnsemble(num_members=3, clip=0.05),
    "bootstrap": be.DeepEnsemble(num_members=3, bootstrap=True),
    "anchored": be.DeepEnsemble(num_members=3, anchored=True),
    "adversarial": be.DeepEnsemble(num_members=2, adversarial=0.1),
}


@pytest.mark.parametrize("name", METHODS)
def test_fits_side_by_side_are_the_fits_one_by_one(name, alone):
    found = fit_side_by_side(TASK, METHODS[name], SPLITS, seeds=SEEDS, **SETTINGS)
    assert not alone, "they were not trained together"
    for one, data, seed in zip(found, SPLITS, SEEDS, strict=True):
        assert same(one, be.fit(TASK, METHODS[name], data, seed=seed, **SETTINGS))


@pytest.mark.parametrize("likelihood", [be.HeteroscedasticGaussian(), be.Gaussian(), be.Categorical()], ids=repr)
@pytest.mark.parametrize("members", [2, 5])
def test_no_fit_feels_the_others_under_any_likelihood_and_number_of_members(likelihood, members, alone):
    outputs = 1 if isinstance(likelihood, be.Gaussian) else 2
    task, method = be.Task(lambda: wide(outputs), likelihood), be.DeepEnsemble(num_members=members)
    classes = isinstance(likelihood, be.Categorical)
    splits = [(x, (y[:, 0] > 1).long() if classes else y[:, 0]) for x, y in SPLITS]
    found = fit_side_by_side(task, method, splits, seeds=SEEDS, **SETTINGS)
    assert not alone
    assert all(
        same(one, be.fit(task, method, data, seed=seed, **SETTINGS))
        for one, data, seed in zip(found, splits, SEEDS, strict=True)
    )


def test_the_executor_is_the_one_that_each_would_have_alone():
    settings = SETTINGS | {"executor": "auto", "epochs": 1}
    found = fit_side_by_side(TASK, METHODS["plain"], SPLITS, **settings)
    assert all(
        same(one, be.fit(TASK, METHODS["plain"], data, **settings)) for one, data in zip(found, SPLITS, strict=True)
    )
    assert isinstance(found[0].executor, be.Vmap)


def test_what_comes_back_owns_its_tensors_and_can_be_saved(tmp_path):
    one, other, *_ = fit_side_by_side(TASK, METHODS["plain"], SPLITS, **SETTINGS)
    for leaf in tensors_of(one.state.groups()):
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()
    assert one.state.slots["steps"]["step"] is not other.state.slots["steps"]["step"]
    one.save(tmp_path / "one")
    again = be.load(tmp_path / "one", wide)
    x = SPLITS[0][0]
    assert torch.equal(again.predict(x).mean, be.fit(TASK, METHODS["plain"], SPLITS[0], **SETTINGS).predict(x).mean)


@pytest.mark.parametrize(
    ("task", "method", "executor"),
    [
        (NORMED, METHODS["plain"], "vmap"),
        (TASK, be.Repulsive(num_members=2), "vmap"),
        (TASK, be.CyclicalSGMCMC(num_members=2), "vmap"),
        (BY_PLACE, METHODS["plain"], "vmap"),
        (TASK, METHODS["plain"], "loop"),
        (TASK, be.DeepEnsemble(num_members=1), "vmap"),
        (TASK, METHODS["plain"], be.Vmap(chunk=2)),
    ],
    ids=["batch norm", "interaction", "noise", "rounding by place", "loop", "one member", "chunks"],
)
def test_fits_that_cannot_go_together_are_trained_one_by_one(task, method, executor, alone):
    settings, splits = SETTINGS | {"executor": executor}, SPLITS[:2]
    found = fit_side_by_side(task, method, splits, seeds=SEEDS[:2], **settings)
    assert len(alone) == 2
    for one, data, seed in zip(found, splits, SEEDS[:2], strict=True):
        assert same(one, be.fit(task, method, data, seed=seed, **settings))


def test_fits_with_as_many_rows_go_together_and_come_back_in_order(alone):
    splits = [split(0), split(1, 40), split(2), split(3, 41), split(4, 40)]
    found = fit_side_by_side(TASK, METHODS["plain"], splits, **SETTINGS)
    assert len(alone) == 1, "the only one with 41 rows"
    assert all(
        same(one, be.fit(TASK, METHODS["plain"], data, **SETTINGS)) for one, data in zip(found, splits, strict=True)
    )


def test_no_more_fits_go_together_than_vmap_may_handle_at_a_time(monkeypatch):
    sizes, groups_of = [], side_by_side.groups_of

    def noted(ready):
        sizes.extend(map(len, groups_of(ready)))
        return groups_of(ready)

    monkeypatch.setattr(side_by_side, "groups_of", noted)
    monkeypatch.setattr(side_by_side, "NUMBERS_TOGETHER", 4000)
    found = fit_side_by_side(TASK, METHODS["plain"], SPLITS, **SETTINGS)
    assert max(sizes) < 4
    assert sum(sizes) == 4
    assert all(
        same(one, be.fit(TASK, METHODS["plain"], data, **SETTINGS)) for one, data in zip(found, SPLITS, strict=True)
    )


def prepared(folder, **settings):
    """Runs that may begin, each in a folder of its own."""
    return [
        prepare(TASK, METHODS["plain"], data, seed=seed, checkpoint=folder / str(number), **settings)
        for number, (data, seed) in enumerate(zip(SPLITS, SEEDS, strict=True))
    ]


@pytest.mark.parametrize("stops", [(2, 4, 1, 4), (1, 1, 3, 1)])
def test_a_fit_that_stops_early_leaves_the_others_alone(tmp_path, alone, stops):
    settings = {name: SETTINGS[name] for name in ("batch_size", "executor")} | {"epochs": 4}
    ready = prepared(tmp_path, **settings)
    ready = [
        one._replace(
            plan=side_by_side.replace(
                one.plan, callbacks=Callbacks(on_epoch=lambda _, row, stop=stop: row["epoch"] == stop)
            )
        )
        for one, stop in zip(ready, stops, strict=True)
    ]
    runs = train_side_by_side(ready)
    assert not alone
    for one, run, data, seed, stop in zip(ready, runs, SPLITS, SEEDS, stops, strict=True):
        expected = be.fit(
            TASK,
            METHODS["plain"],
            data,
            seed=seed,
            progress=False,
            on_epoch=lambda _, row, stop=stop: row["epoch"] == stop,
            **settings,
        )
        assert same(complete(one, run), expected)
        assert same(be.load(one.plan.folder, wide), expected), "the folder holds the same"


def test_an_interrupted_run_goes_on_alone_to_the_same_bits(tmp_path):
    settings = {name: SETTINGS[name] for name in ("epochs", "batch_size", "executor")}
    ready = prepared(tmp_path, **settings)

    def interrupt(_, row) -> None:
        if row["epoch"] == 2:
            signal.raise_signal(signal.SIGINT)

    ready[1] = ready[1]._replace(plan=side_by_side.replace(ready[1].plan, callbacks=Callbacks(on_epoch=interrupt)))
    with pytest.raises(be.Interrupted, match="side by side"):
        train_side_by_side(ready)
    for one, data, seed in zip(ready, SPLITS, SEEDS, strict=True):
        folder = one.plan.folder
        resumed = be.fit(
            TASK, METHODS["plain"], data, seed=seed, checkpoint=folder, resume=True, progress=False, **settings
        )
        assert same(resumed, be.fit(TASK, METHODS["plain"], data, seed=seed, progress=False, **settings))


@pytest.mark.parametrize("step", [2, 6], ids=["in the first epoch", "in a later epoch"])
def test_interrupted_runs_go_on_together_to_the_same_bits(tmp_path, alone, monkeypatch, step):
    settings = {name: SETTINGS[name] for name in ("epochs", "batch_size", "executor")}
    steps = []

    def interrupt(bar, epoch) -> None:
        steps.append(epoch)
        if len(steps) == step:
            signal.raise_signal(signal.SIGINT)

    ready = prepared(tmp_path, **settings)
    monkeypatch.setattr(side_by_side.Progress, "step", interrupt)
    with pytest.raises(be.Interrupted, match="side by side"):
        train_side_by_side(ready)
    ready = prepared(tmp_path, resume=True, **settings)
    assert {(one.run.standing.epoch, one.run.standing.step) for one in ready} == {(step // 4, step % 4)}
    runs = train_side_by_side(ready)
    assert not alone
    for one, run, data, seed in zip(ready, runs, SPLITS, SEEDS, strict=True):
        assert same(complete(one, run), be.fit(TASK, METHODS["plain"], data, seed=seed, progress=False, **settings))


def test_runs_that_have_come_to_different_epochs_do_not_go_together(tmp_path, alone):
    settings = {name: SETTINGS[name] for name in ("batch_size", "executor")}
    be.fit(TASK, METHODS["plain"], SPLITS[0], seed=SEEDS[0], checkpoint=tmp_path / "0", epochs=1, **settings)
    ready = prepared(tmp_path, resume=True, epochs=3, **settings)
    assert groups_of(ready) == [[0], [1, 2, 3]]
    for run, data, seed in zip(train_side_by_side(ready), SPLITS, SEEDS, strict=True):
        expected = be.fit(TASK, METHODS["plain"], data, seed=seed, progress=False, epochs=3, **settings)
        assert same(run.result(), expected)
    assert len(alone) == 1


@pytest.mark.filterwarnings("ignore:targets are about")
def test_an_error_says_which_fit_it_was():
    absurd = [SPLITS[0], (SPLITS[1][0], SPLITS[1][1] * 1e30), SPLITS[2]]
    with pytest.raises(be.TrainingError, match="number 1: the loss of member 0 became"):
        fit_side_by_side(TASK, METHODS["plain"], absurd, **SETTINGS)
    sizes = [split(0, 40), SPLITS[0], split(1, 40), absurd[1]]
    with pytest.raises(be.TrainingError, match="number 3: the loss of member 0 became"):
        fit_side_by_side(TASK, METHODS["plain"], sizes, **SETTINGS)
    with scoped(0):
        equal = be.Task(small_mlp(), be.Categorical(), start="given")
    splits = [(x, (y[:, 0] > 0).long()) for x, y in SPLITS]
    with pytest.raises(be.TrainingError, match="number 0: members 0, 1, 2 began with equal weights"):
        fit_side_by_side(equal, METHODS["plain"], splits, **SETTINGS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": [1, 2]}, "4 data sets need as many seeds, got 2"),
        ({"checkpoint": "folder"}, "checkpoint belongs to a single fit"),
        ({"validation": split(1)}, "validation belongs to a single fit"),
        ({"epochs": 0}, "epochs=0 trains nothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(be.SettingError, match=message):
        fit_side_by_side(TASK, METHODS["plain"], SPLITS, **(SETTINGS | settings))
