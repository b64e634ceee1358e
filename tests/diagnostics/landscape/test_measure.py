"""Networks anywhere in weight space: measured as the members themselves are."""

import pytest
import torch

import bayesemble as be
from bayesemble.core.members import Members
from bayesemble.diagnostics.landscape import measure
from helpers import norm_mlp, quick_fit, small_mlp, table


def classes():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table()), table(40, seed=1)


def test_measured_members_against_a_loop():
    ensemble, (x, y) = classes()
    members = measure.members_of(ensemble)
    found = measure.measure(ensemble, [members.part(0, 2), members.part(2, 3)], (x, y), references=members.part(1, 3))
    probs = ensemble.predict(x).member_probs
    for place in range(3):
        assert float(found.loss[place]) == pytest.approx(-float(probs[place, range(40), y].log().mean()), rel=1e-6)
        assert float(found.error[place]) == pytest.approx(float((probs[place].argmax(-1) != y).double().mean()))
        for column, other in enumerate((1, 2)):
            apart = (probs[place].argmax(-1) != probs[other].argmax(-1)).double().mean()
            assert float(found.difference[place, column]) == pytest.approx(float(apart))


def test_measured_numbers_are_root_mean_squares():
    x, _ = table()
    y = x[:, :2] + 0.1
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian(noise=0.5)), (x, y))
    members = measure.members_of(ensemble)
    found = measure.measure(ensemble, [members], (x, y), references=members)
    means = ensemble.predict(x).member_mean.double()
    assert torch.allclose(found.error, (means - y).square().flatten(1).mean(1).sqrt())
    assert torch.allclose(found.difference, (means.unsqueeze(1) - means).square().flatten(2).mean(2).sqrt())
    assert torch.allclose(found.loss, -ensemble.predict(x).member_log_prob(y).double().mean(1))


def test_without_references_there_are_no_differences():
    ensemble, data = classes()
    found = measure.measure(ensemble, [measure.members_of(ensemble)], data)
    assert found.difference.shape == (3, 0)


def test_batch_norm_needs_training_data_and_gets_its_statistics():
    data = table()
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), data)
    members = measure.members_of(ensemble)
    with pytest.raises(be.DataError, match="pass train="):
        measure.refreshed(ensemble, members, None)
    measured = measure.refreshed(ensemble, members, data)
    weights, biases = members.params["0.weight"], members.params["0.bias"]
    hidden = torch.stack([data[0] @ w.T + b for w, b in zip(weights, biases, strict=True)])
    assert torch.allclose(measured.buffers["1.running_mean"], hidden.mean(1), atol=1e-5)


def test_other_parameters_with_the_buffers_of_the_first_member():
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), table())
    members = measure.members_of(ensemble)
    made = measure.with_params(members, {name: leaf[[2, 1]] for name, leaf in members.params.items()})
    assert made.num_members == 2
    assert torch.equal(made.buffers["1.running_mean"][1], members.buffers["1.running_mean"][0])
    assert float(made.weights.sum()) == 1


def test_the_bytes_of_a_network_decide_how_many_are_in_memory_at_a_time():
    """Parameters of 48 MiB and buffers of 32 MiB: three networks fit into 256 MiB; the member axis does not count."""
    params, buffers = torch.zeros(1).expand(9, 3, 4 << 20), torch.zeros(1, dtype=torch.float64).expand(9, 4 << 20)
    assert measure.at_once(Members({"a": params}, {"b": buffers}, torch.full((9,), 1 / 9))) == 3
