"""Frozen parts stand still in training, unless somebody asks for what plain torch does."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.task.adapters.still import frozen_parts, hold_still, is_still, set_mode, still_buffers

X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2


def network():
    body = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6, affine=False), nn.Dropout(0.5))
    return nn.Sequential(body.requires_grad_(False), nn.ReLU(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_a_part_is_frozen_if_it_has_parameters_and_none_is_trained():
    assert frozen_parts(network()) == ["0"]
    module = network()
    module[3].requires_grad_(False)
    assert frozen_parts(module) == ["0", "3"]
    assert frozen_parts(nn.Linear(2, 2)) == []


def test_layers_without_parameters_go_with_the_part_around_them():
    module = network()
    hold_still(module)
    assert [is_still(layer) for layer in module[0]] == [True] * 3
    assert not is_still(module[1])
    assert not is_still(module)
    assert set(still_buffers(module)) == {f"0.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}
    set_mode(module, True)
    assert [layer.training for layer in module] == [False, True, True, True, True]
    assert not module[0][2].training
    set_mode(module, False)
    assert not any(layer.training for layer in module.modules())


def fitted(**settings):
    task = be.Task(network(), be.Categorical(), start="given", jitter=0.1, **settings)
    return be.fit(task, be.DeepEnsemble(num_members=2), (X, Y), epochs=2, batch_size=8, progress=False)


def test_batch_norm_and_dropout_of_frozen_parts_stand_still():
    ensemble = fitted()
    members = ensemble.state.members
    assert not ensemble.task.stochastic
    assert members.buffers["0.1.running_mean"].eq(0).all()
    assert "0.1.running_mean" in members.shared
    assert members.buffers["3.running_mean"].shape == (2, 4)
    assert members.buffers["3.running_mean"].ne(0).all()


def test_unless_asked():
    ensemble = fitted(train_frozen=True)
    assert ensemble.task.stochastic
    assert ensemble.state.members.buffers["0.1.running_mean"].ne(0).all()


def test_dropout_of_frozen_parts_is_no_dropout_to_draw_by():
    task = be.Task(network(), be.Categorical(), start="given", jitter=0.1)
    with pytest.raises(be.SettingError, match=r"MCDropout needs a network with nn.Dropout layers"):
        be.fit(task, be.MCDropout(), (X, Y), epochs=1, progress=False)


def test_statistics_of_frozen_parts_are_not_measured_anew():
    """SWAG gives its draws batch-norm statistics of their own; those of the frozen part belong to it."""
    method = be.SWAG(num_members=1, draws=2, rank=2, start=0.5)
    task = be.Task(network(), be.Categorical(), start="given")
    ensemble = be.fit(task, method, (X, Y), epochs=4, progress=False)
    drawn = ensemble.draw(2)
    assert drawn.buffers["0.1.running_mean"].eq(0).all()
    assert drawn.buffers["3.running_mean"].ne(0).all()


def test_a_frozen_norm_without_parameters_keeps_its_statistics_when_members_are_drawn():
    given = network()
    given[0][1].running_mean.fill_(3.0)
    members = be.Task(given, be.Categorical(), start="fresh").new_members(2, 0)
    assert members.buffers["0.1.running_mean"].eq(3).all()


def test_a_loaded_ensemble_draws_by_the_dropout_that_it_was_trained_with(tmp_path):
    task = be.Task(network(), be.Categorical(), start="given", train_frozen=True)
    ensemble = be.fit(task, be.MCDropout(draws=3), (X, Y), epochs=1, progress=False)
    ensemble.save(tmp_path)
    assert torch.equal(be.load(tmp_path, network()).predict(X).probs, ensemble.predict(X).probs)
