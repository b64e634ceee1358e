"""What members of an adapted network begin with."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.execute.loop import Loop
from bayesemble.execute.vmap import Vmap
from bayesemble.task.adapters.starts import backbone_name, fresh_leaves, is_adapted


def transformer(classes=3):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(4 * 8, classes))


def rows(generator, num=6):
    return torch.randn(num, 4, 3, generator=generator)


def started(model, num_members=4, seed=0, **settings):
    task = be.Task(model, be.Categorical(), **settings)
    return task, task.new_members(num_members, seed)


def outputs(task, members, x, executor):
    return executor.outputs(lambda params, buffers, rows, _: task.forward(params, buffers, rows), members, x, False)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("targets", ["linear1|linear2", nn.Linear, "0|out_proj"])
def test_every_member_begins_with_the_outputs_of_the_given_network_exactly(generator, targets):
    """One by one to the bit; vectorised, products of other sizes round otherwise."""
    given, x = transformer().eval(), rows(generator)
    task, members = started(be.adapt(given, "lora", targets=targets, rank=2))
    with torch.no_grad():
        expected = given(x)
    for found in outputs(task, members, x, Loop()):
        assert torch.equal(found, expected)
    for found in outputs(task, members, x, Vmap()):
        assert torch.allclose(found, expected, rtol=0, atol=2e-6)


def test_factors_are_drawn_by_seed_and_member_and_the_second_is_zero():
    given = transformer()
    first, again, other = (started(be.adapt(given, "lora", targets="linear1"), seed=seed)[1] for seed in (0, 0, 1))
    names = [name for name in first.params if name.endswith("lora_A")]
    assert len(names) == 2
    for name in names:
        assert torch.equal(first.params[name], again.params[name])
        assert not torch.equal(first.params[name], other.params[name])
        assert len({tuple(leaf.flatten().tolist()) for leaf in first.params[name]}) == 4
        assert first.params[name].abs().max() <= 8**-0.5
    assert all(leaf.eq(0).all() for name, leaf in first.params.items() if name.endswith("lora_B"))


def test_members_have_heads_of_their_own_or_the_one_that_is_given():
    given = transformer()
    heads = started(be.adapt(given, "head"))[1].params["3.weight"]
    assert not torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], given[3].weight)
    heads = started(be.adapt(given, "head", fresh_head=False))[1].params["3.weight"]
    assert all(torch.equal(head, given[3].weight) for head in heads)


def test_norms_and_biases_begin_as_given():
    given = transformer()
    with torch.no_grad():
        for name, parameter in given.named_parameters():
            if "norm" in name:
                parameter.add_(1)
    for kind in ("norm", "bias"):
        members = started(be.adapt(given, kind, head="3"))[1]
        for name, leaf in members.params.items():
            if not name.startswith("3."):
                assert all(torch.equal(own, given.get_parameter(name)) for own in leaf)
        assert not torch.equal(members.params["3.weight"][0], members.params["3.weight"][1])


def test_trained_adapters_are_where_members_begin_if_given():
    adapted = be.adapt(transformer(), "lora", targets="linear1")
    nn.init.normal_(adapted[1].layers[0].linear1.lora_B)
    name = "1.layers.0.linear1.lora_B"
    assert all(
        torch.equal(leaf, adapted.get_parameter(name)) for leaf in started(adapted, start="given")[1].params[name]
    )


def test_trained_adapters_or_heads_are_not_drawn_anew_without_a_word(generator):
    x, y = rows(generator, 30), torch.arange(30) % 3
    adapted = be.adapt(transformer(), "lora", targets="linear1")
    nn.init.normal_(adapted[1].layers[0].linear1.lora_B)
    with pytest.raises(be.ModelError, match=r"linear1.lora_B' is no longer what it is in a fresh network"):
        be.fit(be.Task(adapted, be.Categorical()), be.DeepEnsemble(), (x, y), epochs=1, progress=False)
    given, y = transformer(classes=15), torch.arange(30) % 15
    optimizer = torch.optim.Adam(given.parameters(), 0.01)
    for _ in range(80):
        loss = nn.functional.cross_entropy(given(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with pytest.raises(be.ModelError, match="looks trained: its loss on the first batch"):
        be.fit(be.Task(be.adapt(given, "head"), be.Categorical()), be.DeepEnsemble(), (x, y), epochs=1, progress=False)


def test_members_that_would_stay_equal_are_refused(generator):
    task = be.Task(be.adapt(transformer(), "norm"), be.Categorical())
    with pytest.raises(be.TrainingError, match="began with equal weights"):
        be.fit(task, be.DeepEnsemble(), (rows(generator), torch.arange(6) % 3), epochs=1, progress=False)


def test_which_leaves_are_fresh():
    plain = transformer()
    assert fresh_leaves(plain) == {name for name, _ in plain.named_parameters()}
    assert not is_adapted(plain)
    adapted = be.adapt(plain, "norm", head="3", backbone="here")
    assert fresh_leaves(adapted) == {"3.weight", "3.bias"}
    assert is_adapted(adapted)
    assert backbone_name(adapted) == "here"
    assert backbone_name(plain) is None


def test_the_prior_of_the_product_of_two_factors_is_that_of_a_layer_whatever_the_rank():
    """With fan-in scaling A is Normal(0, s^2 / in) and B Normal(0, s^2 / rank): B A has the variance s^4 / in."""
    for rank in (2, 16):
        model = be.adapt(nn.Sequential(nn.Linear(64, 50), nn.Linear(50, 2)), "lora", targets="0", rank=rank)
        task = be.Task(model, be.Categorical(), prior=be.NormalPrior(2.0, scaling="fan_in"))
        scales = task.prior.scales(task.shapes)
        assert scales == {"0.lora_A": 2 / 8, "0.lora_B": 2 / rank**0.5}
        drawn = [task.prior.sample(task.shapes, torch.Generator().manual_seed(i), torch.float64) for i in range(20)]
        size = torch.stack([one["0.lora_B"] @ one["0.lora_A"] for one in drawn]).square().mean()
        assert abs(size / (2**4 / 64) - 1) < 0.15
