import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bayesemble as be
from bayesemble.core.members import State
from bayesemble.core.offload import MEMORY, Disk
from bayesemble.core.types import Batch
from helpers import dropout_mlp, images, norm_convnet, norm_mlp, quick_fit, small_mlp, table, with_tests_on_path

EXECUTORS = [be.Loop(), be.Vmap(chunk=2)]


def bits(state):
    """Every tensor of a state as bytes: also zeros of different sign differ."""
    leaves = {f"{group}/{name}": leaf for group, own in state.groups().items() for name, leaf in own.items()}
    leaves["weights"] = state.members.weights
    return {name: (leaf.dtype, tuple(leaf.shape), leaf.numpy().tobytes()) for name, leaf in leaves.items()}


def on_disk(folder):
    """What the files of a folder hold, by group and name, read by the safetensors library itself."""
    files = {path.stem: load_file(path) for path in sorted(Path(folder).iterdir())}
    return {group: {n: leaf for n, leaf in own.items() if not n.startswith("padding/")} for group, own in files.items()}


def same_bits(one, other):
    return bits(one.state) == bits(other.state) and rows(one) == rows(other)


def rows(ensemble):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in ensemble.history]


METHODS = {
    "adam": be.DeepEnsemble(num_members=5),
    "sgd": be.DeepEnsemble(num_members=5, optimizer="sgd", learning_rate=0.1),
    "sgd without momentum": be.DeepEnsemble(num_members=5, optimizer="sgd", momentum=0.0),
    "clip": be.DeepEnsemble(num_members=5, clip=0.1, bootstrap=True),
    "anchored": be.DeepEnsemble(num_members=5, anchored=True),
    "repulsive": be.Repulsive(num_members=5, optimizer="sgd", learning_rate=0.01),
    "repulsive functions": be.Repulsive(num_members=5, space="function"),
    "repulsive, one by one": be.Repulsive(num_members=5, sequential=True),
    "svgd": be.Stein(num_members=5),
    "snapshots": be.Snapshot(num_members=5, snapshots=2),
    "sgmcmc": be.CyclicalSGMCMC(num_members=5, cycles=2),
    "hmc": be.HMC(num_members=5, num_draws=2, max_leapfrog=4),
    "implicit": be.ECMP(num_members=5),
}


@pytest.mark.filterwarnings("ignore:members hardly repel")
@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
@pytest.mark.parametrize("method", METHODS)
def test_training_on_disk_gives_the_bits_of_training_in_memory(method, executor, tmp_path):
    task = be.Task(norm_mlp, be.Categorical())
    options = {"executor": executor, "epochs": 5, "batch_size": None if METHODS[method].full_batch else 16}

    def gradients_are_there(*_):
        assert (tmp_path / "gradients.safetensors").is_file()

    memory = quick_fit(task, table(), METHODS[method], **options)
    disk = quick_fit(task, table(), METHODS[method], **options, offload=tmp_path, on_epoch=gradients_are_there)
    assert same_bits(memory, disk)
    assert all(path.suffix == ".safetensors" for path in tmp_path.iterdir())


def test_what_was_trained_on_disk_makes_new_members_in_memory(tmp_path):
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), offload=tmp_path)
    before = sorted(tmp_path.iterdir())
    assert ensemble.task.allocator is MEMORY
    ensemble.task.new_members(2, seed=0)
    assert sorted(tmp_path.iterdir()) == before


NETWORKS = {
    "random layers": (dropout_mlp, be.Categorical(), table()),
    # The second batch norm changes its buffers after the first has kept its own for the backward pass.
    "two batch norms": (norm_convnet, be.Categorical(), images()),
    "small leaves, and one of the likelihood": (
        lambda: nn.Linear(4, 3),
        be.Gaussian("learned"),
        (table()[0], table()[0][:, :3]),
    ),
}


@pytest.mark.parametrize("executor", [*EXECUTORS, be.Vmap(chunk=3)], ids=repr)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_bits_agree_for_every_kind_of_network(network, executor, tmp_path):
    make, likelihood, data = NETWORKS[network]
    memory = quick_fit(be.Task(make, likelihood), data, executor=executor)
    disk = quick_fit(be.Task(make, likelihood), data, executor=executor, offload=tmp_path)
    assert same_bits(memory, disk)


