"""What looks like a run or a comparison of ours and is none: numbers that cannot be, texts that are none, other files.

Their manifests agree with them, as somebody who knows the format could make it.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import bayesemble as be
from faulting import stage
from faulting.damage import fit_manifests
from faulting.fault import REFUSED, RIGHT, SILENT, TRACEBACK, UNCLEAR, Verdict, check, check_kept, contents, heard
from faulting.forged import check_weights
from helpers import small_mlp, table

TOO_MANY_THREADS = 200

Change = Callable[[Path], Any]
"""Changes a run in its folder."""


def edit(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change run.json of the newest checkpoint."""

    def arrange(folder: Path) -> None:
        path = newest(folder) / "run.json"
        run = json.loads(path.read_text())
        change(run)
        path.write_text(json.dumps(run, indent=2))

    return arrange


def newest(folder: Path) -> Path:
    return sorted(folder.glob("checkpoint-*"))[-1]


def write(name: str, data: bytes) -> Change:
    return lambda folder: (newest(folder) / name).write_bytes(data)


def retensor(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Change the tensors of the newest checkpoint."""

    def arrange(folder: Path) -> None:
        path = newest(folder) / "state.safetensors"
        found = {name: leaf.clone() for name, leaf in load_file(path).items()}
        change(found)
        save_file(found, path)

    return arrange


def every(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda found: found.update({name: change(leaf) for name, leaf in found.items() if part in name})


def swapped_for(make: Callable[[Path], Any], name: str = "run.json") -> Change:
    """Something else in place of a file."""

    def arrange(folder: Path) -> None:
        path = newest(folder) / name
        path.unlink()
        make(path)

    return arrange


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
FORGED: dict[str, Change] = {
    "1500 threads": edit(lambda run: run["executor"].update(threads=1500)),
    "a million threads": edit(lambda run: run["executor"].update(threads=10**6)),
    "-3 threads": edit(lambda run: run["executor"].update(threads=-3)),
    "epoch -5": edit(lambda run: run["progress"].update(epoch=-5)),
    "epoch 10**400": edit(lambda run: run["progress"].update(epoch=10**400)),
    "seed -10**400": edit(lambda run: run.update(seed=-(10**400))),
    "temperature NaN": edit(lambda run: run["task"].update(temperature=float("nan"))),
    "rows -1": edit(lambda run: run["task"].update(num_data=-1, num_rows=-1)),
    "rows as text": edit(lambda run: run["task"].update(num_data="many")),
    "10**9 outputs": edit(lambda run: run["task"].update(output_shape=[10**9])),
    "members -1": edit(lambda run: run["method"].update(num_members=-1)),
    "10**9 members": edit(lambda run: run["method"].update(num_members=10**9)),
    "another class": edit(lambda run: run["method"].update({"class": "Popen", "args": ["touch /tmp/x"]})),
    "shared leaves that are none": edit(lambda run: run.update(shared=["0.weight"])),
    "NaN weights of members": retensor(every("weights", lambda leaf: leaf * float("nan"))),
    "negative weights of members": retensor(every("weights", lambda leaf: -leaf)),
    "whole numbers as weights": retensor(every("weights", lambda leaf: torch.ones(len(leaf), dtype=torch.int64))),
    "too many weights": retensor(every("weights", lambda leaf: torch.ones(9) / 9)),
    "NaN parameters": retensor(every("params", lambda leaf: leaf * float("nan"))),
    "infinite parameters": retensor(every("params", lambda leaf: leaf / 0)),
    "run.json that is no text": write("run.json", b"\xff\xfe\x00{" * 50),
    "history.jsonl that is no text": write("history.jsonl", b'{"epoch": 1, "loss": "\xff"}\n'),
    "nested run.json": write("run.json", DEEP),
    "nested history.jsonl": write("history.jsonl", DEEP + b"\n"),
    "a history of other things": write("history.jsonl", b'{"epoch": "one"}\n{"loss": {"a": []}}\n'),
    "a folder as run.json": swapped_for(lambda path: path.mkdir()),
    "a link as run.json": swapped_for(lambda path: path.symlink_to("/etc/passwd")),
    "a pipe as state.safetensors": swapped_for(os.mkfifo, "state.safetensors"),
    "a pipe as history.jsonl": swapped_for(os.mkfifo, "history.jsonl"),
    "a device as run.json": swapped_for(lambda path: path.symlink_to("/dev/zero")),
}
VERSIONS: dict[str, Change] = {
    "version 9.9 of the library": edit(lambda run: run.update(library="9.9")),
    "version 1.0.0 of torch": edit(lambda run: run.update(torch="1.0.0")),
}


def opened(folder: Path, act: Callable[[Path], Any], version: bool) -> Verdict:
    """Refused; or honoured, which for another version needs a word."""
    fit_manifests(folder)
    before = contents(folder)
    try:
        with heard() as said:
            act(folder)
    except be.BayesembleError as error:
        check_kept(before, folder)
        return REFUSED, str(error)
    running = len(os.listdir("/proc/self/task"))
    check(running < TOO_MANY_THREADS, TRACEBACK, f"{running} threads were started")
    check(bool(said) or not version, SILENT, "a run of another version was taken without a word")
    return RIGHT, f"said: {said[0]}" if said else "it does no harm"


def load(folder: Path) -> None:
    """Load and predict."""
    ensemble = be.load(folder, small_mlp)
    check_weights(ensemble)
    ensemble.predict(table(4)[0])


# --- comparisons ---


def with_result(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda content: [change(result) for result in content["results"]]


COMPARISONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a run ../../etc": with_result(lambda result: result.update(run="../../etc")),
    "a run /etc": with_result(lambda result: result.update(run="/etc")),
    "NaN scores": with_result(lambda result: result.update(scores=dict.fromkeys(result["scores"], float("nan")))),
    "scores as text": with_result(lambda result: result.update(scores=dict.fromkeys(result["scores"], "good"))),
    "a method called $\\frac{$": with_result(lambda result: result.update(label="$\\frac{$map")),
}


def reported(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Verdict:
    """The page of a comparison whose file was changed."""
    path = folder / "results.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=2))
    fit_manifests(folder)
    said = stage.command("report", folder, "--out", folder / "report.html")
    if said.code:
        return said.refusal()
    text = (folder / "report.html").read_text()
    check("root:x:" not in text, SILENT, "a file elsewhere is on the page")
    check(not re.search(">(NaN|nan)<", text), UNCLEAR, "the page shows NaN")
    return RIGHT, "a page"
