import importlib.metadata
import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import bayesemble as be
from bayesemble.apps.report.page import write as write_page
from bayesemble.core.files import process_tag, read_json, write_json
from bayesemble.training.run_folders import checkpoint
from bayesemble.training.run_folders.checkpoint import HISTORY, MANIFEST, RUN, TENSORS
from bayesemble.training.run_folders.run_lock import LOCK
from helpers import (
    TESTS,
    all_leaves,
    largest_difference,
    largest_file,
    quick_fit,
    small_mlp,
    table,
    with_tests_on_path,
)

FILES = (RUN, TENSORS, HISTORY, MANIFEST)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    quick_fit(be.Task(small_mlp, be.Categorical()), table()).save(folder)
    return folder


@pytest.fixture(scope="module")
def answers(saved) -> torch.Tensor:
    """What the members of the saved ensemble say."""
    return be.load(saved, small_mlp).predict(table()[0]).member_probs


@pytest.fixture
def run(saved, tmp_path) -> Path:
    """A saved ensemble that a test may damage."""
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def inside(run: Path, name: str) -> Path:
    return next(run.glob("checkpoint-*")) / name


def refresh_manifest(run: Path) -> None:
    """Make the manifest agree with edited files again, as somebody who knows the format could."""
    manifest = read_json(inside(run, MANIFEST))
    for name in manifest["files"]:
        path = inside(run, name)
        manifest["files"][name] = {"size": path.stat().st_size, "sha256": checkpoint._sha256(path)}
    write_json(inside(run, MANIFEST), manifest)


def test_killed_runs_resume_to_the_weights_of_an_undisturbed_run(tmp_path):
    """Killed twice at each of the thirteen steps of writing, and six runs at random moments, not all of which hit."""
    command = [sys.executable, str(TESTS / "kill_driver.py"), str(tmp_path), "6"]
    result = subprocess.run(command, capture_output=True, text=True, env=with_tests_on_path(), timeout=280, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    # The test tested something: kills hit a running child, and more than half of them a half-written checkpoint.
    assert seen["killed"] >= 24
    assert seen["unfinished"] >= 12
    assert seen["leftovers"] >= 14


@pytest.mark.parametrize(
    ("options", "numbers"), [({}, [3, 4]), ({"keep_checkpoints": 1}, [4]), ({"keep_checkpoints": 3}, [2, 3, 4])]
)
def test_only_the_newest_checkpoints_are_kept(tmp_path, options, numbers):
    quick_fit(be.Task(small_mlp, be.Categorical()), table(), checkpoint=tmp_path, epochs=4, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"checkpoint-{number:06d}" for number in numbers]
    for folder in tmp_path.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with pytest.raises(be.SettingError, match="keep_checkpoints must be a whole number from 1, got 0"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), checkpoint=tmp_path, keep_checkpoints=0)


def damage(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))


