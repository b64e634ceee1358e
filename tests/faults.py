"""A campaign of faults: each must end right, refused or harmless; never in a wrong number, a loss or a traceback.

    python tests/faults.py                                  # all kinds, about half an hour on one core
    python tests/faults.py --short                          # a few of each kind, as the suite does
    python tests/faults.py --only flips,kills --count 500   # so many of these kinds
    python tests/faults.py --only flips --seed 3 --at 17    # a single one again
    python tests/faults.py --resume faults.jsonl            # keep results there, and leave out those that are there

What a fault does follows from its kind, the seed and its number alone. The table at the end counts outcomes; the exit
code is 1 if one of them is bad.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: children are forked
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from faulting import disk, flips, forged, hostile, kills, nonfinite, outputs, signals, swaps, threads, writers
from faulting.fault import BAD, OUTCOMES, Fault, judge
from processor_time import spent as processor_time

KINDS: dict[str, ModuleType] = {
    "kills": kills,
    "signals": signals,
    "disk": disk,
    "flips": flips,
    "forged": forged,
    "swaps": swaps,
    "threads": threads,
    "hostile": hostile,
    "writers": writers,
    "nonfinite": nonfinite,
    "outputs": outputs,
}
SHOWN = 5
"""How many bad faults of one kind and outcome are told."""


def faults(name: str, seed: int, numbers: Iterable[int], known: set[tuple[str, int, int]]) -> Iterator[Fault]:
    """Do the faults of one kind, but for those that are known."""
    kind, left = KINDS[name], [number for number in numbers if (name, seed, number) not in known]
    if not left:
        return
    with tempfile.TemporaryDirectory(prefix="faults-", dir=quick_folder()) as folder:
        stage = kind.prepare(Path(folder).resolve())
        for number in left:
            attempt = kind.attempt(stage, number, random.Random(f"{name} {seed} {number}"))
            yield Fault(name, seed, number, attempt.done, *judge(attempt))
        getattr(kind, "finish", lambda _: None)(stage)


def quick_folder() -> str | None:
    """Memory, where there is a folder that lies in it: most faults write files and wait for them to be on disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def numbers_of(name: str, arguments: argparse.Namespace) -> Iterable[int]:
    """Which faults of a kind are asked for."""
    if arguments.at is not None:
        return [arguments.at]
    return range(arguments.count or (KINDS[name].SHORT if arguments.short else KINDS[name].LONG))


def overview(found: list[Fault], console: Console) -> None:
    """Print how many faults of each kind had which outcome, and the bad ones with how to repeat them."""
    counts = Counter((fault.kind, fault.outcome) for fault in found)
    shown = [outcome for outcome in OUTCOMES if outcome not in BAD or any(one.outcome == outcome for one in found)]
    grid = Table("kind", *shown, "all", box=box.SIMPLE_HEAD)
    rows = [*dict.fromkeys(fault.kind for fault in found)]
    for kind in rows:
        cells = [counts[kind, outcome] for outcome in shown]
        styled = [
            f"[red]{count:,}[/]" if count and outcome in BAD else f"{count:,}" if count else ""
            for outcome, count in zip(shown, cells, strict=True)
        ]
        grid.add_row(kind, *styled, f"{sum(cells):,}")
    totals = [sum(fault.outcome == outcome for fault in found) for outcome in shown]
    grid.add_row("all", *(f"{total:,}" for total in totals), f"{len(found):,}", style="bold")
    seen: Counter[tuple[str, str]] = Counter()
    for fault in found:
        seen[fault.kind, fault.outcome] += fault.bad
        if fault.bad and seen[fault.kind, fault.outcome] <= SHOWN:
            console.print(f"[red]{fault.outcome}[/] {escape(fault.done)}", highlight=False, soft_wrap=True)
            console.print(f"    {escape(fault.words[:600])}", highlight=False, soft_wrap=True)
            again = f"--only {fault.kind} --seed {fault.seed} --at {fault.number}"
            console.print(f"    python tests/faults.py {again}", highlight=False, soft_wrap=True)
    console.print(grid)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--count", type=int, help="faults of each kind")
    parser.add_argument("--at", type=int, help="the number of a single fault")
    parser.add_argument("--short", action="store_true", help="a few of each kind")
    parser.add_argument("--resume", type=Path, metavar="FILE.jsonl", help="where results are kept")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := [name for name in arguments.only if name not in KINDS]:
        parser.error(f"unknown kinds {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return arguments


def main() -> int:
    """Do what is asked for; 1 if anything bad was seen."""
    arguments, console = parsed(), Console(width=None if sys.stdout.isatty() else 140)
    torch.set_num_threads(1)
    kept: Path | None = arguments.resume
    lines = kept.read_text().splitlines() if kept is not None and kept.is_file() else []
    found = [Fault(**json.loads(line)) for line in lines]
    if arguments.short:
        for kind in KINDS.values():
            getattr(kind, "shorten", lambda: None)()
    known, start = {(fault.kind, fault.seed, fault.number) for fault in found}, time.monotonic()
    for name in arguments.only:
        before, spent = time.monotonic(), processor_time()
        for fault in faults(name, arguments.seed, numbers_of(name, arguments), known):
            found.append(fault)
            if kept is not None:
                with kept.open("a") as file:
                    file.write(fault.to_json() + "\n")
            if arguments.at is not None:
                console.print(f"{fault.done}\n{fault.outcome}: {fault.words}", markup=False, soft_wrap=True)
        took = f"{time.monotonic() - before:.0f} s, {processor_time() - spent:.0f} s of processor time"
        console.print(f"{name}: {took}", style="dim", highlight=False)
    overview(found, console)
    console.print(f"{len(found):,} faults, {time.monotonic() - start:.0f} seconds", highlight=False)
    return int(any(fault.bad for fault in found))


if __name__ == "__main__":
    sys.exit(main())
