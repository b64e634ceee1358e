import hashlib
import importlib
import inspect
import os
import pkgutil
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import bayesemble
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


def test_scoped_gives_the_callers_state_back_after_an_error():
    def fail():
        with seeds.scoped(1):
            torch.rand(3)
            raise KeyError("inside")

    before = torch.get_rng_state()
    with pytest.raises(KeyError, match="inside"):
        fail()
    assert torch.equal(before, torch.get_rng_state())


def test_a_stream_goes_on_where_it_ended_and_leaves_the_shared_states_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    stream, found = seeds.Stream(5), []
    for count in (2, 3):
        with stream:
            found.append((torch.rand(count), [random.random() for _ in range(count)], np.random.rand(count)))
    with seeds.scoped(5):
        again = torch.rand(5), [random.random() for _ in range(5)], np.random.rand(5)
    assert torch.equal(torch.cat([one[0] for one in found]), again[0])
    assert [*found[0][1], *found[1][1]] == again[1]
    assert np.array_equal(np.concatenate([one[2] for one in found]), again[2])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert all(np.array_equal(one, other) for one, other in zip(before[2], np.random.get_state(), strict=True))


def every_way_to_draw() -> list[torch.Tensor]:
    x, images = torch.ones(4, 6), torch.ones(2, 3, 4, 4)
    weights = torch.empty(4, 5)
    return [
        torch.rand(3), torch.randn(3), torch.randint(9, (4,)), torch.randint(2, 9, (4,)), torch.randperm(7),
        torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9), torch.normal(0.0, 1.0, (3,)),
        torch.bernoulli(x / 2), torch.multinomial(x, 2), torch.poisson(x), torch.empty(3).exponential_(),
        torch.empty(3).random_(), functional.dropout(x), functional.dropout2d(images),
        functional.alpha_dropout(x, 0.3, True),
        functional.rrelu(-x, training=True), functional.gumbel_softmax(x), nn.init.kaiming_uniform_(weights).clone(),
        nn.init.trunc_normal_(weights).clone(), nn.init.orthogonal_(weights).clone(),
        functional.scaled_dot_product_attention(images, images, torch.rand_like(images), dropout_p=0.5),
        nn.LSTM(6, 3, 2, dropout=0.5)(x)[0].detach(), torch.native_dropout(x, 0.5, True)[0],
    ]  # fmt: skip


def test_whatever_draws_in_a_block_draws_what_torch_would_after_manual_seed():
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        expected = every_way_to_draw()
        state = torch.get_rng_state()
        with seeds.TorchStream(3) as stream:
            found = every_way_to_draw()
        assert torch.equal(torch.get_rng_state(), state)
    assert stream.generators.used
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_generator_that_is_given_is_used_and_a_block_that_draws_nothing_knows_it():
    with seeds.TorchStream(3) as stream:
        found = torch.rand(5, generator=torch.Generator().manual_seed(1)) + torch.ones(5)
    assert torch.equal(found, 1 + torch.rand(5, generator=torch.Generator().manual_seed(1)))
    assert not stream.generators.used


def test_attention_without_dropout_draws_nothing():
    x = torch.ones(1, 2, 4, 8)
    with seeds.TorchStream(0) as stream:
        functional.scaled_dot_product_attention(x, x, x)
    assert not stream.generators.used


@pytest.mark.parametrize("seed_before", [7, 2])
def test_code_that_seeds_torch_itself_draws_what_it_asked_for_and_the_state_before_comes_back(seed_before):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed_before)
        torch.rand(3)
        before = torch.get_rng_state()
        with seeds.scoped(5):
            first = torch.rand(2)
            torch.manual_seed(2)
            second = torch.rand(2)
            torch.manual_seed(2)
            third = torch.rand(2)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, torch.rand(2, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(second, torch.rand(2, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(third, second)


def test_other_threads_draw_their_own_numbers_meanwhile():
    def own(_: int) -> torch.Tensor:
        return torch.cat([torch.rand(4) for _ in range(50)])

    with torch.random.fork_rng():
        torch.default_generator.manual_seed(8)
        expected = [own(0) for _ in range(4)]
        torch.default_generator.manual_seed(8)
        with ThreadPoolExecutor(1) as pool, seeds.scoped(0):
            found = [pool.submit(own, 0) for _ in range(4)]
            inside = [every_way_to_draw() for _ in range(20)]
            drawn = [one.result() for one in found]
    with seeds.scoped(0):
        again = [every_way_to_draw() for _ in range(20)]
    assert all(torch.equal(one, other) for one, other in zip(drawn, expected, strict=True))
    assert all(
        torch.equal(a, b) for one, other in zip(inside, again, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_a_forked_process_is_left_to_its_own_seeds():
    """A worker of a `DataLoader` is forked in such a block, and has its own seed."""
    with seeds.scoped(0):
        read, write = os.pipe()
        if os.fork() == 0:
            torch.default_generator.manual_seed(4)
            os.write(write, torch.rand(3).numpy().tobytes())
            os._exit(0)
        os.wait()
        found = np.frombuffer(os.read(read, 100), dtype=np.float32)
    assert np.array_equal(found, torch.rand(3, generator=torch.Generator().manual_seed(4)).numpy())


def test_compiled_networks_draw_from_a_stream_too_and_the_compiler_leaves_its_code_alone():
    """It would warn of what it cannot look into, and warnings are errors here."""
    compiled = torch.compile(lambda x: functional.dropout(x, 0.5) + 1, backend="eager")
    x = torch.ones(50)
    with seeds.TorchStream(4):
        found = compiled(x)
    with seeds.TorchStream(4):
        expected = functional.dropout(x, 0.5) + 1
    assert torch.equal(found, expected)


def test_a_block_that_cannot_begin_keeps_nobody_waiting(monkeypatch):
    def refuse(_: object) -> None:
        raise ValueError("state must be of another generator")

    with monkeypatch.context() as patch:
        patch.setattr(np.random, "set_state", refuse)
        with pytest.raises(ValueError, match="another generator"):
            seeds.scoped(0).__enter__()

    def draw() -> torch.Tensor:
        with seeds.scoped(1):
            return torch.rand(3)

    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(draw).result(timeout=20), draw())


def test_a_seed_that_is_left_out_is_zero_or_none_everywhere():
    found = {}
    for module in pkgutil.walk_packages(bayesemble.__path__, "bayesemble."):
        if not module.name.endswith("__main__"):
            for name, function in vars(importlib.import_module(module.name)).items():
                parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
                if "seed" in parameters and parameters["seed"].default is not inspect.Parameter.empty:
                    found[f"{function.__module__}.{name}"] = parameters["seed"].default
    assert len(found) > 10
    assert set(found.values()) <= {0, None}


def test_a_process_that_holds_some_members_counts_them_from_its_first():
    whole, shuffle = [seeds.child(0, "member", number, "start") for number in range(5)], seeds.child(0, "shuffle", 1)
    with seeds.members_from(3):
        assert [seeds.child(0, "member", number, "start") for number in range(2)] == whole[3:]
        assert seeds.child(0, "shuffle", 1) == shuffle
        with seeds.members_from(0):
            assert seeds.child(0, "member", 1, "start") == whole[1]
    assert seeds.child(0, "member", 0, "start") == whole[0]
