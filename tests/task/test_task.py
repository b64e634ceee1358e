import logging
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.seeds import child, scoped
from bayesemble.task.task import BoundTask
from helpers import all_leaves, dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table


def stacked_values(task: be.Task, num: int = 2) -> dict[str, torch.Tensor]:
    return task.new_members(num, seed=0).params


@pytest.mark.parametrize("model", ["factory", "instance"])
def test_members_start_differently_in_every_weight_matrix(model):
    with scoped(0):
        model = small_mlp if model == "factory" else small_mlp()
    params = stacked_values(be.Task(model, be.Categorical()))
    for name, leaf in params.items():
        assert not torch.equal(leaf[0], leaf[1]), name


def test_the_users_own_module_is_never_touched():
    with scoped(0):
        module = norm_mlp()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    quick_fit(be.Task(module, be.Categorical()), table())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training


def test_the_start_of_a_member_is_what_the_factory_makes_under_its_seed():
    members = be.Task(small_mlp, be.Categorical()).new_members(3, seed=5)
    with scoped(child(5, "member", 2, "start")):
        expected = small_mlp()
    for name, parameter in expected.named_parameters():
        assert torch.equal(members.params[name][2], parameter)


def test_a_fit_makes_one_network_beside_those_of_its_members():
    made = []

    def make():
        made.append(small_mlp())
        return made[-1]

    quick_fit(be.Task(make, be.Categorical()), table(), be.DeepEnsemble(num_members=4))
    assert len(made) == 5


def test_a_factory_of_one_network_is_refused_in_whatever_thread_its_members_are_made():
    with scoped(0):
        network = small_mlp()
    task = be.Task(lambda: network, be.Categorical())
    for num_members in (1, 3):
        with pytest.raises(be.ModelError, match="returns the same module each time"):
            quick_fit(task, table(), be.DeepEnsemble(num_members=num_members))
    with ThreadPoolExecutor(1) as pool, pytest.raises(be.ModelError, match="returns the same module each time"):
        pool.submit(task.new_member, 0).result()


def test_frozen_parameters_are_shared_and_stay():
    with scoped(0):
        trained_backbone = nn.Linear(4, 8)

    def make():
        backbone = nn.Linear(4, 8)
        backbone.load_state_dict(trained_backbone.state_dict())
        return nn.Sequential(backbone.requires_grad_(False), nn.ReLU(), nn.Linear(8, 2))

    fitted = quick_fit(be.Task(make, be.Categorical()), table(), executor="vmap")
    members = fitted.state.members
    assert members.shared == {"0.weight", "0.bias"}
    assert torch.equal(members.buffers["0.weight"], trained_backbone.weight)
    assert members.params.keys() == {"2.weight", "2.bias"}


@pytest.mark.parametrize("num_members", [2, 3])
def test_frozen_parameters_that_differ_are_kept_for_each_member(num_members):
    def make():
        network = small_mlp()
        network[0].weight.requires_grad_(False)
        return network

    members = be.Task(make, be.Categorical()).new_members(num_members, seed=0)
    assert not members.shared
    frozen = members.buffers["0.weight"]
    assert len(frozen) == num_members
    assert not torch.equal(frozen[0], frozen[1])


def test_tied_weights_are_one_leaf():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inward, self.outward, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.outward.weight = self.inward.weight

        def forward(self, x):
            return self.head(self.outward(torch.relu(self.inward(x))))

    for executor in ("loop", "vmap"):
        fitted = quick_fit(be.Task(Tied, be.Categorical()), table(), executor=executor)
        assert "outward.weight" not in fitted.state.members.params


def test_a_buffer_that_the_network_replaces_is_kept():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.seen = self.seen + x.shape[0]
            return self.layer(x)

    for executor in ("loop", "vmap"):
        fitted = quick_fit(be.Task(Counting, be.Categorical()), table(48), executor=executor, epochs=3)
        assert fitted.state.members.buffers["seen"].tolist() == [144.0] * 3


