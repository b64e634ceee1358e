import hashlib

import pytest
import torch

from bayesemble.core import seeds


def test_a_child_seed_is_the_hash_of_its_path_on_every_machine_and_version():
    expected = int.from_bytes(hashlib.blake2b(b'[7, "member", 3]', digest_size=8).digest(), "big") >> 1
    assert seeds.child(7, "member", 3) == expected == 4530547647160284786


def test_child_seeds_fit_a_torch_generator_and_do_not_collide():
    drawn = [seeds.child(root, name, i) for root in range(5) for name in ("a", "b") for i in range(500)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_the_order_of_names_counts():
    assert seeds.child(0, "a", "b") != seeds.child(0, "b", "a")
    assert seeds.child(0, 1, 23) != seeds.child(0, 12, 3)


def test_different_paths_have_different_seeds_whatever_signs_their_names_hold():
    paths = [("a/b",), ("a", "b"), ("a", "/b"), ('a", "b',), ("a, b",), ("1",), (1,), ("a", ""), ("a",), ()]
    assert len({seeds.child(0, *path) for path in paths}) == len(paths)


def test_a_generator_is_seeded_with_the_child_seed():
    by_hand = torch.Generator().manual_seed(seeds.child(0, "draw"))
    assert torch.equal(torch.rand(5, generator=seeds.generator(0, "draw")), torch.rand(5, generator=by_hand))


def test_scoped_draws_what_a_generator_of_that_seed_draws():
    with seeds.scoped(3):
        inside = torch.rand(5)
    assert torch.equal(inside, torch.rand(5, generator=torch.Generator().manual_seed(3)))


def test_scoped_without_a_seed_goes_on_from_the_callers_state_and_gives_it_back():
    with seeds.scoped():
        first = torch.rand(5)
    with seeds.scoped():
        assert torch.equal(first, torch.rand(5))


def test_scoped_gives_the_callers_state_back_after_an_error():
    def fail():
        with seeds.scoped(1):
            torch.rand(3)
            raise KeyError("inside")

    before = torch.get_rng_state()
    with pytest.raises(KeyError, match="inside"):
        fail()
    assert torch.equal(before, torch.get_rng_state())


def test_seeding_torch_is_what_manual_seed_does_without_writing_tracebacks(monkeypatch):
    if not torch.accelerator.is_available():
        monkeypatch.setattr(torch, "manual_seed", None)
    with seeds.scoped():
        seeds.seed_torch(5)
        assert torch.equal(torch.rand(5), torch.rand(5, generator=torch.Generator().manual_seed(5)))


def test_a_stream_goes_on_where_it_ended_and_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    stream, found = seeds.Stream(5), []
    for count in (2, 3):
        with stream.resumed():
            found.append(torch.rand(count))
    with seeds.scoped(5):
        assert torch.equal(torch.cat(found), torch.rand(5))
    assert torch.equal(before, torch.get_rng_state())
