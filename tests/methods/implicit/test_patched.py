import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Batch, Clock
from bayesemble.methods import make_method
from bayesemble.methods.base import Context
from bayesemble.methods.implicit.patches import COMPONENT_PREFIX
from helpers import all_leaves, largest_difference, norm_convnet, norm_mlp, quick_fit, small_mlp, table, tempered_mlp

FAMILY = [be.EMP, be.ECMP, be.Explicit, be.Dropout, be.DropConnect]


def task(model=norm_mlp) -> be.Task:
    return be.Task(model, be.Categorical())


def stated() -> be.Task:
    """A prior whose pull is the same bits whether it is added in one pass or component by component."""
    return be.Task(task().model, be.Categorical(), be.NormalPrior())


def trained_network(model=norm_mlp) -> nn.Module:
    with scoped(3):
        return model()


def all_components(state, name: str) -> Tensor:
    """`(member, component, ...)`, copied."""
    return torch.cat([state.members.params[name][:, None], state.slots["components"][COMPONENT_PREFIX + name]], 1)


# --- the family ---


@pytest.mark.parametrize(
    "settings",
    [
        {"mixing": "learned", "training_draws": 2},
        {"select": "all", "assignment": "element", "sigma": 0.1},
        {"select": "all", "assignment": "network"},
        {"select": "all", "assignment": "unit", "rate": 0.2},
    ],
)
def test_a_leaf_without_axes_has_components_like_any_other(settings):
    ensemble = quick_fit(task(tempered_mlp), table(), be.EMP(components=3, **settings))
    drawn = ensemble.draw(40).params["1.temperature"]
    values = drawn.unique()
    if settings.get("assignment") == "unit":  # no unit enters it
        assert drawn.shape == ()
    elif "sigma" in settings:
        assert len(values) == 40
    else:
        components = ensemble.state.slots["components"][COMPONENT_PREFIX + "1.temperature"].flatten()
        assert len(values) == 3
        assert all((values == component).any() for component in components)


@pytest.mark.parametrize("kind", [be.EMP, be.ECMP, be.Explicit])
@pytest.mark.parametrize("members", [1, 2])
def test_a_draw_of_equal_components_is_the_plain_network(kind, members):
    network, x = trained_network().eval(), table()[0]
    method, bound = kind(num_members=members, start=network, jitter=0.0), task().bind(48, x)
    ensemble = be.Ensemble(bound, method, method.init(bound, 0), be.Loop())
    drawn = ensemble.draw(6)
    for name, leaf in network.named_parameters():
        own = drawn.params[name]
        assert torch.equal(own if name in drawn.shared else own[3], leaf)
    with torch.no_grad():
        expected = network(x).softmax(-1).double()
    found = ensemble.predict(x, num_draws=6).member_probs[4].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [be.Dropout, be.DropConnect])
def test_nothing_is_dropped_at_rate_zero(kind):
    dropped = quick_fit(stated(), table(), kind(rate=0.0))
    plain = quick_fit(stated(), table(), be.DeepEnsemble(num_members=1))
    assert largest_difference(all_leaves(dropped), all_leaves(plain)) == 0
    x = table()[0]
    torch.testing.assert_close(dropped.predict(x).probs, plain.predict(x).probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [be.EMP, be.ECMP, be.Explicit])
def test_one_component_is_map_exactly(kind):
    alone = quick_fit(stated(), table(), kind(components=1))
    plain = quick_fit(stated(), table(), be.DeepEnsemble(num_members=1))
    assert largest_difference(all_leaves(alone), all_leaves(plain)) == 0


def test_weight_and_bias_of_a_layer_come_from_one_component():
    ensemble = quick_fit(task(), table(), be.EMP(components=3))
    drawn, state = ensemble.draw(100), ensemble.state
    seen = set()
    for index in range(100):
        which = {}
        for name in ("1.weight", "1.bias", "3.weight", "3.bias"):
            parts = [state.members.params[name][0], *state.slots["components"][COMPONENT_PREFIX + name][0]]
            which[name] = next(k for k, part in enumerate(parts) if torch.equal(part, drawn.params[name][index]))
        assert which["1.weight"] == which["1.bias"]
        assert which["3.weight"] == which["3.bias"]
        seen.add((which["1.weight"], which["3.weight"]))
    assert len(seen) == 9, "100 draws of two layers with three components show all combinations"


