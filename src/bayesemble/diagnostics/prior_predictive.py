"""Functions that a task and a method believe in before they have seen any data."""

from dataclasses import replace
from typing import Any

import torch

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs, check_rows
from bayesemble.core.errors import SettingError
from bayesemble.core.types import tensors_of
from bayesemble.execute.loop import Loop
from bayesemble.methods import Method, Patched
from bayesemble.predictive import Predictive
from bayesemble.task.task import Task
from bayesemble.training.ensemble import Ensemble


def prior_predictive(task: Task, method: Method | None, inputs: Any, num: int = 10, seed: int = 0) -> Predictive:
    """Predictions of networks drawn from the prior; each member of the result is one function.

    For an implicit ensemble such as `EMP`, the components are drawn from the prior once, and functions are draws of
    that one ensemble: they show how much it can differ from draw to draw. With None, or any other method, every
    function has weights of its own from the prior: p(f) = integral p(f | w) p(w) dw.

    Args:
        task: What is inferred; its prior must be there.
        method: An implicit ensemble, or None.
        inputs: Rows at which to look at the functions.
        num: How many functions.
        seed: All randomness derives from it.
    """
    if task.prior is None:
        raise SettingError("functions are drawn from the prior, and the task has none; give it one")
    tensors = as_inputs(inputs, task.dtype)
    check_rows(tensors, None, False)
    bound = task.bind(len(tensors_of(tensors)[0]), tensors)
    if isinstance(method, Patched):
        ensemble = Ensemble(bound, method, method.from_prior(bound, seed), Loop(), seed)
        return ensemble.predict(tensors, num_draws=num, seed=seed)
    members = bound.new_members(num, seed)
    generators = [seeds.generator(seed, "member", index, "prior") for index in range(num)]
    assert bound.prior is not None
    drawn = [bound.prior.sample(task.shapes, generator, task.dtype) for generator in generators]
    params = {name: torch.stack([one[name] for one in drawn]) for name in task.shapes}
    networks = replace(members, params=members.params | params)
    return Ensemble.of_networks(bound, networks, Loop(), seed).predict(tensors)
