"""A job of two processes that meet over gloo: what came of each case, for the tests of ranks.

`found()` starts it once, and gives what rank 0 wrote down. Started as a program, this file is one of the processes, or:

    python tests/ranks_job.py 3       # every method of the registry on three ranks, against one process
    python tests/ranks_job.py 4 2     # on a mesh of two places for members and two for rows
"""

import copy
import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.errors import BayesembleError
from bayesemble.core.files import process_tag
from bayesemble.execute.ranks import group as messaging
from bayesemble.execute.ranks.team import ALONE, Team
from bayesemble.methods import METHODS, make_method
from bayesemble.methods.repulsion import interacting
from bayesemble.methods.repulsion.weight_space import combine, put_push, share
from leftovers import Held

PROCESSES, SECONDS = 2, 240
CASES: dict[str, Callable[[Path], Any]] = {}
UNLIKE: dict[str, dict[str, Any]] = {
    "swag": {"start": 0.1},
    "subspace": {"start": 0.1, "dim": 2, "rank": 2},
    "laplace": {"structure": "diag"},
}
_SEED = 3


@cache
def found() -> dict[str, Any]:
    """What came of all cases."""
    return job(PROCESSES, SECONDS)


def job(count: int, seconds: float, data: int | None = None) -> dict[str, Any]:
    """What came of all cases on so many ranks; or, with `data`, of every method on such a mesh alone."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        shared |= {"WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        probe.close()
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, folder, *([] if data is None else [str(data)])],
                env=os.environ | shared | {"RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        try:
            told = [process.communicate(timeout=seconds)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank}: {told[rank][-3000:]}"
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
        return found


def case(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A case under the name of its function."""
    CASES[function.__name__] = function
    return function


def network(dropout: float = 0.0) -> nn.Module:
    """A small network in double precision."""
    middle = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), *middle, nn.Linear(4, 1)).double()


def task(dropout: float = 0.0) -> be.Task:
    """A regression."""
    return be.Task(lambda: network(dropout), be.Gaussian(noise=0.3), be.NormalPrior(std=1.0))