def test_every_number_comes_from_its_own_component():
    ensemble = quick_fit(task(), table(), be.ECMP(components=2))
    drawn, state = ensemble.draw(1).params["3.weight"][0], ensemble.state
    first, second = state.members.params["3.weight"][0], state.slots["components"][COMPONENT_PREFIX + "3.weight"][0, 0]
    assert ((drawn == first) | (drawn == second)).all()
    assert 0 < (drawn == first).float().mean() < 1


def test_dropout_leaves_out_columns_and_dropconnect_elements():
    x = table()[0]
    columns = quick_fit(task(small_mlp), table(), be.Dropout(rate=0.5)).draw(30).params["2.weight"]
    gone = (columns == 0).all(1)
    assert torch.equal(columns == 0, gone.unsqueeze(1).expand_as(columns)), "a unit goes as a whole"
    assert 0.3 < gone.float().mean() < 0.7
    ensemble = quick_fit(task(small_mlp), table(), be.DropConnect(rate=0.5))
    elements = ensemble.draw(30).params["2.weight"]
    assert 0.3 < (elements == 0).float().mean() < 0.7
    assert ((elements == 0).any(1) & (elements != 0).any(1)).any()
    assert ensemble.predict(x).probs.isfinite().all()


@pytest.mark.parametrize("select", ["not norm", "all", "output"])
@pytest.mark.parametrize("kind", [be.Dropout, be.DropConnect])
def test_biases_are_never_left_out(kind, select):
    """The published table of the family: a bias has one component (K_j = 1), and none that is zero."""
    ensemble = quick_fit(task(), table(), kind(rate=0.5, select=select))
    drawn, trained = ensemble.draw(30), ensemble.state.members.params
    assert (drawn.params["3.weight"] == 0).any()
    for name in ("0.bias", "1.bias", "3.bias"):
        assert name in drawn.shared
        assert torch.equal(drawn.params[name], trained[name][0])


def test_noise_around_components_has_its_size():
    ensemble = quick_fit(task(), table(), be.EMP(components=1, sigma=0.5, select="output"))
    drawn = ensemble.draw(500).params["3.weight"] - ensemble.state.members.params["3.weight"]
    assert abs(float(drawn.std()) - 0.5) < 0.02


@pytest.mark.parametrize("method", [be.ECMP(sigma=0.1), be.EMP(sigma=0.1, num_members=2)], ids=["one", "two"])
def test_a_network_depends_on_its_number_alone(method):
    """Whatever others are made beside it."""
    state = quick_fit(task(), table(), method).state
    whole = method.draw(state, range(6), seed=3).params["3.weight"]
    parts = [method.draw(state, numbers, seed=3).params["3.weight"] for numbers in (range(1), range(1, 6))]
    assert torch.equal(torch.cat(parts), whole)


def test_shared_leaves_are_not_copied():
    drawn = quick_fit(task(), table(), be.EMP()).draw(50)
    assert drawn.shared >= {"0.weight", "0.bias", "1.running_mean"}
    assert drawn.params["0.weight"].shape == (8, 4)
    assert drawn.params["1.weight"].shape == (50, 8)


def test_mixed_assignments_by_kind_of_layer():
    method = be.Patched(components=3, assignment={"norm": "layer", "output": "element"})
    ensemble = quick_fit(task(), table(), method)
    patches = method.patches(ensemble.task)
    assert patches["1.weight"].kind == patches["1.bias"].kind == "layer"
    assert patches["3.weight"].kind == "element"
    with pytest.raises(SettingError, match=r"says nothing of 1\.weight"):
        quick_fit(task(), table(), replace(method, assignment={"output": "element"}))