def test_inputs_may_be_tuples_and_dicts_and_outputs_may_be_objects():
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, left, right):
            return {"logits": self.layer(torch.cat([left, right], dim=1))}

    x, y = table()
    left, right = x[:, :1], x[:, 1:]
    task = be.Task(TwoInputs, be.Categorical(), output="logits")
    by_position = quick_fit(task, ((left, right), y))
    by_name = quick_fit(task, ({"right": right, "left": left}, y), executor="vmap")
    assert largest_difference(by_position.state.members.params, by_name.state.members.params) < 1e-6
    chosen = be.Task(TwoInputs, be.Categorical(), output=lambda result: result["logits"])
    again = quick_fit(chosen, ((left, right), y))
    assert torch.equal(again.predict((left, right)).probs, by_position.predict((left, right)).probs)


def test_an_output_that_is_no_tensor_asks_for_output():
    class Wrapped(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}

    with pytest.raises(be.ModelError, match=r'returned dict, not a tensor; .*output="logits"'):
        quick_fit(be.Task(lambda: Wrapped(4, 2), be.Categorical()), table())


@pytest.mark.parametrize(("make", "stochastic"), [(small_mlp, False), (norm_mlp, False), (dropout_mlp, True)])
def test_bind_sees_whether_the_network_is_random(make, stochastic):
    task = be.Task(make, be.Categorical()).bind(48, table()[0][:4])
    assert task.stochastic is stochastic
    assert task.output_shape == (2,)


def test_the_log_joint_of_a_flat_prior_is_the_log_likelihood():
    task = be.Task(small_mlp, be.Categorical(), prior=None, num_data=10).bind(48, table()[0])
    values = torch.tensor([-0.5, -1.0])
    assert task.log_joint(values, stacked_values(task)).tolist() == [-5.0, -10.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"model": 3, "likelihood": be.Categorical()},
            "nn.Module, a factory of one, or a list of these for several architectures, got int",
        ),
        ({"model": small_mlp, "likelihood": "softmax"}, "one such as be.Categorical"),
        ({"model": small_mlp, "likelihood": be.Categorical(), "prior": 0.1}, "be.NormalPrior"),
        (
            {"model": small_mlp, "likelihood": be.Categorical(), "temperature": 0.0},
            "positive number, got 0.0",
        ),
        ({"model": small_mlp, "likelihood": be.Categorical(), "output": 3}, "name of an attribute or key"),
    ],
)
def test_a_wrong_part_is_refused_at_once(arguments, message):
    with pytest.raises((be.ModelError, be.SettingError), match=message):
        be.Task(**arguments)


def test_a_network_without_trainable_parameters_is_refused():
    with pytest.raises(be.ModelError, match="Flatten has no trainable parameters"):
        quick_fit(be.Task(nn.Flatten, be.Categorical()), table())


def test_a_part_called_likelihood_is_refused():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.likelihood = nn.Linear(4, 2)

        def forward(self, x):
            return self.likelihood(x)

    with pytest.raises(be.ModelError, match="rename it"):
        quick_fit(be.Task(Named, be.Categorical()), table())


# --- several architectures ---


def mixed_fit(*models, num_members=4, likelihood=None, data=None, **options) -> be.Ensemble:
    method = options.pop("method", be.DeepEnsemble(num_members=num_members, learning_rate=0.01))
    task = be.Task(list(models), likelihood or be.Categorical())
    return quick_fit(task, data or table(), method, **({"epochs": 3} | options))


