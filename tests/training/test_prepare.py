"""What comes before training; the settings that are refused are in test_fit.py."""

import torch

import bayesemble as be
from bayesemble.execute.choose import Choice
from bayesemble.training.epochs import train
from bayesemble.training.fit import complete
from bayesemble.training.prepare import prepare
from helpers import all_leaves, largest_difference, quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())


def test_a_run_that_may_begin_has_taken_no_step_and_trains_to_what_fit_gives():
    ready = prepare(TASK, be.DeepEnsemble(num_members=3), table(), epochs=2, batch_size=16, executor="loop")
    assert ready.plan.total_steps == 6
    assert not ready.run.ensemble.history
    start = ready.run.ensemble.task.new_members(3, seed=0)
    assert largest_difference(ready.run.ensemble.state.members.params, start.params) == 0
    found = complete(ready, train(*ready, progress=False))
    assert largest_difference(all_leaves(found), all_leaves(quick_fit(TASK, table()))) == 0


def test_an_executor_that_was_chosen_before_is_taken_with_its_reason():
    choice = Choice(be.Vmap(threads=1), "few numbers")
    ensemble = prepare(TASK, be.DeepEnsemble(num_members=3), table(), epochs=1, executor=choice).run.ensemble
    assert (ensemble.executor, ensemble.execution) == (choice.executor, choice.reason)
    assert all(torch.isfinite(leaf).all() for leaf in ensemble.state.members.params.values())
