"""Files that were changed and whose manifests were made to agree, as somebody who knows the format could.

They may be opened as what they now say, but never with weights that are no weights, nor with an error of another kind.
"""

import random
from pathlib import Path

import bayesemble as be
from bayesemble.apps.compare.source import open_run
from bayesemble.apps.tables.run import open_table
from faulting import flips, stage
from faulting.damage import damage, fit_manifests
from faulting.fault import HARMLESS, RIGHT, SILENT, Attempt, Verdict, check, heard, in_child
from faulting.flips import Ask, Place
from helpers import small_mlp

LONG, SHORT = 800, 10

prepare = flips.prepare


def attempt(place: Place, number: int, chance: random.Random) -> Attempt:
    """Change one file that a manifest may cover, make the manifests fit, and ask in a process of its own."""
    files = [(name, file) for name, file in place.files if file.name != "manifest.json"]
    name, file = files[number % len(files)]
    ask, expected = place.asks[name][0]
    folder = stage.copied(place.folder / name, place.folder)
    words = damage(chance, folder / file)
    fit_manifests(folder)
    return Attempt(
        f"{name}/{file}: {words}, manifests fit", lambda: in_child(lambda: opened(name, ask, folder, expected))
    )


def opened(name: str, ask: Ask, folder: Path, expected: flips.Answers) -> Verdict:
    """Whether what is opened can be the weights of an ensemble."""
    with heard():
        found = ask(folder)
        for ensemble in ensembles(name, folder):
            check_weights(ensemble)
    same = all(found.get(key) == value for key, value in expected.items())
    return (HARMLESS, "all answers are the same") if same else (RIGHT, "opened as what the files now say")


def ensembles(name: str, folder: Path) -> list[be.Ensemble]:
    """All ensembles that a folder holds."""
    if name == "table":
        return [open_table(folder).ensemble]
    if name == "comparison":
        return [open_run(run)[0] for run in sorted((folder / "runs").glob("*/*"))]
    return [be.load(folder, small_mlp)]


def check_weights(ensemble: be.Ensemble) -> None:
    """Parameters are finite, weights of members are too, not negative, and as many as members."""
    members = ensemble.state.members
    finite = all(leaf.isfinite().all() for leaf in members.params.values())
    check(finite, SILENT, "parameters that are not finite were loaded")
    own = members.weights
    fine = own.is_floating_point() and own.isfinite().all() and (own >= 0).all() and own.sum() > 0
    check(bool(fine), SILENT, f"weights {own.tolist()} were loaded")