METHODS = {
    "plain": be.DeepEnsemble(num_members=4, learning_rate=0.01),
    "clipped sgd": be.DeepEnsemble(num_members=4, optimizer="sgd", learning_rate=0.1, clip=0.5),
    "bootstrap": be.DeepEnsemble(num_members=4, bootstrap=True),
    "adversarial": be.DeepEnsemble(num_members=4, adversarial=0.1),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_member_is_trained_as_it_would_be_among_members_of_its_own_architecture(name):
    mixed = mixed_fit(norm_mlp, dropout_mlp, method=METHODS[name])
    for place, make in enumerate((norm_mlp, dropout_mlp)):
        alone = quick_fit(be.Task(make, be.Categorical()), table(), METHODS[name], epochs=3)
        for leaf, expected in all_leaves(alone).items():
            found = all_leaves(mixed)[f"{place}.{leaf}"]
            torch.testing.assert_close(found[place::2], expected[place::2], atol=1e-6, rtol=0)
        x = table(seed=1)[0]
        predicted = mixed.predict(x).member_probs[place::2]
        torch.testing.assert_close(predicted, alone.predict(x).member_probs[place::2], atol=1e-6, rtol=0)


@pytest.mark.parametrize("prior", [be.NormalPrior(), be.LaplacePrior(), None], ids=repr)
def test_what_a_member_does_not_use_stays_where_it_was(prior):
    task = be.Task([small_mlp, norm_mlp], be.Categorical(), prior=prior)
    trained = quick_fit(task, table(), be.DeepEnsemble(num_members=4)).state.members
    assert trained.buffers["architecture"].tolist() == [0, 1, 0, 1]
    for name, leaf in trained.params.items():
        place = int(name[0])
        assert leaf[place::2].flatten(1).any(1).all(), name
        assert not leaf[1 - place :: 2].any(), name
    assert not trained.buffers["1.1.running_mean"][0::2].any()
    assert trained.buffers["1.1.running_mean"][1::2].flatten(1).any(1).all()


def test_a_list_of_one_model_is_that_model_bit_for_bit():
    in_list, plain = (quick_fit(be.Task(m, be.Categorical()), table()) for m in ([norm_mlp], norm_mlp))
    assert not in_list.task.mixed
    assert largest_difference(all_leaves(in_list), all_leaves(plain)) == 0


def test_mixed_says_whether_there_are_several_architectures():
    assert be.Task((small_mlp, norm_mlp), be.Categorical()).mixed
    assert not be.Task(small_mlp, be.Categorical()).mixed


def test_ends_are_seen_on_rows_and_in_one_architecture():
    models = small_mlp, [small_mlp, norm_mlp]
    plain, mixed = (be.Task(model, be.Categorical()).bind(48, table()[0]) for model in models)
    assert plain.ends is not None
    assert replace(plain, example=None).ends is None
    assert mixed.ends is None


def test_the_place_of_a_member_decides_its_architecture():
    task = be.Task([small_mlp, norm_mlp, dropout_mlp], be.Categorical())
    assert task.new_members(7, seed=0).buffers["architecture"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert task.new_member(seed=0)[1]["architecture"].item() == 0
    assert task.new_member(seed=0, index=4)[1]["architecture"].item() == 1
    assert task.new_members(1, seed=0).buffers["architecture"].tolist() == [0]
    with pytest.raises(be.SettingError, match="2 members for 3 architectures leave some without one"):
        task.new_members(2, seed=0)


def test_a_mixed_ensemble_is_saved_and_loaded(tmp_path):
    ensemble, x = mixed_fit(small_mlp, norm_mlp), table()[0]
    ensemble.save(tmp_path)
    loaded = be.load(tmp_path, (small_mlp, norm_mlp))
    assert loaded.task.mixed
    assert loaded.state.members.buffers["architecture"].tolist() == [0, 1, 0, 1]
    assert torch.equal(loaded.predict(x).member_probs, ensemble.predict(x).member_probs)
    with pytest.raises(be.CheckpointError, match="is not in the saved run"):
        be.load(tmp_path, small_mlp)
    with pytest.raises(be.CheckpointError, match=r"parameter '0\.1\.weight' is not in the saved run"):
        be.load(tmp_path, [norm_mlp, small_mlp])


def test_a_mixed_run_goes_on_where_it_was_stopped(tmp_path):
    whole = mixed_fit(norm_mlp, dropout_mlp, epochs=4)

    def stop(_, row):
        if row["epoch"] == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        mixed_fit(norm_mlp, dropout_mlp, epochs=4, checkpoint=tmp_path, on_epoch=stop)
    resumed = mixed_fit(norm_mlp, dropout_mlp, epochs=4, checkpoint=tmp_path, resume=True)
    assert largest_difference(all_leaves(resumed), all_leaves(whole)) == 0


def test_a_single_member_has_the_first_architecture():
    single = mixed_fit(small_mlp, norm_mlp, num_members=1)
    alone = quick_fit(be.Task(small_mlp, be.Categorical()), table(), single.method, epochs=3)
    assert torch.equal(single.predict(table()[0]).probs, alone.predict(table()[0]).probs)


def test_a_mixed_ensemble_is_evaluated_weighted_and_diagnosed():
    ensemble = mixed_fit(small_mlp, norm_mlp, epochs=10)
    held_out = table(seed=1)
    assert 0.5 < ensemble.evaluate(held_out)["accuracy"] <= 1
    assert be.weighting.stacking(ensemble, held_out).sum() == pytest.approx(1)
    assert be.diagnose(ensemble, held_out).distinct.by_weights == [[0], [1], [2], [3]]
    twins = ensemble.keep([0, 1, 2, 1, 0])
    assert twins.state.members.buffers["architecture"].tolist() == [0, 1, 0, 1, 0]
    found = be.diagnose(twins, held_out).distinct
    assert found.by_weights == found.by_function == [[0, 4], [1, 3], [2]]
    assert ensemble.draw(6).num_members == 6
    assert ensemble.predict(held_out[0], num_draws=6).probs.isfinite().all()


def test_architectures_may_take_tuples_and_dicts_and_return_objects():
    class TwoInputs(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inward, self.outward = nn.Linear(4, width), nn.Linear(width, 2)

        def forward(self, left, right):
            return {"logits": self.outward(torch.relu(self.inward(torch.cat([left, right], dim=1))))}

    x, y = table()
    left, right = x[:, :1], x[:, 1:]
    task = be.Task([lambda: TwoInputs(3), lambda: TwoInputs(6)], be.Categorical(), output="logits")
    by_position = quick_fit(task, ((left, right), y))
    by_name = quick_fit(task, ({"right": right, "left": left}, y))
    assert largest_difference(by_position.state.members.params, by_name.state.members.params) == 0
    assert torch.equal(by_name.predict({"left": left, "right": right}).probs, by_position.predict((left, right)).probs)


def test_a_learned_noise_is_each_members_own_whatever_its_architecture():
    x, y = table()
    models = [lambda: nn.Linear(4, 1), lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))]
    ensemble = mixed_fit(*models, likelihood=be.Gaussian(noise="learned"), data=(x, y.float()))
    noises = [leaf for name, leaf in ensemble.state.members.params.items() if name.startswith("likelihood.")]
    assert [leaf.flatten(1).unique(dim=0).shape[0] for leaf in noises] == [4]


def test_frozen_parameters_that_are_equal_are_shared_among_architectures_too():
    with scoped(0):
        pretrained = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 2))
    members = be.Task([small_mlp, pretrained], be.Categorical()).new_members(4, seed=0)
    assert members.shared == {"1.0.weight", "1.0.bias"}
    assert torch.equal(members.buffers["1.0.weight"], pretrained[0].weight)


