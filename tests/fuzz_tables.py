"""Odd tables and damaged runs: each gives a result that is checked, or an error of ours; never a traceback or a hang.

    python tests/fuzz_tables.py                      # 20,000 tables and 2,000 run folders, about five minutes
    python tests/fuzz_tables.py --tables 500 --runs 50

Of the tables, a third are known cell by cell and must be read back exactly, also with their columns in another order
and others between them; a third are odd throughout; the last third have some bytes changed at random. One in a hundred
is trained on, with one epoch, and predicted. One has a header of a million columns. Every case has its own seed, which
is printed if it fails.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from bayesemble.apps.tables.description import TABLE, TableRequest
from bayesemble.apps.tables.run import evaluate_table, fit_table, open_table, predict_table
from bayesemble.core.errors import BayesembleError
from bayesemble.data.find_schema import find_schema
from bayesemble.data.schema import TASKS, Schema
from bayesemble.data.table_files import read_rows
from bayesemble.estimators.recipe import Recipe
from odd_tables import odd_table, quoted_table

SECONDS = 60  # for one case, which takes a fraction of a second
QUICK = Recipe(settings={"num_members": 2}, epochs=1, width=8, depth=0)


class TookTooLongError(Exception):
    """A case did not end in time."""


def read_back(generator, path):
    """Known cells are read as they are, and encoded the same when columns are moved and others are put between."""
    columns, data = quoted_table(generator)
    path.write_bytes(data)
    found = joined(path, generator.choice([1, 7, 1000]))
    assert found == columns, "other cells were read"
    names = [*columns, "extra"]
    generator.shuffle(names)
    lines = zip(*(columns.get(name, ["-"] * len(columns[next(iter(columns))])) for name in names), strict=True)
    moved = path.with_suffix(".moved.csv")
    cell = '"{}"'.format
    texts = [",".join(cell(value.replace('"', '""')) for value in line) for line in [names, *lines]]
    moved.write_text("\n".join(texts) + "\n", encoding="utf-8", newline="")
    target = generator.choice(list(columns))
    schema = find_schema(read_rows(path), target, generator.choice([None, *TASKS]))
    (before,), (after,) = ([schema.encode(chunk) for chunk in read_rows(file)] for file in (path, moved))
    for values in ("numbers", "categories", "targets"):
        np.testing.assert_array_equal(getattr(before, values), getattr(after, values))


def joined(path, rows):
    parts = list(read_rows(path, rows))
    return {name: [cell for part in parts for cell in part.columns[name]] for name in parts[0].columns}


def odd(generator, path, damaged):
    """What columns mean, and every row encoded."""
    data = bytearray(odd_table(generator))
    for _ in range(generator.randint(1, 5) if damaged and data else 0):
        data[generator.randrange(len(data))] = generator.randrange(256)
    path.write_bytes(data)
    schema = find_schema(read_rows(path, generator.choice([1, 3, 10])), "y", generator.choice([None, None, *TASKS]))
    assert Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False))) == schema
    for part in read_rows(path):
        encoded = schema.encode(part)
        assert np.isfinite(encoded.numbers).all()
        assert np.isfinite(encoded.targets).all()
        assert not encoded.unlike.any(), "a row of training is unlike training"


def whole_path(generator, path):
    """From a file to predictions: one for each row."""
    columns, data = quoted_table(generator)
    path.write_bytes(data)
    run = path.with_suffix("")
    try:
        fit_table(TableRequest(str(path), generator.choice(list(columns)), recipe=QUICK), run)
        predicted(run, path)
    finally:
        shutil.rmtree(run, ignore_errors=True)


def predicted(run, path):
    """Open a run and predict a file; as many rows come out as went in."""
    out = path.with_suffix(".out.csv")
    opened = open_table(run)
    made = predict_table(opened, path, out)
    assert made.rows == len(next(iter(joined(out, 1000).values()))) == len(next(iter(joined(path, 1000).values())))
    evaluate_table(opened)


def damaged_run(generator, path, good):
    """A run folder of which a file is cut, changed, emptied, exchanged or gone."""
    run = path.with_suffix("")
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(good, run)
    files = sorted(file for file in run.rglob("*") if file.is_file())
    for file in [run / TABLE] if generator.random() < 0.5 else generator.sample(files, generator.choice([1, 1, 2])):
        data = bytearray(file.read_bytes())
        what = generator.choice(["cut", "bytes", "empty", "gone", "folder", "other", "value", "value", "value"])
        file.unlink()
        if what == "folder":
            file.mkdir()
        elif what != "gone":
            file.write_bytes(changed(generator, what, data, files))
    predicted(run, good.with_suffix(".csv"))


def changed(generator, what, data, files):
    if what == "cut":
        return data[: generator.randrange(len(data) + 1)]
    if what == "empty":
        return b""
    if what == "other":
        other = generator.choice(files)
        return other.read_bytes() if other.is_file() else b""
    if what == "value":
        try:
            return json.dumps(with_another_value(generator, json.loads(data))).encode()
        except ValueError:
            what = "bytes"
    for _ in range(generator.randint(1, 20) if data else 0):
        data[generator.randrange(len(data))] = generator.randrange(256)
    return data


def with_another_value(generator, value):
    """JSON in which one value somewhere is another, or gone."""
    places = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    if not places or generator.random() < 0.15:
        return generator.choice([None, -1, 0, 10**12, 1.5, float("nan"), "", "x", [], {}, True, [value]])
    place = generator.choice(list(places))
    if generator.random() < 0.1:
        del value[place]
        return value
    value[place] = with_another_value(generator, value[place])
    return value


def million_columns(path):
    """A header of a million names, and one row."""
    path.write_text(",".join(["y", *(f"c{number}" for number in range(1, 10**6))]) + "\n" + "1," * 999_999 + "2\n")
    find_schema(read_rows(path), "y")


def case(kind, seed, place, good):
    """What a case did, in a word: done, refused or a failure."""
    generator, path = random.Random(f"{kind} {seed}"), place / f"{kind}-{seed}.csv"
    signal.alarm(SECONDS)
    try:
        if kind == "run":
            damaged_run(generator, path, good)
        elif kind == "wide":
            million_columns(path)
        elif kind == "whole":
            whole_path(generator, path)
        elif kind == "known":
            read_back(generator, path)
        else:
            odd(generator, path, kind == "damaged")
        return "done"
    except BayesembleError:
        return "refused"
    except Exception:  # the failure is what is looked for
        print(f"{kind} {seed} failed:\n{traceback.format_exc(limit=-4)}")
        return "failed"
    finally:
        signal.alarm(0)
        for file in place.glob(f"{kind}-{seed}*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    arguments = parser.parse_args()
    warnings.simplefilter("error")

    def stop(*_):
        raise TookTooLongError(f"more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    counts, start = Counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        good = place / "good"
        lines = ["y,a,b", *(f"{number % 7 + 0.5},{number},{'pqr'[number % 3]}" for number in range(60))]
        good.with_suffix(".csv").write_text("\n".join(lines) + "\n")
        fit_table(TableRequest(str(good.with_suffix(".csv")), "y", recipe=QUICK), good)
        plan = [("wide", 0)]
        for number in range(arguments.first, arguments.first + arguments.tables):
            plan.append(("whole" if number % 100 == 0 else ("known", "odd", "damaged")[number % 3], number))
        plan += [("run", number) for number in range(arguments.first, arguments.first + arguments.runs)]
        for kind, seed in plan:
            counts[kind, case(kind, seed, place, good)] += 1
    for (kind, what), count in sorted(counts.items()):
        print(f"{kind:8} {what:8} {count:6,}")
    print(f"{time.monotonic() - start:.0f} seconds")
    sys.exit(any(what == "failed" for _, what in counts))


if __name__ == "__main__":
    main()