def test_components_and_rates_by_kind_of_layer():
    """Patching of norm layers with dropout of dense ones: each layer draws from as many values as it was asked for."""
    method = be.Patched(
        select="all",
        assignment={"norm": "layer", "not norm": "unit"},
        components={"norm": 4, "not norm": 1},
        rate={"norm": 0.0, "not norm": 0.3},
    )
    ensemble = quick_fit(task(), table(), method)
    drawn, state = ensemble.draw(400), ensemble.state
    assert [len(drawn.params[name].unique(dim=0)) for name in ("1.weight", "1.bias")] == [4, 4]
    assert COMPONENT_PREFIX + "0.weight" not in state.slots["components"]
    for name in ("0.weight", "3.weight"):
        gone = (drawn.params[name] == 0).all(1)
        assert abs(float(gone.double().mean()) - 0.3) < 4 * (0.21 / gone.numel()) ** 0.5
        whole = state.members.params[name].expand_as(drawn.params[name])
        kept = ~gone.unsqueeze(1).expand_as(whole)
        assert torch.equal(drawn.params[name][kept], whole[kept])
    with pytest.raises(SettingError, match=r"components says nothing of 0\.weight"):
        quick_fit(task(), table(), replace(method, components={"norm": 4}))
    with pytest.raises(SettingError, match=r"1\.weight and 1\.bias have the same probabilities"):
        quick_fit(task(), table(), be.EMP(components={"*.weight": 4, "*.bias": 3}, select="norm"))


def test_alike_components_of_each_layer_are_components_of_all():
    by_layer = be.EMP(components={"norm": 3, "output": 3}, rate={"norm": 0.0, "output": 0.0})
    one, other = (quick_fit(task(), table(), method) for method in (be.EMP(components=3), by_layer))
    assert largest_difference(all_leaves(one), all_leaves(other)) == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_alternating_training_moves_shared_leaves_and_components_in_turn(optimizer):
    """Coordinate ascent: the first step is that of the shared leaves alone, the second that of the components alone."""
    x, y = table()
    method = be.ECMP(components=2, train="alternating", optimizer=optimizer, learning_rate=0.01)
    bound = task().bind(48, x)
    state = method.init(bound, 0)
    for step in range(4):
        before = {name: leaf.clone() for name, leaf in method._learned(state).items()}
        whole = replace(method, train="all").init(bound, 0)
        for name, leaf in method._learned(whole).items():
            leaf.copy_(before[name])
        context = Context(bound, be.Loop(), Clock(step, 4, 0))
        replace(method, train="all").step(whole, Batch(x, y), context)
        state, _ = method.step(state, Batch(x, y), context)
        for name, leaf in method._learned(state).items():
            shared = name in state.members.params and name not in state.slots["patches"]
            if shared != (step % 2 == 0):
                assert torch.equal(leaf, before[name])
            elif step < 2:  # the first step of a part is that of an optimiser at rest
                torch.testing.assert_close(leaf, method._learned(whole)[name])
    if optimizer == "adam":
        assert [float(state.slots[slot]["step"]) for slot in ("steps", "component_steps")] == [2, 2]


@pytest.mark.parametrize("kind", FAMILY)
def test_convolutions_and_embeddings(kind):
    with scoped(0):
        x = torch.rand(24, 3, 8, 8)
    y = torch.arange(24) % 4
    for select in ("all", "output"):
        ensemble = quick_fit(task(norm_convnet), (x, y), kind(select=select))
        assert ensemble.predict(x, num_draws=3).probs.isfinite().all()

    def words() -> nn.Module:
        return nn.Sequential(nn.Embedding(10, 6), nn.Flatten(), nn.LayerNorm(18), nn.Linear(18, 3))

    tokens = torch.arange(60).reshape(20, 3) % 10
    ensemble = quick_fit(task(words), (tokens, torch.arange(20) % 3), kind(select="all"))
    assert ensemble.predict(tokens, num_draws=3).probs.isfinite().all()


# --- training ---