def test_vmap_refuses_different_architectures_and_auto_takes_the_loop(caplog):
    with pytest.raises(be.ExecutionError, match='members of different architectures together; use executor="loop"'):
        mixed_fit(small_mlp, norm_mlp, executor="vmap")
    with caplog.at_level(logging.INFO, "bayesemble"):
        fitted = mixed_fit(small_mlp, norm_mlp, executor="auto")
    assert isinstance(fitted.executor, be.Loop)
    assert "one by one: vmap cannot run members of different architectures together" in caplog.text


def test_randomness_of_one_architecture_is_enough():
    task = be.Task([small_mlp, dropout_mlp], be.Categorical()).bind(48, table()[0][:4])
    assert task.stochastic
    assert task.output_shape == (2,)


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (
            lambda: nn.Linear(4, 3),
            be.ModelError,
            r"architecture 0 \(Sequential\) gives \(2,\), architecture 1 \(Linear\) gives \(3,\)",
        ),
        (
            lambda: nn.Linear(5, 2),
            be.DataError,
            r"architecture 1 \(Linear\) cannot run on inputs of shape \[\(4, 4\)\]",
        ),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(0)), be.DataError, "architecture 1 .* one output per row"),
    ],
)
def test_bind_says_which_architecture_does_not_fit(other, error, message):
    with pytest.raises(error, match=message):
        be.Task([small_mlp, other], be.Categorical()).bind(48, table()[0][:4])


