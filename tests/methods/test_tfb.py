"""Draws around low-rank adapters: the weight of a layer moves by std * U E, isotropic where the adapter reaches."""

import pytest
import torch

import bayesemble as be
from bayesemble.core.members import Members, State
from bayesemble.methods.tfb import SLOT, TFB, pairs


def state(generator, num_members=2, std=0.3):
    first = torch.randn(num_members, 3, 5, generator=generator, dtype=torch.float64)
    second = torch.randn(num_members, 6, 3, generator=generator, dtype=torch.float64)
    second[:, :, 2] = second[:, :, 0] + second[:, :, 1]  # of rank 2: one direction is out of reach
    params = {"q.lora_A": first, "q.lora_B": second, "head.weight": torch.ones(num_members, 2, 2).double()}
    weights = torch.full((num_members,), 1 / num_members, dtype=torch.float64)
    return State(Members(params, {}, weights), {SLOT: {"std": torch.full((num_members,), std).double()}})


def test_the_weight_moves_isotropically_in_the_directions_that_the_adapter_reaches(generator):
    given, num = state(generator, std=0.3), 4000
    drawn = TFB(num_members=2).draw(given, range(num), seed=0)
    for member in range(2):
        first, second = (given.members.params[f"q.lora_{f}"][member] for f in "AB")
        moved = second @ (drawn.params["q.lora_A"][member::2] - first)  # (draw, out, in)
        columns = moved.transpose(1, 2).reshape(-1, 6)
        found = columns.T @ columns / len(columns)
        left, _, _ = torch.linalg.svd(second, full_matrices=False)
        expected = 0.3**2 * left[:, :2] @ left[:, :2].T
        error = 3 * 0.3**2 * (2 / len(columns)) ** 0.5
        assert (found - expected).abs().max() < error


def test_a_layer_with_fewer_outputs_than_the_rank_moves_in_all_of_them(generator):
    given = state(generator, num_members=1)
    params = given.members.params | {"q.lora_B": torch.tensor([[[3.0, 4.0, 0.0]]]).double()}
    given = State(Members(params, {}, given.members.weights), given.slots)
    drawn = TFB().draw(given, range(4000), seed=0)
    moved = params["q.lora_B"][0] @ (drawn.params["q.lora_A"] - params["q.lora_A"][0])
    assert abs(moved.square().mean() / 0.3**2 - 1) < 4 * (2 / moved.numel()) ** 0.5


def test_all_else_stays_and_draws_depend_on_their_number_alone(generator):
    given, method = state(generator), TFB(num_members=2)
    ten, last = method.draw(given, range(10), 0), method.draw(given, range(8, 10), 0)
    assert torch.equal(ten.params["q.lora_A"][8:], last.params["q.lora_A"])
    assert torch.equal(ten.params["q.lora_B"][1], given.members.params["q.lora_B"][1])
    assert not torch.equal(method.draw(given, range(10), 1).params["q.lora_A"], ten.params["q.lora_A"])


def test_a_single_member_shares_all_that_is_not_drawn(generator):
    drawn = TFB().draw(state(generator, num_members=1), range(4), 0)
    assert drawn.params["q.lora_A"].shape == (4, 3, 5)
    assert drawn.shared == {"q.lora_B", "head.weight"}


def test_factors_are_found_by_the_names_of_both():
    leaf = torch.zeros(1)
    names = ["a.lora_A", "a.lora_B", "b.lora_A.default.weight", "b.lora_B.default.weight", "c.lora_A", "head"]
    assert pairs(dict.fromkeys(names, leaf)) == {names[0]: names[1], names[2]: names[3]}


def test_it_cannot_be_trained(generator):
    with pytest.raises(be.SettingError, match="training-free: train adapters by another method"):
        be.fit(
            be.Task(lambda: torch.nn.Linear(2, 2), be.Categorical()),
            TFB(),
            (torch.ones(4, 2), torch.tensor([0, 1, 0, 1])),
            epochs=1,
        )
    with pytest.raises(be.SettingError, match="takes no steps"):
        TFB().step(state(generator), None, None)