def partly_frozen():
    """The first layer is frozen and the same in every member, the second is frozen and each member's own."""
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        network[0].weight.fill_(0.1)
        network[0].bias.zero_()
    for parameter in [*network[0].parameters(), *network[2].parameters()]:
        parameter.requires_grad_(False)
    return network


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_frozen_leaves_are_shared_on_disk_just_as_in_memory(executor, tmp_path):
    task = be.Task(partly_frozen, be.Categorical())
    memory = quick_fit(task, table(), executor=executor)
    disk = quick_fit(task, table(), executor=executor, offload=tmp_path)
    assert disk.state.members.shared == frozenset({"0.weight", "0.bias"})
    assert same_bits(memory, disk)
    assert on_disk(tmp_path)["buffers"]["0.weight"].shape == (8, 4)


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_the_files_hold_the_state_during_training_and_after_it_and_nothing_else(executor, tmp_path):
    seen = []

    def compare(state, _):
        files = on_disk(tmp_path)
        seen.append(set(files))
        for group, leaves in state.groups().items():
            assert files[group].keys() == leaves.keys()
            assert all(torch.equal(files[group][name], leaf) for name, leaf in leaves.items())

    task = be.Task(norm_mlp, be.Categorical())
    trained = quick_fit(task, table(), executor=executor, offload=tmp_path, on_epoch=compare)
    groups = {"params", "buffers", "first_moment", "second_moment", "steps"}
    assert seen == [groups | {"gradients"}] * 2
    compare(trained.state, None)
    assert seen[-1] == groups


def test_what_was_trained_on_disk_predicts_and_is_saved_as_a_proper_copy(tmp_path):
    x, _ = table()
    task = be.Task(norm_mlp, be.Categorical())
    memory = quick_fit(task, table())
    disk = quick_fit(task, table(), offload=tmp_path / "offload")
    assert torch.equal(memory.predict(x).probs, disk.predict(x).probs)
    disk.save(tmp_path / "saved")
    assert bits(be.load(tmp_path / "saved", norm_mlp).state) == bits(memory.state)
    disk.state.members.params["0.weight"].zero_()
    assert bits(be.load(tmp_path / "saved", norm_mlp).state) == bits(memory.state)


@pytest.mark.parametrize("stop", [{"keep_best": True}, {"patience": 2}], ids=str)
def test_the_best_state_is_kept_on_disk_too(stop, tmp_path):
    task, options = be.Task(norm_mlp, be.Categorical()), {"epochs": 12, "validation": table(seed=1), **stop}
    method = be.DeepEnsemble(learning_rate=0.3)
    memory = quick_fit(task, table(), method, **options)
    disk = quick_fit(task, table(), method, **options, offload=tmp_path)
    assert same_bits(memory, disk)
    last = quick_fit(task, table(), method, epochs=len(memory.history))
    assert bits(last.state) != bits(memory.state), "the best state must not be the last, or nothing is tested"
    assert set(on_disk(tmp_path)) == {f"best-{group}" for group in disk.state.groups()}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_a_run_is_resumed_on_disk_or_off_it(before, after, tmp_path):
    task, options = be.Task(norm_mlp, be.Categorical()), {"validation": table(seed=1), "keep_best": True}
    whole = quick_fit(task, table(), epochs=4, **options)

    def part(epochs, offloaded):
        folder = tmp_path / "offload" if offloaded else None
        run = {"checkpoint": tmp_path / "run", "resume": True, "offload": folder}
        return quick_fit(task, table(), epochs=epochs, **options, **run)

    part(2, before)
    assert same_bits(part(4, after), whole)


def test_the_start_of_members_is_that_in_memory_and_leaves_no_copies_behind(tmp_path):
    task = be.Task(norm_mlp, be.Categorical()).bind(48, table()[0])
    members = replace(task, allocator=Disk(tmp_path)).new_members(3, seed=7)
    assert bits(State(members)) == bits(State(task.new_members(3, seed=7)))
    files = on_disk(tmp_path)
    assert all(torch.equal(files["params"][name], leaf) for name, leaf in members.params.items())
    assert all(torch.equal(files["buffers"][name], leaf) for name, leaf in members.buffers.items())


LEAVES = {
    "matrix": torch.arange(35.0).reshape(5, 7),
    "flags": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "nothing": torch.zeros(3, 0),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "count": torch.tensor([[3], [4]]),
}