@pytest.mark.parametrize("kind", FAMILY)
def test_members_train_as_if_alone(kind):
    three = quick_fit(task(), table(), kind(num_members=3))
    one = quick_fit(task(), table(), kind(num_members=1))
    assert largest_difference(all_leaves(one), all_leaves(three), members=1) < 1e-6


def test_fine_tuning_the_components_alone_leaves_the_network_as_it_was():
    network = trained_network()
    tuned = quick_fit(task(), table(), be.ECMP(start=network, train="components", learning_rate=0.01), epochs=4)
    params = tuned.state.members.params
    assert torch.equal(params["0.weight"][0], network[0].weight)
    assert not torch.equal(params["3.weight"][0], network[3].weight)
    moments = tuned.state.slots["first_moment"]
    assert "0.weight" not in moments
    assert COMPONENT_PREFIX + "3.weight" in moments
    everything = quick_fit(task(), table(), be.ECMP(start=network, learning_rate=0.01), epochs=4)
    assert not torch.equal(everything.state.members.params["0.weight"][0], network[0].weight)


def test_a_trained_network_must_be_like_that_of_the_task():
    with pytest.raises(SettingError, match=r"'0.weight' needs shape \(8, 4\), got shape \(3, 2\)"):
        quick_fit(task(), table(), be.EMP(start=_other_network()))


def _other_network() -> nn.Module:
    with scoped(0):
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def test_explicit_components_keep_their_own_statistics():
    ensemble = quick_fit(task(), table(), be.Explicit(components=3), epochs=8)
    means = ensemble.state.slots["component_buffers"]["1.running_mean"][0]
    assert len({tuple(row.tolist()) for row in means}) == 3
    drawn = ensemble.draw(12)
    for index in range(12):
        weights = ensemble.state.slots["components"][COMPONENT_PREFIX + "0.weight"][0]
        parts = [ensemble.state.members.params["0.weight"][0], *weights]
        which = next(k for k, part in enumerate(parts) if torch.equal(part, drawn.params["0.weight"][index]))
        assert torch.equal(drawn.buffers["1.running_mean"][index], means[which])


@pytest.mark.parametrize(
    "method",
    [be.ECMP(), be.EMP(mixing="learned", training_draws=2), be.Explicit()],
    ids=["ecmp", "learned", "explicit"],
)
def test_resuming_gives_the_same_bits(method, tmp_path):
    whole = quick_fit(task(), table(), method, epochs=4)
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="power cut"):
        quick_fit(task(), table(), method, epochs=4, checkpoint=folder, on_epoch=_power_cut)
    resumed = quick_fit(task(), table(), method, epochs=4, checkpoint=folder, resume=True)
    assert len(resumed.history) == 4
    for slot, leaves in whole.state.groups().items():
        for name, leaf in leaves.items():
            assert torch.equal(leaf, resumed.state.groups()[slot][name]), name


def _power_cut(state, row):
    if row["epoch"] == 3:
        raise RuntimeError("power cut")


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_biases_of_single_elements_are_drawn_unless_something_is_left_out(rate):
    assert set(be.ECMP(rate=rate).patches(task(small_mlp))) == {"2.weight"} | ({"2.bias"} if rate == 0 else set())


@pytest.mark.parametrize(
    ("method", "extra", "powers", "drawn"),
    [
        (be.EMP(components=3), 2 * 18, ((3, 1),), 18),
        (be.EMP(components=3, rate=0.1), 2 * 18, ((4, 1),), 18),
        (be.EMP(components=3, mixing="learned", training_draws=2), 2 * 18 + 3, ((3, 1),), 18),
        (be.EMP(components=3, mixing="learned", training_draws=2, select="all"), 2 * 58 + 6, ((3, 2),), 58),
        (be.EMP(components=1), 0, (), 18),
        (be.DropConnect(), 0, ((2, 48),), 48),
        (be.DropConnect(components=2), 48, ((3, 48),), 48),
        (be.Dropout(rate=0.0), 0, (), 48),
        (be.EMP(select="all", components={"output": 3, "all": 5}), 2 * 18 + 4 * 40, ((5, 1), (3, 1)), 58),
        (
            be.Patched(
                select="all",
                assignment={"output": "layer", "all": "unit"},
                components={"output": 3, "all": 1},
                rate={"output": 0, "all": 0.1},
            ),
            2 * 18,
            ((3, 1), (2, 4)),
            50,
        ),
    ],
    ids=str,
)
def test_what_a_member_has_beside_a_network_and_how_many_it_stands_for(method, extra, powers, drawn):
    """An output layer of 16 + 2 numbers, after one of 32 + 8."""
    assert method.extent(task(small_mlp)) == (extra, powers, drawn)