def rows(num: int = 13) -> tuple[Tensor, Tensor]:
    """Rows that do not come out even."""
    inputs = torch.randn(num, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return inputs, inputs[:, 0].sin()


def train(method: be.Method, executor: Any, dropout: float = 0.0, **settings: Any) -> be.Ensemble:
    """A short run."""
    usual = {"epochs": 2, "batch_size": None if method.full_batch else 5, "seed": _SEED, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short runs are warned of
        return be.fit(task(dropout), method, rows(), executor=executor, **usual | settings)


def difference(one: be.Ensemble, other: be.Ensemble) -> float:
    """The largest difference between any numbers of two states, and of what their histories tell."""
    largest = float((one.state.members.weights - other.state.members.weights).abs().max())
    there = other.state.groups()
    for group, leaves in one.state.groups().items():
        for name, leaf in leaves.items():
            assert leaf.shape == there[group][name].shape, (group, name)
            apart = (leaf.double() - there[group][name].double()).abs().nan_to_num()
            largest = max(largest, *apart.flatten().tolist())
    for row, expected in zip(one.history, other.history, strict=True):
        for name in row.keys() - {"seconds", "finish_seconds"}:
            pair = torch.tensor([row[name], expected[name]], dtype=torch.float64).nan_to_num()
            largest = max(largest, float((pair[0] - pair[1]).abs().max()))
    return largest


def compared(method: be.Method, data: int = 1, **settings: Any) -> float | str:
    """How far ranks are from one process, which rank 0 runs too; or why they cannot."""
    try:
        ours = train(method, be.Ranks(inner="loop", data=data, timeout=60), **settings)
    except BayesembleError as error:
        return str(error)
    assert ours.num_members == method.num_members
    return difference(ours, train(method, "loop", **settings)) if torch.distributed.get_rank() == 0 else 0.0


def variants() -> Iterator[tuple[str, be.Method, dict[str, Any]]]:
    """Every method of the registry, and settings by which members differ or meet."""
    for name in METHODS:
        if name != "map":
            method = make_method(name, num_members=3, **UNLIKE.get(name, {}))
            yield name, method, {"dropout": 0.2} if name == "mc_dropout" else {}
    common = {"num_members": 3}
    yield "function space", be.Repulsive(**common, space="function", prior_every=2), {}
    yield "svgd in function space", be.Stein(**common, space="function", function_prior=False), {}
    yield "anchored", be.DeepEnsemble(**common, anchored=True), {}
    yield "rates that are drawn", be.DeepEnsemble(**common, learning_rate=(1e-3, 1e-2)), {}
    yield "rates and bootstrap", be.DeepEnsemble(**common, rate_per_member=(1.0, 2.0, 3.0), bootstrap=True), {}
    validated = {"validation": rows(), "patience": 1}
    yield "validated", be.Repulsive(**common), validated


@case
def members(_: Path) -> dict[str, float | str]:
    """Members on two ranks: two and one."""
    return {name: compared(method, **settings) for name, method, settings in variants()}


@case
def data(_: Path) -> dict[str, float | str]:
    """Rows on two ranks."""
    chosen = ("deep_ensemble", "svgd", "function space", "mean_field", "mc_dropout", "rates and bootstrap")
    return {name: compared(method, 2, **settings) for name, method, settings in variants() if name in chosen}


@case
def weighted_rows(_: Path) -> float:
    """Rows with weights, of which one rank has none at times."""
    weights = torch.tensor([0.0] * 8 + [1.0, 2.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    runs = []
    for executor in (be.Ranks(inner="loop", data=2), "loop"):
        options = {"epochs": 2, "executor": executor, "progress": False}
        runs.append(be.fit(task(), be.DeepEnsemble(num_members=2), (*rows(), weights), **options))
    return difference(*runs)


class OverError(Exception):
    """What ends a run in the middle."""


def half_a_run(folder: Path) -> None:
    """The folder of a run over ranks that ended within its last epoch."""

    def stop(_: Any, row: dict[str, Any]) -> None:
        if row["epoch"] == 2:
            raise OverError

    with suppress(OverError):
        train(be.Stein(num_members=3), be.Ranks(inner="loop", timeout=60), **kept_in(folder), on_epoch=stop)


def kept_in(folder: Path) -> dict[str, Any]:
    """Settings of a run with several checkpoints in a folder."""
    return {"epochs": 3, "checkpoint_every": "2 steps", "checkpoint": folder, "resume": True}


@case
def checkpoints(folder: Path) -> dict[str, float]:
    """A run that is stopped, and gone on with by two ranks and by one process."""
    method, ranks, found = be.Stein(num_members=3), be.Ranks(inner="loop", timeout=60), {}
    half_a_run(folder / "run")
    first = torch.distributed.get_rank() == 0
    if first:
        for name in ("alone", *FAULTS):
            shutil.copytree(folder / "run", folder / name)
    torch.distributed.barrier()
    ours = train(method, ranks, **kept_in(folder / "run"))
    if first:
        expected = train(method, "loop", epochs=3)
        found["ranks"] = difference(ours, expected)
        found["loaded"] = difference(be.load(folder / "run", network), ours)
        found["alone"] = difference(train(method, "loop", **kept_in(folder / "alone")), expected)
    torch.distributed.barrier()
    return found


def _flipped(newest: Path) -> str:
    damaged = newest / "members-000002-000003.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    return f"{damaged.name} is damaged: its contents are not those that were written; training goes on from"


def _deleted(newest: Path) -> str:
    (newest / "members-000000-000002.safetensors").unlink()
    return "members-000000-000002.safetensors is missing"


def _half_written(newest: Path) -> str:
    """What two killed ranks leave: a file that was being written, and a checkpoint that had no manifest yet."""
    with subprocess.Popen(["true"]) as gone:
        pass
    number, tag = int(newest.name.removeprefix("checkpoint-")) + 1, f"{gone.pid}@{process_tag().partition('@')[2]}"
    ended = newest.parent / f".writing-checkpoint-{number:06d}-{tag}"
    ended.mkdir()
    content = (newest / "members-000002-000003.safetensors").read_bytes()
    (ended / ".tmpAb3xYz").write_bytes(content[: len(content) // 2])
    (ended / "members-000000-000002.safetensors").touch()
    return ""


def _without_manifest(newest: Path) -> str:
    (newest / "manifest.json").unlink()
    return "manifest.json is missing: the checkpoint is incomplete"


FAULTS: dict[str, Callable[[Path], str]] = {
    "flipped": _flipped,
    "deleted": _deleted,
    "half written": _half_written,
    "without manifest": _without_manifest,
}


@case
def faults(folder: Path) -> dict[str, dict[str, Any]]:
    """Ranks go on from folders that were damaged: how far from the undisturbed run, what was said, what is left."""
    method, ranks, found = be.Stein(num_members=3), be.Ranks(inner="loop", timeout=60), {}
    undisturbed = train(method, ranks, epochs=3)
    for name, damage in FAULTS.items():
        words = damage(max((folder / name).glob("checkpoint-*"))) if torch.distributed.get_rank() == 0 else ""
        torch.distributed.barrier()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            again = be.fit(
                task(),
                method,
                rows(),
                batch_size=5,
                seed=_SEED,
                executor=ranks,
                progress=False,
                **kept_in(folder / name),
            )
        said = [str(one.message) for one in told if "training goes on from" in str(one.message)]
        found[name] = {
            "difference": difference(again, undisturbed),
            "named": len(said) == bool(words) and all(words in one for one in said),
            "left": [one.name for one in (folder / name).glob(".writing-*")],
        }
    return found


@case
def own_members(_: Path) -> list[int]:
    """Without gathering, each rank has its own members."""
    ours = train(be.DeepEnsemble(num_members=3), be.Ranks(gather=False))
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(PROCESSES)]
    torch.distributed.all_gather(counts, torch.tensor([ours.num_members]))
    return [int(count) for count in counts]


@case
def predicted(_: Path) -> dict[str, Any]:
    """Members that stay on their ranks predict together, like one process; what that cannot do is said."""
    foreign = torch.linspace(-3, 3, 2 * 1500, dtype=torch.float64).reshape(1500, 2)  # two batches of rows
    found: dict[str, Any] = {}
    for method in (
        be.DeepEnsemble(num_members=3),
        be.Repulsive(num_members=3),
        be.Snapshot(num_members=3, snapshots=2),
    ):
        spread = train(method, be.Ranks(inner="loop", gather="predictions"))
        whole, ours = train(method, "loop").predict(foreign), spread.predict(foreign)
        parts = [
            (getattr(ours, name) - getattr(whole, name)).abs().max() for name in ("mean", "epistemic", "aleatoric")
        ]
        assert len(ours.member_mean) == len(whole.member_mean) >= 3
        found[type(method).__name__] = float(max(*parts, (ours.member_mean - whole.member_mean).abs().max()))
    learned = be.Task(network, be.Gaussian(), be.NormalPrior(std=1.0))
    settings: dict[str, Any] = {"epochs": 2, "progress": False, "seed": _SEED}
    spread = be.fit(learned, be.Laplace(num_members=3), rows(), executor=be.Ranks(gather="predictions"), **settings)
    whole = be.fit(learned, be.Laplace(num_members=3), rows(), executor="loop", **settings)
    scores, expected = spread.evaluate(rows()), whole.evaluate(rows())
    found["scores in closed form"] = max(abs(scores[name] - expected[name]) for name in expected)
    rank = torch.distributed.get_rank()
    for name, attempt in {
        "other rows": lambda: spread.predict(foreign[: 5 + rank]),
        "draws": lambda: spread.predict(foreign, num_draws=7),
        "saved": lambda: spread.save("nowhere"),
        "drawn": lambda: train(be.EMP(num_members=3), be.Ranks(gather="predictions")).predict(foreign),
    }.items():
        try:
            attempt()
            found[name] = "accepted"
        except BayesembleError as error:
            found[name] = str(error)
    return found


@case
def sharded_backbone(_: Path) -> dict[str, Any]:
    """A frozen backbone that two ranks hold halves of, and members on what it gives, against one whole network."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole, (x, y), new = network().requires_grad_(False)[:2], rows(), rows(7)[0] + 1
    whole, backbone = copy.deepcopy(whole), copy.deepcopy(whole)
    torch.distributed.broadcast_object_list(weights := [whole.state_dict()], src=0)
    for one in (whole, backbone):
        one.load_state_dict(weights[0])
    fully_shard(backbone, mesh=init_device_mesh("cpu", (PROCESSES,)), reshard_after_forward=True)
    with torch.no_grad():
        features, seen = backbone(x), backbone(new)
    held = sum(leaf.to_local().numel() for leaf in backbone.parameters())  # type: ignore[operator]
    likelihood, prior, method = be.Gaussian(noise=0.3), be.NormalPrior(std=1.0), be.Repulsive(num_members=3)
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 5, "seed": _SEED, "progress": False}

    def head() -> nn.Module:
        return nn.Linear(4, 1).double()

    def together() -> nn.Module:
        return nn.Sequential(copy.deepcopy(whole), head())

    ours = be.fit(be.Task(head, likelihood, prior), method, (features, y), executor=be.Ranks(inner="loop"), **settings)
    one = be.fit(be.Task(together, likelihood, prior), method, (x, y), executor="loop", **settings)
    try:
        be.fit(be.Task(nn.Sequential(backbone, head()), likelihood, prior), method, (x, y), **settings)
        said = "accepted"
    except BayesembleError as error:
        said = str(error)
    pairs = [(ours.state.members.params[name], one.state.members.params[f"1.{name}"]) for name in ("weight", "bias")]
    return {
        "held": held / sum(leaf.numel() for leaf in whole.parameters()),
        "outputs": float((features - whole(x)).abs().max()),
        "weights": max(float((here - there).abs().max()) for here, there in pairs),
        "predictions": float((ours.predict(seen).mean - one.predict(new).mean).abs().max()),
        "said": said,
    }


class Block(nn.Module):
    """A part of a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Beside what comes in."""
        return x + self.down(self.up(x).tanh())


@case
def adapters_in_shards(_: Path) -> dict[str, Any]:
    """Adapters in a backbone that two ranks hold halves of, against the whole network: weights and predictions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with seeds.scoped(0):
        network = nn.Sequential(nn.Linear(2, 3), Block(), Block(), nn.Linear(3, 1)).double()
    whole, sharded = (be.adapt(network, "lora", targets="up|down", rank=2, head="3") for _ in range(2))
    mesh, trained = init_device_mesh("cpu", (PROCESSES,)), {one for one in sharded.parameters() if one.requires_grad}
    for part in (sharded[1], sharded[2], sharded):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, ignored_params=trained)
    methods = {
        "alone": be.DeepEnsemble(num_members=4),
        "weights": be.Repulsive(num_members=4),
        "functions": be.Repulsive(num_members=4, space="function"),
    }
    new, found = rows(7)[0] + 1, {}
    together, team = be.Ranks(timeout=60, gather="predictions"), be.Ranks().team(4)

    def fitted(network: nn.Module, method: be.Method, executor: Any) -> be.Ensemble:
        likelihood, prior = be.Gaussian(noise=0.3), be.NormalPrior(std=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return be.fit(
                be.Task(network, likelihood, prior),
                method,
                rows(),
                epochs=2,
                batch_size=5,
                seed=_SEED,
                executor=executor,
                progress=False,
            )

    for name, method in methods.items():
        ours, one = fitted(sharded, method, together), fitted(whole, method, "loop")
        own = {leaf: team.everyone(here) for leaf, here in ours.state.members.params.items()}
        pairs = [(own[leaf], there) for leaf, there in one.state.members.params.items()]
        pairs.append((ours.predict(new).member_mean, one.predict(new).member_mean))
        found[name] = max(float((here - there).abs().max()) for here, there in pairs)
    parts = [one.to_local().numel() for one in sharded.parameters() if not one.requires_grad]  # type: ignore[operator]
    found["held"] = sum(parts) / sum(one.numel() for one in whole.parameters() if not one.requires_grad)
    try:
        ours.save("nowhere")
    except BayesembleError as error:
        found["saved"] = str(error)
    own_adapters = be.adapt(network, "lora", targets="up|down")
    fully_shard(own_adapters, mesh=mesh)
    for name, (source, method, executor) in {
        "uneven": (sharded, be.DeepEnsemble(num_members=3), together),
        "vmap": (sharded, methods["alone"], be.Ranks(inner="vmap", gather="predictions")),
        "gathered": (sharded, methods["alone"], be.Ranks()),
        "drawn": (sharded, be.Laplace(num_members=4), together),
        "no ranks": (sharded, methods["alone"], "loop"),
        "sharded adapters": (own_adapters, methods["alone"], together),
    }.items():
        try:
            fitted(source, method, executor)
            found[name] = "accepted"
        except BayesembleError as error:
            found[name] = str(error)
    return found


@case
def exchanged(_: Path) -> dict[str, float]:
    """What the operations of a team give, against plain tensors."""
    team, plain = be.Ranks().team(5), torch.arange(5 * 7, dtype=torch.float64).reshape(5, 7)
    here = team.own(plain)
    columns = team.columns(here)
    return {
        "here": len(here),
        "first": team.first,
        "everyone": float((team.everyone(here) - plain).abs().max()),
        "truth values": float((team.everyone(here > 9) != (plain > 9)).sum()),
        "columns": columns.shape[1],
        "products": float((team.summed(columns @ columns.T) - plain @ plain.T).abs().max()),
        "back": float((team.from_columns(2 * columns, 7) - 2 * here).abs().max()),
        "largest": team.largest(10 + team.first),
    }


@case
def blocks(_: Path) -> dict[str, list[Any]]:
    """Forces between the weights of five members of 85 weights: how many messages, the most numbers that this rank
    gets in one, and how far from one process; all leaves in one block, and in blocks of at most 20 coordinates."""
    team, shapes, messages = be.Ranks().team(5), ((4, 3), (4,), (10, 4), (10,), (19,)), []
    draw, plain_ask, usual = torch.Generator().manual_seed(0), messaging._ask, interacting._COORDINATES_OF_A_BLOCK
    whole, slopes = ({str(s): torch.randn(5, *s, generator=draw).double() for s in shapes} for _ in range(2))
    driving, repelling = torch.randn(2, 5, 5, generator=draw).double()

    def own(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: team.own(leaf).clone() for name, leaf in leaves.items()}

    def counting(operation: Any, *arguments: Any, **options: Any) -> None:
        messages.append(max(part.numel() for part in arguments if isinstance(part, Tensor)))
        plain_ask(operation, *arguments, **options)

    def moved_by_forces(gradients: dict[str, Tensor], positions: dict[str, Tensor], team: Team) -> dict[str, Tensor]:
        push = {name: torch.empty_like(leaf) for name, leaf in gradients.items()}
        put_push(push, repelling, positions, True, team)
        combine(driving, push, gradients, 0.5, team)
        return gradients

    expected = moved_by_forces({name: leaf.clone() for name, leaf in slopes.items()}, whole, ALONE)
    gram, found = interacting.products(list(whole.values()))[0], {}
    for most in (usual, 20):
        with patch.object(messaging, "_ask", counting), patch.object(interacting, "_COORDINATES_OF_A_BLOCK", most):
            apart = [float((interacting.products(list(own(whole).values()), True, team)[0] - gram).abs().max())]
            moved = moved_by_forces(own(slopes), own(whole), team)
        apart += [float((moved[name] - team.own(leaf)).abs().max()) for name, leaf in expected.items()]
        found[str(most)] = [len(messages), max(messages), max(apart)]
        messages.clear()
    return found


@case
def evenly(_: Path) -> float:
    """How far gradients of five members that count alike for one another are from those of one process."""
    team, draw = be.Ranks().team(5), torch.Generator().manual_seed(0)
    matrix = 0.1 + 0.7 * torch.eye(5, dtype=torch.float64)
    whole = [torch.randn(5, *shape, generator=draw).double() for shape in ((4, 3), (4,), (19,))]
    here = [team.own(leaf).clone() for leaf in whole]
    share(matrix, whole)
    share(matrix[0, :2], here, team)
    return max(float((own - team.own(leaf)).abs().max()) for own, leaf in zip(here, whole, strict=True))


@case
def held(_: Path) -> dict[str, list[int]]:
    """Descriptors and threads of this rank, after each of three runs."""
    found = []
    for _ in range(3):
        train(be.Stein(num_members=2), be.Ranks(inner="loop", timeout=60), epochs=1)
        gc.collect()
        found.append(Held.now())
    return {name: [getattr(one, name) for one in found] for name in ("descriptors", "sockets", "threads")}


@case
def refused(folder: Path) -> dict[str, str]:
    """What ranks cannot do, each said in a sentence on all of them."""
    wishes: dict[str, dict[str, Any]] = {
        "offload": {"offload": folder},
        "seconds": {"checkpoint": folder / "no", "checkpoint_every": "60 s"},
        "start": {"start": [network(), network()]},
        "few members": {"method": be.DeepEnsemble(num_members=1)},
        "uneven": {"executor": be.Ranks(data=3)},
        "sequential": {"method": be.Repulsive(num_members=2, sequential=True)},
    }
    found = {}
    for name, wish in wishes.items():
        settings = {"method": be.DeepEnsemble(num_members=2), "executor": be.Ranks()} | wish
        try:
            train(**settings)
            found[name] = "accepted"
        except BayesembleError as error:
            found[name] = str(error)
    return found


@case
def diverged(_: Path) -> str:
    """A member of the second rank that is no longer finite ends all ranks."""
    try:
        train(be.DeepEnsemble(num_members=2, optimizer="sgd", rate_per_member=(1e-3, 1e300)), be.Ranks(inner="loop"))
    except BayesembleError as error:
        return str(error)
    return "trained"


def _main(folder: Path, data: int | None = None) -> None:
    torch.set_num_threads(1)
    be.Ranks(timeout=60, data=data or 1).team(3)
    if data is None:
        results = {name: function(folder) for name, function in CASES.items()}
    else:
        results = {name: compared(method, data, **settings) for name, method, settings in variants()}
    if torch.distributed.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        _main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    else:
        for name, apart in job(int(sys.argv[1]), 10 * SECONDS, int((*sys.argv[2:], 1)[0])).items():
            print(f"{name:24} {apart if isinstance(apart, str) else format(apart, '.2g')}")