def test_a_file_is_a_safetensors_file_whose_leaves_lie_as_in_memory(tmp_path):
    settled = Disk(tmp_path).settle({"slot": LEAVES})["slot"]
    read = on_disk(tmp_path)["slot"]
    assert read.keys() == settled.keys() == LEAVES.keys()
    for name, leaf in LEAVES.items():
        assert settled[name].data_ptr() % 64 == 0
        assert torch.equal(settled[name], leaf)
        assert torch.equal(read[name], leaf)
        assert read[name].dtype == settled[name].dtype == leaf.dtype


def test_what_is_written_into_a_leaf_is_in_the_file(tmp_path):
    leaves = Disk(tmp_path).zeros_like(LEAVES, "slot")
    assert all(not leaf.any() for leaf in leaves.values())
    leaves["matrix"][2, 3] = -1.5
    leaves["count"].add_(1)
    read = on_disk(tmp_path)["slot"]
    assert read["matrix"][2, 3] == -1.5
    assert read["matrix"].sum() == -1.5
    assert read["count"].tolist() == [[1], [1]]


def test_settling_copies_what_is_in_memory_and_removes_files_that_nobody_uses(tmp_path):
    disk = Disk(tmp_path)
    kept, dropped = disk.zeros_like(LEAVES, "slot"), disk.zeros_like(LEAVES, "slot")
    disk.gradient_space(LEAVES)
    assert {path.name for path in tmp_path.iterdir()} == {
        "slot.safetensors",
        "slot-2.safetensors",
        "gradients.safetensors",
    }
    settled = disk.settle({"slot": kept, "other": {"matrix": LEAVES["matrix"]}})
    assert {path.stem for path in tmp_path.iterdir()} == {"slot", "other"}
    assert settled["slot"]["matrix"].data_ptr() == kept["matrix"].data_ptr()
    assert torch.equal(on_disk(tmp_path)["other"]["matrix"], LEAVES["matrix"])
    dropped["matrix"].add_(1)  # a file without a name is still there for those who have it open


def test_gradients_have_one_place_for_each_shape_on_disk_and_none_in_memory(tmp_path):
    leaves, other = {"w": torch.ones(3, 2)}, {"w": torch.ones(1, 2)}
    disk = Disk(tmp_path)
    first = disk.gradient_space(leaves)["w"]
    assert disk.gradient_space(leaves)["w"].data_ptr() == first.data_ptr()
    assert disk.gradient_space(other)["w"].data_ptr() != first.data_ptr()
    assert MEMORY.gradient_space(leaves) is None


@pytest.mark.parametrize("executor", [be.Loop(), be.Vmap(), be.Vmap(chunk=2)], ids=repr)
def test_gradients_on_disk_are_those_in_memory_also_of_leaves_that_members_share(executor, tmp_path):
    x, y = table(12)
    task = be.Task(small_mlp, be.Categorical()).bind(12, x)
    networks = [task.new_member(seed)[0] for seed in range(3)]
    members = be.Members.stack(networks, [{}] * 3, share=frozenset({"0.weight"}))
    values, expected = executor.gradients(task.mean_log_likelihood, members, Batch(x, y))
    disk = Disk(tmp_path)
    for _ in range(2):
        again, found = executor.gradients(task.mean_log_likelihood, members, Batch(x, y), allocator=disk)
        assert torch.equal(values, again)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], leaf) for name, leaf in expected.items())
    stored = on_disk(tmp_path)["gradients"]
    assert all(torch.equal(stored[name], expected[name]) for name in stored)
    assert stored.keys() >= expected.keys() - {"0.weight"}


@pytest.mark.parametrize(
    ("executor", "words"),
    [
        ("auto", "'auto'"),
        ("vmap", "'vmap'"),
        (be.Vmap(), "chunk=None"),
        (be.Loop(channels_last=True), "channels_last=True"),
    ],
    ids=str,
)
def test_executors_that_need_all_members_in_memory_are_refused(executor, words, tmp_path):
    task = be.Task(norm_convnet, be.Categorical())
    with pytest.raises(be.SettingError, match=rf"ask for executor=Loop\(\) or Vmap\(chunk=...\), not .*{words}"):
        be.fit(task, be.DeepEnsemble(), table(), epochs=1, executor=executor, offload=tmp_path / "offload")
    assert not (tmp_path / "offload").exists()