def test_every_draw_of_training_takes_a_gradient_of_every_member():
    assert be.EMP(num_members=2, training_draws=3).gradients_per_step == 6


@pytest.mark.parametrize("kl", ["exact", "single"])
@pytest.mark.parametrize("mixing", ["uniform", "learned"])
def test_the_prior_pulls_components_as_much_as_they_are_likely_or_all_alike(kl, mixing):
    """-w / std^2 / temperature, times (1 - rate) q_k; leaves that are not drawn feel all of it."""
    bound = be.Task(small_mlp, be.Categorical(), be.NormalPrior(0.5), temperature=2.0).bind(48, table()[0])
    method = be.EMP(num_members=2, components=3, rate=0.25, kl=kl, mixing=mixing, training_draws=2)
    state, patches = method.init(bound, 0), method.patches(bound)
    shares = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]) if mixing == "learned" else torch.full((2, 3), 1 / 3)
    for logits in state.slots.get("mixing", {}).values():
        logits.copy_(shares.log())
    learned = method._learned(state)
    found = {name: torch.zeros_like(leaf) for name, leaf in learned.items()}
    method._add_prior(found, learned, patches, bound)
    torch.testing.assert_close(found["0.weight"], -learned["0.weight"] / 0.5**2 / 2)
    pull = torch.cat([found["2.weight"][:, None], found[COMPONENT_PREFIX + "2.weight"]], 1)
    weight = (0.75 * shares if kl == "exact" else torch.ones(2, 3))[..., None, None]
    torch.testing.assert_close(pull, -weight * all_components(state, "2.weight") / 0.5**2 / 2)


def test_the_divergence_of_noise_around_one_component_is_that_of_two_normals():
    bound = be.Task(small_mlp, be.Categorical(), be.NormalPrior(0.5)).bind(48, table()[0])
    method = be.EMP(num_members=2, components=1, sigma=0.3)
    state = method.init(bound, 0)
    drawn = torch.cat([state.members.params[name].flatten(1) for name in ("2.weight", "2.bias")], 1).double()
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(drawn, 0.3), normal(torch.zeros_like(drawn), 0.5)).sum(1)
    torch.testing.assert_close(method.kl_divergence(state, bound), expected)


def test_several_draws_of_one_component_are_one_draw():
    options = {"optimizer": "sgd", "learning_rate": 0.1}
    plain = quick_fit(task(small_mlp), table(), be.EMP(components=1, **options))
    several = quick_fit(task(small_mlp), table(), be.EMP(components=1, training_draws=3, **options))
    assert largest_difference(all_leaves(plain), all_leaves(several)) < 1e-6


def test_a_prediction_averages_over_as_many_networks_as_the_setting_says():
    assert quick_fit(task(small_mlp), table(), be.EMP(draws=7)).predict(table()[0]).num_members == 7


def test_components_start_around_the_network_or_if_they_are_networks_as_fresh_ones():
    """Two of them are sqrt(2) times the jitter apart, in units of the size of the leaf."""
    bound = be.Task(lambda: nn.Linear(50, 40), be.Categorical()).bind(4, torch.zeros(4, 50))
    plain = bound.new_members(1, 0).params["weight"]
    for jitter in (0.0, 0.5):
        parts = all_components(be.EMP(components=3, jitter=jitter).init(bound, 0), "weight")[0]
        apart = (parts[1] - parts[2]).square().mean().sqrt() / plain.square().mean().sqrt()
        assert float(apart) == pytest.approx(2**0.5 * jitter, rel=0.1)
        assert float((parts[0] - plain[0]).abs().max()) <= 5 * jitter * float(plain.square().mean().sqrt())
    parts = all_components(be.Explicit(components=3).init(bound, 0), "weight")[0]
    apart = (parts[1] - parts[2]).square().mean().sqrt() / plain.square().mean().sqrt()
    assert float(apart) == pytest.approx(2**0.5, rel=0.1)
    assert torch.equal(parts[0], plain[0])


