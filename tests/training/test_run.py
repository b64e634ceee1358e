from pathlib import Path

import pytest
import torch

import bayesemble as be
from bayesemble.core.types import Clock
from bayesemble.training.run import Plan, Run, told_by_step
from bayesemble.training.run_folders import checkpoint as checkpoints
from bayesemble.training.run_folders.standing import Standing
from helpers import quick_fit, small_mlp, table


def test_a_plan_tells_the_time_of_each_step():
    plan = Plan(epochs=3, batch_size=16, steps=4, seed=7, device=torch.device("cpu"))
    assert plan.total_steps == 12
    assert plan.clock(epoch=2, step=1) == Clock(9, 12, 7)


@pytest.fixture
def run() -> Run:
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    gathered = [{"loss": torch.tensor([1.0, 2.0, 3.0]) + step} for step in range(2)]
    best = ensemble.state.map(lambda _, leaf: leaf + 1)
    return Run(ensemble, Standing(2, 5, 16, step=2), best, gathered)


def test_a_checkpoint_holds_all_of_a_run(run: Run, tmp_path: Path):
    run.save(tmp_path, keep=1)
    found = checkpoints.read(tmp_path)
    assert Standing.from_json(found.run["progress"]) == run.standing
    for step, told in enumerate(told_by_step(found.told, 2)):
        assert torch.equal(told["loss"], run.gathered[step]["loss"])
    for state, saved in ((run.ensemble.state, found.state), (run.best, found.best)):
        for name, leaf in state.members.params.items():
            assert torch.equal(saved.members.params[name], leaf)


def test_what_comes_of_a_run_is_its_best_state_if_one_was_kept(run: Run):
    for result, state in ((run.result(), run.best), (Run(run.ensemble, run.standing).result(), run.ensemble.state)):
        assert all(torch.equal(result.state.members.params[name], leaf) for name, leaf in state.members.params.items())


def test_what_steps_told_comes_back_step_by_step():
    told = {"loss": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "acceptance": torch.tensor([[0.1], [0.2]])}
    first, second = told_by_step(told, 2)
    assert first["loss"].tolist() == [1.0, 2.0]
    assert second["loss"].tolist() == [3.0, 4.0]
    assert torch.equal(torch.stack([first["acceptance"], second["acceptance"]]), told["acceptance"])
    assert told_by_step({}, 0) == []