def test_other_devices_and_the_folder_of_the_checkpoints_are_refused(tmp_path):
    task = be.Task(small_mlp, be.Categorical())
    with pytest.raises(be.SettingError, match="which the CPU works on; leave out device=meta"):
        quick_fit(task, table(), device="meta", offload=tmp_path)
    with pytest.raises(be.SettingError, match="folders of their own"):
        quick_fit(task, table(), checkpoint=tmp_path / "run", offload=tmp_path / "x" / ".." / "run")
    quick_fit(task, table(), checkpoint=tmp_path / "run", offload=tmp_path / "run" / "offload")


def foreign_safetensors(folder):
    save_file({"precious": torch.ones(2)}, folder / "params.safetensors", metadata={"made_by": "someone else"})


def link_to_one_of_ours(folder):
    Disk(folder.parent / "ours").zeros_like(LEAVES, "params")
    (folder / "params.safetensors").symlink_to(folder.parent / "ours" / "params.safetensors")


FOREIGN = {
    "a text": lambda folder: (folder / "notes.txt").write_text("precious"),
    "a folder": lambda folder: (folder / "checkpoint-000001").mkdir(),
    "tensors of someone else": foreign_safetensors,
    "a broken file": lambda folder: (folder / "params.safetensors").write_bytes(b"\xff" * 20),
    "an empty file": lambda folder: (folder / "params.safetensors").write_bytes(b""),
    "a link": link_to_one_of_ours,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_with_anything_foreign_is_refused_and_left_as_it_is(kind, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    Disk(folder).zeros_like(LEAVES, "first_moment")
    FOREIGN[kind](folder)
    before = {path.name: path.is_dir() or path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        be.SettingError, match=r"which was not made by fit\(offload=...\); choose a new or empty folder"
    ):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), offload=folder)
    assert {path.name: path.is_dir() or path.read_bytes() for path in folder.iterdir()} == before


def test_the_next_run_replaces_the_files_of_the_last_which_may_still_be_in_use(tmp_path):
    task = be.Task(small_mlp, be.Categorical())
    first = quick_fit(task, table(), offload=tmp_path)
    kept = bits(first.state)
    second = quick_fit(task, table(), offload=tmp_path, seed=1)
    assert bits(first.state) == kept != bits(second.state)
    assert torch.equal(on_disk(tmp_path)["params"]["0.weight"], second.state.members.params["0.weight"])


def test_a_path_that_cannot_be_a_folder_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(be.SettingError, match="offload needs a folder to write to"):
            Disk(folder)


def test_a_disk_without_room_is_found_out_at_once_and_leaves_no_half_file(tmp_path):
    disk, limits = Disk(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(be.SettingError, match=r"offload needs 0.0042 GB for .*params.safetensors: "):
            disk.zeros_like({"w": torch.empty(1 << 20, device="meta")}, "params")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_number_types_that_files_do_not_have_are_refused(tmp_path):
    with pytest.raises(be.SettingError, match=r"offload cannot keep 'w' on disk: its number type is torch\.complex64"):
        Disk(tmp_path).zeros_like({"w": torch.ones(2, dtype=torch.complex64)}, "params")


def deep_mlp():
    return nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(350, 350), nn.Tanh())], nn.Linear(350, 2))


MEASURE = """
import json, sys, threading, time
import torch
import bayesemble as be
sys.path.insert(0, sys.argv[1])
from test_offload import deep_mlp

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def growth(action):
    before = top = anonymous()
    done = threading.Event()

    def watch():
        nonlocal top
        while not done.is_set():
            top = max(top, anonymous())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    action()
    done.set()
    watcher.join()
    return top - before

folder, members = sys.argv[2], 8
task = be.Task(deep_mlp, be.Categorical())
x = torch.randn(32, 350, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()

def train(**options):
    be.fit(task, be.DeepEnsemble(num_members=members, clip=1.0), (x, y), epochs=1, batch_size=16, validation=(x, y),
           keep_best=True, executor=be.Loop(), progress=False, **options)

size = 4 * 4 * members * sum(leaf.numel() for leaf in task.module.parameters())
disk = growth(lambda: train(offload=f"{folder}/offload", checkpoint=f"{folder}/run"))
print(json.dumps({"size": size, "disk": disk, "memory": growth(train)}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_members_moments_and_gradients_do_not_take_memory_also_with_checkpoints_and_the_best_state(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(Path(__file__).parent), str(tmp_path)]
    found = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True, env=with_tests_on_path()).stdout
    )
    print({name: f"{number / 2**20:.0f} MiB" for name, number in found.items()})
    assert found["memory"] > found["size"]
    assert found["disk"] < found["size"] / 3
