"""How often `bayesemble watch` raises an alarm, with and without a shift of one column by one standard deviation.

    python benchmarks/drift.py --runs 100 --out drift.json

Each run has a table of its own (six numbers, of which one is skewed and one is missing at times, and a category) and a
target of numbers or classes in turn. It is watched on new rows of the same table, labels included: as they are, so that
any alarm is a false one, and with one column shifted, which is looked for within 500 rows. A longer stream of 5,000
rows without a shift asks for more looks.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path

import numpy as np

from bayesemble.apps.serve.watch.table import watch_table
from bayesemble.apps.tables.description import TableRequest
from bayesemble.apps.tables.run import fit_table
from bayesemble.estimators.recipe import Recipe

NUMBERS = [f"x{i}" for i in range(6)]


def draw(rng, count, shifted=None):
    x = rng.normal(size=(count, 6))
    x[:, 4] = np.exp(x[:, 4])  # its standard deviation is 2.16
    if shifted is not None:
        x[:, shifted] += 2.16 if shifted == 4 else 1.0
    colour = rng.choice(["red", "green", "blue"], count, p=[0.6, 0.3, 0.1])
    y = 2 * x[:, 0] + np.sin(2 * x[:, 1]) + 0.3 * x[:, 4] + (colour == "red") + rng.normal(size=count) * 0.5
    gone = rng.random(count) < 0.1
    return x, gone, colour, y


def write(path, rng, count, classes, shifted=None):
    x, gone, colour, y = draw(rng, count, shifted)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NUMBERS, "colour", "y"])
        for i in range(count):
            cells = [f"{value:.5f}" for value in x[i]]
            cells[5] = "" if gone[i] else cells[5]
            writer.writerow([*cells, colour[i], ("high" if y[i] > 1 else "low") if classes else f"{y[i]:.4f}"])
    return path


def one_run(seed, folder):
    rng, classes = np.random.default_rng(seed), seed % 2 == 1
    table = write(folder / "table.csv", rng, 1_000, classes)
    recipe = Recipe("deep_ensemble", {"num_members": 3}, epochs=8, width=16, depth=0)
    run = fit_table(TableRequest(str(table), "y", seed=seed, recipe=recipe), folder / "run")
    same = watch_table(run, write(folder / "same.csv", rng, 500, classes))
    longer = watch_table(run, write(folder / "longer.csv", rng, 5_000, classes))
    shifted = int(rng.integers(6))
    moved = watch_table(run, write(folder / "moved.csv", rng, 500, classes, shifted))
    return {
        "seed": seed,
        "column": NUMBERS[shifted],
        "false": same.alarms,
        "false_long": longer.alarms,
        "found": moved.alarms,
        "after": moved.first_alarm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    found = []
    for seed in range(asked.runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(one_run(seed, Path(folder)))
    shifts = [one for one in found if one["found"]]
    right = [one for one in shifts if any(repr(one["column"]) in words for words in one["found"])]
    print(f"{asked.runs} runs")
    print(f"alarm within 500 rows after a shift of one standard deviation: {len(shifts)}")
    print(f"  and it names the column: {len(right)}; first alarm after {sorted({one['after'] for one in shifts})} rows")
    print(f"false alarm in 500 rows: {sum(bool(one['false']) for one in found)}")
    print(f"false alarm in 5,000 rows: {sum(bool(one['false_long']) for one in found)}")
    for one in found:
        for words in one["false"] + one["false_long"]:
            print(f"  seed {one['seed']}: {words}")
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
