import pytest
import torch

import bayesemble as be
from bayesemble.core.types import Batch
from bayesemble.execute.vmap import SideBySide
from bayesemble.models import mlp
from helpers import (
    all_leaves,
    dropout_mlp,
    images,
    largest_difference,
    norm_convnet,
    norm_mlp,
    quick_fit,
    small_mlp,
    table,
)

NETWORKS = {
    "mlp": (small_mlp, table(40)),
    "batch norm": (norm_mlp, table(40)),
    "dropout": (dropout_mlp, table(40)),
    "batch-norm convnet": (norm_convnet, images(40)),
}
TWENTY_STEPS = {"epochs": 5, "batch_size": 10}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("executor", [be.Vmap(), be.Vmap(chunk=2), be.Loop(channels_last=True)], ids=repr)
def test_every_executor_gives_the_weights_of_the_loop_after_twenty_steps(name, executor):
    make, data = NETWORKS[name]
    task, method = be.Task(make, be.Categorical()), be.DeepEnsemble(num_members=5)
    loop = quick_fit(task, data, method, executor="loop", **TWENTY_STEPS)
    other = quick_fit(task, data, method, executor=executor, **TWENTY_STEPS)
    assert largest_difference(all_leaves(loop), all_leaves(other)) < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_member_does_not_depend_on_how_many_train_beside_it(name, executor):
    make, data = NETWORKS[name]
    task = be.Task(make, be.Categorical())
    few, many = (
        quick_fit(task, data, be.DeepEnsemble(num_members=num), executor=executor, **TWENTY_STEPS) for num in (2, 7)
    )
    assert largest_difference(all_leaves(few), all_leaves(many), members=2) < 1e-5


@pytest.mark.parametrize("executor", [be.Loop(), be.Vmap(), be.Vmap(chunk=2)], ids=repr)
@pytest.mark.parametrize("per_member", [False, True])
def test_gradients_equal_those_of_plain_modules(executor, per_member):
    x, y = table(12)
    task = be.Task(small_mlp, be.Categorical()).bind(12, x)
    members = task.new_members(3, seed=0)
    batch = Batch(x, y)
    if per_member:
        batch = Batch(torch.stack([x, -x, 2 * x]), torch.stack([y, 1 - y, y]), None, True, True)
    values, gradients = executor.gradients(task.mean_log_likelihood, members, batch)
    for index in range(3):
        network = task.module
        network.load_state_dict({name: leaf[index] for name, leaf in members.params.items()})
        loss = torch.nn.functional.cross_entropy(network(batch.inputs_of(index)), batch.targets_of(index))
        slopes = torch.autograd.grad(loss, list(network.parameters()))
        torch.testing.assert_close(values[index], -loss.detach())
        for slope, gradient in zip(slopes, gradients.values(), strict=True):
            torch.testing.assert_close(gradient[index], -slope, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("executor", [be.Loop(), be.Vmap(), be.Vmap(chunk=2)], ids=repr)
def test_a_shared_leaf_gets_the_sum_of_the_gradients_of_the_members(executor):
    x, y = table(12)
    task = be.Task(small_mlp, be.Categorical()).bind(12, x)
    first = task.new_member(seed=0)[0]
    stacked = be.Members.stack([first] * 3, [{}] * 3)
    shared = be.Members.stack([first] * 3, [{}] * 3, share=frozenset({"0.weight"}))
    apart = executor.gradients(task.mean_log_likelihood, stacked, Batch(x, y))[1]
    together = executor.gradients(task.mean_log_likelihood, shared, Batch(x, y))[1]
    torch.testing.assert_close(together["0.weight"], apart["0.weight"].sum(0))
    torch.testing.assert_close(together["2.weight"], apart["2.weight"])


@pytest.mark.parametrize("per_member", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_a_member_have_the_bits_that_they_have_among_any_others(threads, per_member):
    task = be.Task(lambda: mlp(13, [50], 1), be.Gaussian())
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 77, 13, generator=generator), torch.randn(24, 77, 1, generator=generator)
    bound = task.bind(77, x[0])
    members, executor = bound.new_members(24, seed=0), SideBySide(threads=threads, num_fits=12)
    if not per_member:
        x, y = (rows[:1].expand(24, *rows.shape[1:]) for rows in (x, y))
    _, together = executor.gradients(bound.mean_log_likelihood, members, Batch(x, y, None, True, True))
    for start in range(0, 24, 2):
        own = slice(start, start + 2)
        batch = Batch(x[own], y[own], None, True, True) if per_member else Batch(x[0], y[0])
        _, alone = executor.gradients(bound.mean_log_likelihood, members.part(start, start + 2), batch)
        assert all(torch.equal(alone[name], leaf[own]) for name, leaf in together.items())


@pytest.mark.parametrize(
    ("chunk", "parts", "few", "details"),
    [(None, [(0, 7)], False, []), (3, [(0, 3), (3, 6), (6, 7)], True, ["by 3"]), (7, [(0, 7)], True, ["by 7"])],
)
def test_chunks_are_as_large_as_asked_for(chunk, parts, few, details):
    executor, members = be.Vmap(chunk=chunk), be.Members({"a": torch.zeros(7, 2)}, {}, torch.full((7,), 1 / 7))
    assert list(executor._chunks(members)) == parts
    assert (executor.runs_few_members, executor.details()) == (few, details)


def test_a_chunk_of_no_members_is_refused():
    with pytest.raises(be.SettingError, match="chunk is a whole number from 1 or None, got 0"):
        be.Vmap(chunk=0)
