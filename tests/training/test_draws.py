import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.training import draws
from bayesemble.training.draws import DrawnNetworks, draws_at_once
from helpers import norm_mlp, quick_fit, small_mlp, table, with_dropout


def fitted(method, model=norm_mlp) -> be.Ensemble:
    return quick_fit(be.Task(model, be.Categorical()), table(), method)


def test_members_that_are_there_come_at_once():
    ensemble = fitted(be.DeepEnsemble(num_members=3))
    found = DrawnNetworks(ensemble.method, ensemble.state, None, 0)
    assert not found.sampled
    assert [part.num_members for part in found] == [3]
    assert next(iter(found)).params["0.weight"] is ensemble.state.members.params["0.weight"]


@pytest.mark.parametrize(
    "method",
    [be.ECMP(), be.ECMP(num_members=3), be.EMP(), be.Dropout(), be.Explicit(), be.MCDropout(num_members=2)],
    ids=str,
)
def test_parts_are_the_same_networks_as_all_at_once(method, monkeypatch):
    """Whatever the budget: same draws, same prediction."""
    ensemble, x = fitted(method, (lambda: with_dropout(norm_mlp)) if method.keeps_dropout else norm_mlp), table()[0]
    whole = ensemble.predict(x, num_draws=20)
    monkeypatch.setattr(draws, "_DRAWS_AT_A_TIME", 3)
    parts = [part.num_members for part in ensemble.networks(20)]
    assert parts == [3, 3, 3, 3, 3, 3, 2]
    few = ensemble.predict(x, num_draws=20)
    torch.testing.assert_close(few.member_probs, whole.member_probs)
    torch.testing.assert_close(few.weights, whole.weights)
    assert few.member_probs.shape[0] == 20


def test_going_through_twice_gives_the_same(monkeypatch):
    monkeypatch.setattr(draws, "_DRAWS_AT_A_TIME", 4)
    found = fitted(be.ECMP()).networks(10, seed=3)
    first, again = ([part.params["3.weight"] for part in found] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_networks_that_come_in_one_part_are_kept_for_the_next_rows(monkeypatch):
    ensemble = fitted(be.ECMP())
    monkeypatch.setattr(draws, "_BYTES_AT_A_TIME", 4 * ensemble.networks(1)._bytes)
    kept, drawn_again = ensemble.networks(4), ensemble.networks(5)
    assert next(iter(kept)) is next(iter(kept))
    assert next(iter(drawn_again)) is not next(iter(drawn_again))


def test_the_seed_decides():
    ensemble, x = fitted(be.ECMP()), table()[0]
    assert torch.equal(ensemble.predict(x, seed=1).probs, ensemble.predict(x, seed=1).probs)
    assert not torch.equal(ensemble.predict(x, seed=1).probs, ensemble.predict(x, seed=2).probs)
    few, many = ensemble.predict(x, num_draws=5), ensemble.predict(x, num_draws=9)
    torch.testing.assert_close(few.member_probs, many.member_probs[:5], msg="more draws begin with the fewer")


def test_large_networks_come_in_few_at_a_time():
    assert draws_at_once(1) == 64
    assert draws_at_once(100 << 20) == 2
    assert draws_at_once(1 << 40) == 1


def test_the_bytes_of_a_network_decide_how_many_come_at_a_time(monkeypatch):
    """Of what each draw has for itself: 58 numbers of four bytes."""
    ensemble = fitted(be.ECMP(select="all"), small_mlp)
    monkeypatch.setattr(draws, "_BYTES_AT_A_TIME", 4 * 58 * 3)
    assert [part.num_members for part in ensemble.networks(8)] == [3, 3, 2]


def test_dropout_differs_between_draws_and_between_batches_of_rows():
    ensemble = fitted(be.MCDropout(), lambda: with_dropout(small_mlp))
    found = ensemble.networks(4)
    first, second = found.dropout_seeds(0, 0, 4), found.dropout_seeds(1, 0, 4)
    assert len({*first, *second}) == 8
    assert fitted(be.ECMP()).networks(4).dropout_seeds(0, 0, 4) is None


def test_no_draws_are_refused():
    with pytest.raises(SettingError, match="num_draws is a number from 1"):
        fitted(be.EMP()).predict(table()[0], num_draws=0)


@pytest.mark.parametrize(
    "method", [be.SWAG(num_members=2), be.Subspace(num_members=2), be.Laplace(num_members=2)], ids=str
)
def test_before_training_is_over_each_member_is_run_once(method):
    """Not once for every draw there will be: validation looks at the members themselves."""
    task = be.Task(norm_mlp, be.Categorical()).bind(48, table()[0])
    found = DrawnNetworks(method, method.init(task, 0), None, 0)
    assert not found.sampled
    assert [part.num_members for part in found] == [2]


def test_networks_are_at_hand_if_they_are_kept_and_few(monkeypatch):
    assert fitted(be.DeepEnsemble(num_members=3)).networks().at_hand
    assert fitted(be.ECMP()).networks(100).at_hand
    monkeypatch.setattr(draws, "_BYTES_AT_HAND", 100)
    assert not fitted(be.DeepEnsemble(num_members=3)).networks().at_hand
    monkeypatch.undo()
    monkeypatch.setattr(draws, "_BYTES_AT_A_TIME", 100)
    assert not fitted(be.ECMP()).networks(100).at_hand


def test_draws_are_kept_in_parts_as_long_as_they_take_little_memory(monkeypatch):
    """A draw has 34 numbers of its own: scale and shift of eight units, and 18 of the output."""
    monkeypatch.setattr(draws, "_DRAWS_AT_A_TIME", 4)
    ensemble = fitted(be.ECMP())
    kept = ensemble.networks(10)
    assert [one is other for one, other in zip(kept, kept, strict=True)] == [True] * 3
    assert kept.bytes_kept == 4 * 34 * 10
    monkeypatch.setattr(draws, "_BYTES_AT_A_TIME", 4 * 34 * 9)
    drawn = ensemble.networks(10)
    assert [one is other for one, other in zip(drawn, drawn, strict=True)] == [False] * 3
    assert drawn.bytes_kept == 0
    assert all(torch.equal(a.params["3.weight"], b.params["3.weight"]) for a, b in zip(kept, drawn, strict=True))