def test_an_empty_list_of_models_is_refused():
    with pytest.raises(be.ModelError, match="the list of models is empty"):
        be.Task([], be.Categorical())


def test_an_output_that_is_not_there_is_told_with_what_is():
    class Named(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.inner, self.wrap = nn.Linear(3, 2), wrap

        def forward(self, x):
            return self.wrap(self.inner(x))

    pair = namedtuple("Pair", ["logits", "hidden"])
    kinds = {
        "a dict with 'logits', which has no output='logit'": lambda out: {"logits": out},
        "a Pair with 'logits', 'hidden', which has": lambda out: pair(out, out),
        "a tuple, which has no output='logit'": lambda out: (out, 1),
    }
    for message, wrap in kinds.items():
        with pytest.raises(be.ModelError, match=message):
            be.Task(lambda wrap=wrap: Named(wrap), be.Categorical(), output="logit").bind(4, torch.zeros(4, 3))


class Doubling(nn.Linear):
    def forward(self, x):
        return super().forward(x.mul_(2))


@pytest.mark.parametrize(
    "model", [lambda: Doubling(4, 2), lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))]
)
def test_a_network_that_changes_its_inputs_is_refused_for_the_next_member_would_see_them(model):
    x, y = table()
    before = x.clone()
    with pytest.raises(be.ModelError, match="changes its inputs in place, so that other members would be given"):
        quick_fit(be.Task(model, be.Categorical()), (x, y))
    assert torch.equal(x, before)
    inside = be.Task(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), be.Categorical())
    quick_fit(inside, (x, y))


def test_the_gradient_of_the_prior_is_added_a_few_members_at_a_time(monkeypatch):
    """The same numbers, and of no leaf more than a block of them beside it, but always a member."""
    bound = be.Task(small_mlp, be.Categorical()).bind(48, table()[0])
    params, gradient, sizes = stacked_values(bound, 5), be.NormalPrior.gradient, {}

    def recorded(self, leaves, scales):
        ((name, leaf),) = leaves.items()
        sizes.setdefault(name, []).append(len(leaf))
        return gradient(self, leaves, scales)

    def added(task: BoundTask) -> dict[str, torch.Tensor]:
        found = {name: torch.ones_like(leaf) for name, leaf in params.items()}
        task.add_prior_gradient(found, params, factor=0.5)
        return found

    whole = added(bound)
    monkeypatch.setattr(be.NormalPrior, "gradient", recorded)
    assert largest_difference(added(replace(bound, prior_block=20)), whole) == 0
    assert sizes == {"0.weight": [1] * 5, "0.bias": [2, 2, 1], "2.weight": [1] * 5, "2.bias": [5]}


@pytest.mark.parametrize(("rows", "weight"), [(1000, 0.1), (4, 4 / 58)])
def test_under_a_vague_prior_the_log_joint_is_that_of_its_density_to_the_power_of_its_weight(rows, weight):
    x, _ = table()
    bound = be.Task(small_mlp, be.Categorical(), be.VaguePrior(), num_data=rows).bind(48, x)
    assert bound.prior_weight == pytest.approx(weight)
    params = bound.new_members(2, 0).params
    stated = be.NormalPrior({"*weight": 2.0, "*": 1.0}, "fan_in")
    density = stated.gradient(params, stated.scales(bound.shapes))
    found = bound.log_joint_gradient({name: torch.zeros_like(leaf) for name, leaf in params.items()}, params)
    for name, leaf in found.items():
        torch.testing.assert_close(leaf, weight * density[name])


def test_a_normal_prior_is_added_in_one_pass_to_the_numbers_of_its_gradient():
    task = be.Task(small_mlp, be.Categorical(), prior=be.NormalPrior({"0.*": 0.3, "*": 2.0}), temperature=0.7)
    bound = task.bind(48, table()[0])
    params = stacked_values(bound, 3)
    expected = {name: 1 + pull / 0.7 for name, pull in bound.prior.gradient(params, bound.scales).items()}
    found = {name: torch.ones_like(leaf) for name, leaf in params.items()}
    bound.add_prior_gradient(found, params)
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name], leaf)