def test_components_that_explain_the_data_become_more_likely():
    """One component tells the classes apart and the other has them the wrong way round."""
    x, y = table()
    bound = be.Task(lambda: nn.Linear(4, 2), be.Categorical(), prior=None).bind(48, x)
    method = be.EMP(
        num_members=2, components=2, mixing="learned", training_draws=4, optimizer="sgd", learning_rate=0.01
    )
    state, right = method.init(bound, 0), torch.tensor([[-3.0, -3.0, 0.0, 0.0], [3.0, 3.0, 0.0, 0.0]])
    state.members.params["weight"].copy_(right)
    state.slots["components"][COMPONENT_PREFIX + "weight"].copy_(-right)
    for step in range(8):
        method.step(state, Batch(x, y), Context(bound, be.Loop(), Clock(step, 8, 0)))
    (logits,) = state.slots["mixing"].values()
    assert (logits[:, 0] > logits[:, 1]).all()


def test_each_member_draws_by_its_own_probabilities_and_moves_what_it_drew_alone():
    """The first member always draws its first component, the second its third."""
    bound = be.Task(small_mlp, be.Categorical(), prior=None).bind(48, table()[0])
    method = be.EMP(num_members=2, components=3, mixing="learned", training_draws=2, optimizer="sgd", learning_rate=0.1)
    state = method.init(bound, 0)
    for logits in state.slots["mixing"].values():
        logits.copy_(100 * torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    before = all_components(state, "2.weight")
    method.step(state, Batch(*table()), Context(bound, be.Loop(), Clock(0, 1, 0)))
    moved = (all_components(state, "2.weight") != before).flatten(2).any(2)
    assert moved.tolist() == [[True, False, False], [False, False, True]]


def test_statistics_of_whole_networks_are_those_of_each_member_and_component():
    """With weights that hardly move, a running mean that was updated n times is 1 - 0.9^n of that of the data."""
    method = be.Explicit(num_members=3, components=2, learning_rate=1e-12)
    state, x = quick_fit(task(), table(), method, batch_size=None, epochs=5).state, table()[0]
    hidden = torch.einsum("nd,mkhd->nmkh", x, all_components(state, "0.weight")) + all_components(state, "0.bias")
    shares = state.slots["component_buffers"]["1.running_mean"] / hidden.mean(0)
    updates = (1 - shares).log() / math.log(0.9)
    torch.testing.assert_close(updates, updates.round()[..., :1].expand_as(updates), rtol=0, atol=0.02)
    assert updates[..., 0].sum(1).round().tolist() == [5, 5, 5]


@pytest.mark.parametrize("kind", [be.EMP, be.ECMP, be.Explicit, be.Dropout])
@pytest.mark.parametrize("members", [1, 2])
def test_draws_can_have_statistics_of_their_own(kind, members):
    """Those that a plain pass over the data gives each of them."""
    method = kind(num_members=members, statistics="own", draws=6, select="all")
    ensemble = quick_fit(task(), table(), method, batch_size=None, epochs=4)
    drawn, x = ensemble.draw(6), table()[0]
    for number in range(6):
        hidden = x @ drawn.params["0.weight"][number].T + drawn.params["0.bias"].expand(6, 8)[number]
        torch.testing.assert_close(drawn.buffers["1.running_mean"][number], hidden.mean(0), rtol=1e-4, atol=1e-5)
    assert torch.equal(ensemble.predict(x, seed=1).probs, ensemble.predict(x, seed=2).probs), "the networks are settled"
    with pytest.raises(SettingError, match="measured for 6 networks, 7 were asked for"):
        ensemble.predict(x, num_draws=7)


def test_some_members_can_be_kept():
    ensemble = quick_fit(task(), table(), be.ECMP(num_members=3))
    kept = ensemble.keep([2])
    assert kept.num_members == 1
    own = ensemble.state.slots["components"][COMPONENT_PREFIX + "3.weight"][2]
    assert torch.equal(kept.state.slots["components"][COMPONENT_PREFIX + "3.weight"][0], own)
    assert kept.predict(table()[0], num_draws=5).probs.isfinite().all()


def test_members_without_components_can_be_kept_too():
    ensemble, x = quick_fit(task(), table(), be.Dropout(num_members=3)), table()[0]
    assert ensemble.keep([0, 2]).predict(x, num_draws=4).probs.isfinite().all()


def test_draws_come_from_members_in_turn_and_by_their_weights():
    ensemble = quick_fit(task(), table(), be.EMP(num_members=2)).reweight([0.8, 0.2])
    drawn = ensemble.draw(6)
    assert torch.equal(drawn.params["0.weight"][0], drawn.params["0.weight"][4])
    assert not torch.equal(drawn.params["0.weight"][0], drawn.params["0.weight"][1])
    torch.testing.assert_close(drawn.weights[:2], torch.tensor([0.8, 0.2], dtype=torch.float64) / 3)


def test_data_of_each_member_is_trained_on_but_not_predicted_at_once():
    x, y = table()
    own = be.PerMember(torch.stack([x, x + 1]), torch.stack([y, y]))
    ensemble = quick_fit(task(), own, be.ECMP(num_members=2), batch_size=16)
    with pytest.raises(DataError, match="keep"):
        ensemble.predict(be.PerMember(own.inputs))
    assert ensemble.keep([1]).predict(x + 1).probs.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"assignment": "row"}, "assignment is 'layer', 'element', 'unit', 'network' or a dict of these, got 'row'"),
        ({"assignment": {"norm": "row"}}, "assignment is .* or a dict of these, got {'norm': 'row'}"),
        ({"components": 0}, "components is a whole number from 1 or a dict of whole numbers from 1, got 0"),
        ({"rate": 1.0}, r"rate is a number in \[0, 1\) or a dict of numbers in \[0, 1\), got 1.0"),
        ({"mixing": "learned"}, "training_draws=2"),
        ({"kl": "half"}, "kl is 'exact' or 'single', got 'half'"),
        ({"statistics": "none"}, "statistics is 'shared' or 'own', got 'none'"),
        ({"train": "nothing"}, "train is 'all', 'components' or 'alternating', got 'nothing'"),
        ({"mixing": "some"}, "mixing is 'uniform' or 'learned', got 'some'"),
        ({"draws": 0}, "draws is a whole number from 1, got 0"),
        ({"sigma": -1.0}, "sigma is a number from 0, got -1.0"),
        ({"anchored": True}, "leave it off"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        be.Patched(**settings)


def test_several_architectures_are_refused():
    with pytest.raises(SettingError, match="one architecture"):
        quick_fit(be.Task([small_mlp, norm_mlp], be.Categorical()), table(), be.EMP(num_members=2))


def test_without_norm_layers_the_output_alone_is_patched():
    assert set(be.EMP().patches(task(small_mlp))) == {"2.weight", "2.bias"}


def test_the_output_is_found_by_running_the_network():
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 2)
            self.body = nn.Linear(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.body(x)))

    ensemble = quick_fit(task(HeadFirst), table(), be.EMP(select="output"))
    assert set(ensemble.state.slots["patches"]) == {"head.weight", "head.bias"}


def test_wishes_of_any_form_are_taken_by_name_and_others_refused():
    for wish in (["first", "last"], nn.LayerNorm, (nn.Linear, nn.LayerNorm), lambda name, _: True):
        assert make_method("ecmp", select=wish).select == wish
    for wish in (3, None, True):
        with pytest.raises(be.SettingError, match=f"select is a text, .* or a function, got {wish}"):
            make_method("ecmp", select=wish)