@pytest.mark.parametrize("name", FILES)
def test_a_run_whose_newest_checkpoint_is_damaged_resumes_from_the_one_before(tmp_path, name):
    task = be.Task(small_mlp, be.Categorical())
    whole = quick_fit(task, table(), epochs=5)
    quick_fit(task, table(), epochs=3, checkpoint=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("checkpoint-000002/*")}
    damage(tmp_path / "checkpoint-000003", name)
    with pytest.raises(be.CheckpointError, match="checkpoint-000003"):
        be.load(tmp_path, small_mlp)
    checkpoint.tidy(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.warns(UserWarning, match=r"checkpoint-000003.*; training goes on from checkpoint-000002"):
        resumed = quick_fit(task, table(), epochs=5, checkpoint=tmp_path, resume=True)
    for leaf, expected in whole.state.members.params.items():
        assert torch.equal(resumed.state.members.params[leaf], expected), leaf


def test_a_run_without_a_whole_checkpoint_is_refused_and_left_as_it_is(tmp_path):
    task = be.Task(small_mlp, be.Categorical())
    quick_fit(task, table(), epochs=3, checkpoint=tmp_path)
    for folder in tmp_path.iterdir():
        damage(folder, TENSORS)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    with pytest.raises(be.CheckpointError, match="checkpoint-000003"):
        quick_fit(task, table(), epochs=5, checkpoint=tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*")} == before


def test_an_ensemble_is_not_saved_over_a_run(tmp_path, run):
    task = be.Task(small_mlp, be.Categorical())
    quick_fit(task, table(), epochs=3, checkpoint=tmp_path / "run of fit")
    before = {path: path.read_bytes() for path in (tmp_path / "run of fit").glob("*/*")}
    with pytest.raises(be.CheckpointError, match="holds a run of fit"):
        be.load(run, small_mlp).save(tmp_path / "run of fit")
    assert {path: path.read_bytes() for path in (tmp_path / "run of fit").glob("*/*")} == before
    inside(run, RUN).write_text("not JSON")
    with pytest.raises(be.CheckpointError, match="is damaged"):
        quick_fit(task, table()).save(run)


def test_folders_that_are_not_ours_are_never_removed(tmp_path):
    task = be.Task(small_mlp, be.Categorical())
    quick_fit(task, table(), epochs=2, checkpoint=tmp_path)
    mine = ["checkpoint-mine", "checkpoint-\N{ARABIC-INDIC DIGIT ONE}", "checkpoint-000000"]
    mine += [".writing-mine", ".writing-checkpoint-mine", ".writing-checkpoint-000001-1@a", ".writing-checkpoint-1"]
    for name in mine:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    (tmp_path / "checkpoint-000000" / MANIFEST).write_text("{}")
    quick_fit(task, table(), epochs=4, checkpoint=tmp_path, resume=True)
    assert all((tmp_path / name / "thesis.txt").read_text() == "years of work" for name in mine)


def test_a_history_that_is_not_finite_is_strict_json_and_comes_back_undefined(tmp_path):
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    ensemble.history[-1] |= {"loss": [1.5, math.inf], "validation_loss": -math.inf}
    ensemble.save(tmp_path)
    (text,) = (path.read_text() for path in tmp_path.glob("*/history.jsonl"))
    assert "Infinity" not in text
    row = be.load(tmp_path, small_mlp).history[-1]
    assert row["loss"][0] == 1.5
    assert math.isnan(row["loss"][1])
    assert math.isnan(row["validation_loss"])


def test_everything_is_on_disk_before_the_checkpoint_gets_its_name(tmp_path, monkeypatch):
    """Every file and their folder are flushed before the rename, and the root after it; then an older one goes."""
    done, flush, replace, remove = [], os.fsync, Path.replace, shutil.rmtree

    def name_of(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(("flush", name_of(handle))), flush(handle)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (done.append(("rename", new.name)), replace(old, new))[1])
    monkeypatch.setattr(shutil, "rmtree", lambda path: (done.append(("remove", Path(path).name)), remove(path)))
    quick_fit(be.Task(small_mlp, be.Categorical()), table(), checkpoint=tmp_path, epochs=3)
    for number in (1, 2, 3):
        end = done.index(("rename", f"checkpoint-00000{number}"))
        writing = f".writing-checkpoint-00000{number}-{process_tag()}"
        assert set(done[end - 5 : end]) == {("flush", name) for name in (*FILES, writing)}
        assert done[end - 1] == ("flush", writing)
        assert done[end + 1] == ("flush", tmp_path.name)
    removed = f".writing-checkpoint-000001-{process_tag()}"
    assert done[-2:] == [("rename", removed), ("remove", removed)]
    assert done[0] == ("flush", LOCK), "and the folder is tried before all"


def test_leftovers_of_a_killed_write_are_cleaned_up(run):
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = process_tag().partition("@")[2]
    kept = ".writing-checkpoint-000007-1@node.7"  # of another machine, which cannot be asked
    for name in (f".writing-checkpoint-000007-{ended.pid}@{here}", kept):
        (run / name).mkdir()
        (run / name / TENSORS).write_bytes(b"half")
        (run / name / ".tmpa1B2c3").write_bytes(b"half")
    be.load(run, small_mlp).save(run)
    assert sorted(path.name for path in run.iterdir()) == [kept, "checkpoint-000002"]


def test_a_checkpoint_of_somebody_else_is_never_removed(run):
    (run / "checkpoint-000000").mkdir()
    (run / "checkpoint-000000" / "manifest.json").write_text('{"mine": 1}')
    be.load(run, small_mlp).save(run)
    assert (run / "checkpoint-000000" / "manifest.json").read_text() == '{"mine": 1}'


def test_file_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        quick_fit(be.Task(small_mlp, be.Categorical()), table()).save(tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*/*")}
    assert set(modes.values()) == {0o640}, modes


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(run, name):
    inside(run, name).unlink()
    with pytest.raises(be.CheckpointError, match=f"{name} is missing"):
        be.load(run, small_mlp)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(run, name):
    content = inside(run, name).read_bytes()
    inside(run, name).write_bytes(content[: len(content) // 2])
    with pytest.raises(be.CheckpointError, match=f"{name} is damaged"):
        be.load(run, small_mlp)


@pytest.mark.parametrize("name", [RUN, TENSORS, HISTORY])
def test_a_flipped_bit_is_named(run, name):
    content = bytearray(inside(run, name).read_bytes())
    content[len(content) // 2] ^= 1
    inside(run, name).write_bytes(content)
    with pytest.raises(be.CheckpointError, match=f"{name} is damaged"):
        be.load(run, small_mlp)


def test_a_linked_file_is_not_followed(run, tmp_path):
    moved = tmp_path / "elsewhere"
    inside(run, RUN).rename(moved)
    inside(run, RUN).symlink_to(moved)
    with pytest.raises(be.CheckpointError, match=r"run\.json is missing"):
        be.load(run, small_mlp)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(be.CheckpointError, match="is not a folder"):
        be.load(tmp_path / "nothing", small_mlp)
    with pytest.raises(be.CheckpointError, match=r"is not a run folder.*holds nothing"):
        be.load(tmp_path, small_mlp)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(be.CheckpointError, match=r"it holds notes\.txt"):
        be.load(tmp_path, small_mlp)


def test_a_run_of_another_network_names_the_first_leaf_that_differs(run):
    with pytest.raises(be.CheckpointError, match=r"parameter '0\.weight' is \(8, 4\).*network has \(9, 4\)"):
        be.load(run, lambda: torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 2)))
    with pytest.raises(be.CheckpointError, match=r"parameter 'weight' is not in the saved run"):
        be.load(run, lambda: torch.nn.Linear(4, 2))
    with pytest.raises(be.CheckpointError, match=r"float32 in .* but the network has .*float64"):
        be.load(run, lambda: small_mlp().double())


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"format": 2}',
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"../../x": {}}}',
        "\x00",
        "null",
    ],
)
def test_a_foreign_manifest_gives_our_error(run, content):
    inside(run, MANIFEST).write_text(content)
    with pytest.raises(be.CheckpointError, match=r"manifest\.json"):
        be.load(run, small_mlp)


@pytest.mark.parametrize("missing", ["params", "weights"])
def test_tensors_without_members_are_refused(run, missing):
    tensors = load_file(inside(run, TENSORS))
    save_file({name: leaf for name, leaf in tensors.items() if missing not in name.split("/")}, inside(run, TENSORS))
    refresh_manifest(run)
    with pytest.raises(be.CheckpointError, match=r"state\.safetensors is not of this library: it holds no members"):
        be.load(run, small_mlp)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.filterwarnings("ignore:the run was made with")
@given(data=st.data())
@hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_run_json_says_only_our_error_comes_out(run, answers, data):
    path = inside(run, RUN)
    original = path.read_text()
    content = json.loads(original)
    where = data.draw(st.sampled_from([*content, *(("task", key) for key in content["task"]), "whole"]))
    value = data.draw(json_values)
    if where == "whole":
        content = value
    elif isinstance(where, tuple):
        content[where[0]][where[1]] = value
    else:
        content[where] = value
    path.write_text(json.dumps(content))
    refresh_manifest(run)
    try:
        loaded = be.load(run, small_mlp)
        assert loaded.num_members == 3, "what is loaded all the same is the ensemble, with the same predictions"
        assert torch.equal(loaded.predict(table()[0]).member_probs, answers)
    except be.CheckpointError:
        pass
    finally:
        path.write_text(original)
        refresh_manifest(run)


def test_nothing_that_is_loaded_can_run_code():
    """No pickle in any form: the words that would bring it in do not occur in the source.

    But for the reader of CIFAR's files, which takes arrays, texts and numbers from a pickle and refuses other names.
    """
    forbidden = ("pickle", "torch.load", "torch.save", "joblib.load", "eval(", "exec(")
    for path in Path(be.__file__).parent.rglob("*.py"):
        text = path.read_text().replace("allow_pickle=False", "").replace("no pickle", "")
        if path.parent.name == "image_sets" and path.name in ("plain_pickle.py", "cifar.py"):
            text = text.replace("pickle", "")
        if path.name == "program.py":  # the text is one that it wrote itself, from operations that ran
            text = text.replace('exec("\\n".join(lines), names)', "")
        assert not [word for word in forbidden if word in text], path


def test_a_disk_that_refuses_is_named_and_nothing_half_written_is_left(tmp_path):
    task, run = be.Task(small_mlp, be.Categorical()), tmp_path / "run"
    quick_fit(task, table(), epochs=2, checkpoint=run)
    ensemble = quick_fit(task, table(), record="epoch")
    ensemble.save(tmp_path / "saved")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = "cannot be written: .*File too large.* MB are free there"
    with largest_file(1500):
        with pytest.raises(be.CheckpointError, match=f"run/checkpoint-000003 {words}"):
            quick_fit(task, table(), epochs=3, checkpoint=run, resume=True)
        with pytest.raises(be.CheckpointError, match=f"saved/checkpoint-000002 {words}"):
            ensemble.save(tmp_path / "saved")
        with largest_file(800), pytest.raises(be.CheckpointError, match=rf"epoch-000003\.safetensors {words}"):
            ensemble.recording.add(3, ensemble.state.members)
        with pytest.raises(be.CheckpointError, match=rf"report\.html {words}"):
            write_page(tmp_path / "report.html", "x" * 2000)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert ensemble.recording.epochs == [0, 1, 2]
    assert not list(ensemble.recording.folder.glob(".*"))
    resumed = quick_fit(task, table(), epochs=3, checkpoint=run, resume=True)
    assert len(resumed.history) == 3


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_followed_by_the_next(tmp_path, monkeypatch):
    """Each of the first reads finds its checkpoint gone half-way, as beside somebody who saves again and again."""
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    ensemble.save(tmp_path)
    read, left = checkpoint.read_tensors, [1, 2, 3]

    def replaced(path, content):
        if left:
            left.pop()
            ensemble.save(tmp_path)
            raise be.CheckpointError(f"{path} is missing")
        return read(path, content)

    monkeypatch.setattr(checkpoint, "read_tensors", replaced)
    assert be.load(tmp_path, small_mlp).num_members == 3
    assert not left
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000004"]


def rewrite(run: Path, **tensors: torch.Tensor) -> None:
    """Put other tensors into a saved ensemble, as somebody who knows the format could."""
    held = load_file(inside(run, TENSORS))
    save_file(held | {name.replace("__", "/"): leaf for name, leaf in tensors.items()}, inside(run, TENSORS))
    refresh_manifest(run)


@pytest.mark.parametrize(
    "weights",
    [
        [math.nan, 0.5, 0.5],
        [-0.5, 0.5, 1.0],
        [0.5, 0.5],
        [0.25, 0.25, 0.25, 0.25],
        [0.2, 0.2, 0.2],
        [math.inf, 0.0, 0.0],
        0.5,
        [[0.2, 0.3, 0.5]],
        [],
    ],
)
def test_weights_that_are_none_are_refused(run, weights):
    rewrite(run, state__weights=torch.tensor(weights, dtype=torch.float64))
    with pytest.raises(be.CheckpointError, match=r"weights of the members|but there are \d members"):
        be.load(run, small_mlp)
    rewrite(run, state__weights=torch.tensor([1, 0, 0]))
    with pytest.raises(be.CheckpointError, match="weights of the members"):
        be.load(run, small_mlp)


def test_parameters_that_are_not_finite_are_refused_by_name(run):
    for bad in (math.nan, math.inf):
        leaf = load_file(inside(run, TENSORS))["state/params/0.bias"].clone()
        leaf[1, 3] = bad
        rewrite(run, **{"state__params__0.bias": leaf})
        with pytest.raises(be.CheckpointError, match=r"'0\.bias' in .* is not finite"):
            be.load(run, small_mlp)


@pytest.mark.parametrize(
    "progress", [{"epoch": -5}, {"epochs": -1}, {"batch_size": 0}, {"best_loss": "low"}, {"stopped": 3}, {"epoch": 1.5}]
)
def test_a_standing_that_cannot_be_is_refused(tmp_path, progress):
    task = be.Task(small_mlp, be.Categorical())
    quick_fit(task, table(), checkpoint=tmp_path, keep_checkpoints=1)
    content = json.loads(inside(tmp_path, RUN).read_text())
    content["progress"] |= progress
    inside(tmp_path, RUN).write_text(json.dumps(content))
    refresh_manifest(tmp_path)
    with pytest.raises(be.CheckpointError, match=f"does not describe a run of this library: {next(iter(progress))} is"):
        be.load(tmp_path, small_mlp)
    with pytest.raises(be.BayesembleError, match=f"{next(iter(progress))} is"):
        quick_fit(task, table(), checkpoint=tmp_path, resume=True, epochs=3)


@pytest.mark.parametrize("name", [RUN, HISTORY])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b'{"a": ' + b"[" * 50_000, b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"]
)
def test_contents_that_no_writer_of_ours_makes_are_refused_by_name(run, name, content):
    inside(run, name).write_bytes(content + b"\n")
    refresh_manifest(run)
    try:
        be.load(run, small_mlp)
    except be.CheckpointError as error:
        assert name in str(error)  # noqa: PT017
    else:
        assert name == HISTORY
        assert len(content) < 2000


def test_versions_that_differ_are_said_once(run):
    content = json.loads(inside(run, RUN).read_text())
    inside(run, RUN).write_text(json.dumps(content | {"library": "9.9", "torch": "1.0.0"}))
    refresh_manifest(run)
    with pytest.warns(
        UserWarning, match=r"bayesemble 9\.9, here is .* and torch 1\.0\.0, here is .*bits may differ"
    ) as heard:
        be.load(run, small_mlp)
    assert len(heard) == 1
    assert heard[0].filename == __file__


def test_a_source_tree_without_an_installation_knows_its_version(tmp_path, monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    quick_fit(be.Task(small_mlp, be.Categorical()), table(), checkpoint=tmp_path)
    assert json.loads(inside(tmp_path, RUN).read_text())["library"] == be.__version__


def test_saving_keeps_the_files_of_others(tmp_path):
    (tmp_path / "sub").mkdir()
    mine = {tmp_path / name: name for name in ("a.txt", "run.json", "manifest.json", "sub/b.txt", ".hidden")}
    for path, text in mine.items():
        path.write_text(text)
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    ensemble.save(tmp_path)
    ensemble.save(tmp_path)
    assert {path: path.read_text() for path in mine} == mine
    assert be.load(tmp_path, small_mlp).num_members == 3


@pytest.mark.parametrize("harm", ["overwrite", "truncate", "delete"])
def test_a_loaded_ensemble_owns_its_weights(run, answers, harm):
    """Overwritten, a mapped file changes predictions without a word; truncated, it kills the process."""
    loaded, path = be.load(run, small_mlp), inside(run, TENSORS)
    if harm == "overwrite":
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(bytes(path.stat().st_size // 2))
    elif harm == "truncate":
        os.truncate(path, 0)
    else:
        shutil.rmtree(run)
    assert torch.equal(loaded.predict(table()[0]).member_probs, answers)


def test_weights_stay_in_the_file_on_request(run, answers):
    loaded, path = be.load(run, small_mlp, mapped=True), inside(run, TENSORS)
    assert torch.equal(loaded.predict(table()[0]).member_probs, answers)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(path.stat().st_size // 2))
    assert not torch.equal(loaded.predict(table()[0]).member_probs, answers), "which is the risk"
    with pytest.raises(be.CheckpointError, match=r"state\.safetensors is damaged"):
        be.load(run, small_mlp, mapped=True)


class Slashed(nn.Module):
    """A network with a leaf whose name has slashes, as keys of a `ParameterDict` may have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("layers/0/weight", nn.Parameter(torch.randn(4, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ getattr(self, "layers/0/weight")


def test_moments_of_leaves_with_slashes_in_their_names_are_resumed(tmp_path):
    task = be.Task(Slashed, be.Categorical())
    quick_fit(task, table(), epochs=1, checkpoint=tmp_path / "run")
    resumed = quick_fit(task, table(), epochs=2, checkpoint=tmp_path / "run", resume=True)
    assert largest_difference(all_leaves(resumed), all_leaves(quick_fit(task, table(), epochs=2))) == 0
