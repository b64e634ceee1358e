import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.seeds import child, scoped
from helpers import dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table


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
    task = be.Task(small_mlp, be.Categorical(), prior=None, num_data=10)
    values = torch.tensor([-0.5, -1.0])
    assert task.log_joint(values, stacked_values(task)).tolist() == [-5.0, -10.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3, "likelihood": be.Categorical()}, "nn.Module or a factory of one, got int"),
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
