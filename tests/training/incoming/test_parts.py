"""Whatever members get of their own goes by their numbers, and a run folder keeps these."""

import functools
import pickle

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.training.batches import PerMember
from bayesemble.training.incoming.parts import Part
from helpers import quick_fit, table

PARTS = (range(2), range(2, 3), range(3, 5))


def mlp(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 2))


def given(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp()


def per_member() -> PerMember:
    folds = [table(seed=seed) for seed in range(5)]
    return PerMember(torch.stack([x for x, _ in folds]), torch.stack([y for _, y in folds]))


SETTINGS = {
    "dropout": {},
    "bootstrap": {"method": {"bootstrap": True}},
    "own order": {"method": {"own_order": True}},
    "drawn rates": {"method": {"learning_rate": (1e-3, 1e-1)}},
    "rates of members": {"method": {"learning_rate": [0.01, 0.02, 0.03, 0.04, 0.05]}},
    "optimiser of torch": {"method": {"optimizer": "radam"}},
    "anchors": {"method": {"anchored": True}, "task": {"prior": be.NormalPrior(1.0)}},
    "drawn priors": {"task": {"prior": be.NormalPrior((0.1, 10.0))}},
    "priors of members": {"task": {"prior": be.NormalPrior(1.0, per_member=(1, 2, 3, 4, 5))}},
    "architectures": {"model": [mlp, functools.partial(mlp, 7), functools.partial(mlp, 3)]},
    "jitter": {"model": given(), "task": {"start": "given", "jitter": 0.3}},
    "starts": {"fit": {"start": [given(seed) for seed in range(5)]}},
    "rows of members": {"data": per_member()},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_parts_have_what_the_members_of_the_whole_have(name):
    options = SETTINGS[name]
    task = be.Task(options.get("model", mlp), be.Categorical(), **options.get("task", {}))
    method = be.DeepEnsemble(num_members=5, **options.get("method", {}))
    train = functools.partial(quick_fit, task, options.get("data", table()), method, seed=3, **options.get("fit", {}))
    whole, joined = train(), be.Ensemble.concat([train(members=part) for part in PARTS])
    for group, leaves in whole.state.groups().items():
        for leaf in leaves:
            assert torch.equal(joined.state.groups()[group][leaf], leaves[leaf]), (group, leaf)
    assert joined.method == whole.method
    assert not torch.equal(*whole.state.members.params[next(iter(whole.state.members.params))][:2])


def test_a_run_folder_keeps_the_numbers_and_goes_on_with_them(tmp_path):
    task, method = be.Task(mlp, be.Categorical()), be.DeepEnsemble(num_members=5, bootstrap=True)
    train = functools.partial(quick_fit, task, table(), method)
    whole = train(epochs=3)
    for part in PARTS:
        folder = tmp_path / str(part.start)
        train(epochs=1, members=part, checkpoint=folder)
        train(epochs=3, members=part, checkpoint=folder, resume=True)
    loaded = [be.load(tmp_path / str(part.start), mlp) for part in PARTS]
    assert [one.part for one in loaded] == [Part(part, method) for part in PARTS]
    joined = be.Ensemble.concat(loaded)
    for name, leaf in whole.state.members.params.items():
        assert torch.equal(joined.state.members.params[name], leaf)
    joined.save(tmp_path / "joined")
    assert be.load(tmp_path / "joined", mlp).part is None
    with pytest.raises(CheckpointError, match="made with members 0 to 1 of 5, now it is 3 to 4 of 5"):
        train(epochs=3, members=PARTS[2], checkpoint=tmp_path / "0", resume=True)
    with pytest.raises(CheckpointError, match="made with members 0 to 1 of 5, now it is all"):
        train(epochs=3, checkpoint=tmp_path / "0", resume=True)


@pytest.mark.parametrize("members", [range(3, 3), range(0, 4, 2), range(4, 6), range(-1, 2), [0, 1], 2])
def test_numbers_that_are_no_part_are_refused(members):
    with pytest.raises(SettingError, match=r"within range\(0, 5\) here; got"):
        quick_fit(be.Task(mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=5), members=members)


def test_what_goes_by_all_members_is_refused():
    with pytest.raises(SettingError, match="patience and keep_best go by the validation loss of all members"):
        quick_fit(be.Task(mlp, be.Categorical()), table(), members=range(1), validation=table(), patience=1)


def test_a_part_seed_goes_to_other_processes_with_its_numbers():
    seed = pickle.loads(pickle.dumps(Part(range(2, 4), be.DeepEnsemble()).seed(7)))
    assert (int(seed), seed.numbers, seed.whole) == (7, range(2, 4), 5)
