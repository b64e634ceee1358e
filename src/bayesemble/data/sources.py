"""Data by one text, as the command line takes it: an embedded set, a table, a file of arrays or a folder of images.

    digits                     an embedded data set
    houses.csv:price           a CSV (.gz too) or Parquet file, and the column that is predicted
    houses.npz                 x and y; or x_train, y_train, x_test, y_test; or images and labels
    fashion-mnist/             a folder of idx files: train-images-idx3-ubyte.gz ...
    cifar-10-batches-py/       a folder of CIFAR-10 or CIFAR-100 in the python or binary form
    svhn/                      a folder with train_32x32.mat and test_32x32.mat; or one MAT file
    birds/                     a folder with a subfolder of images for each class
    s3://bucket/houses.npz     a file at an address: see `remote/addresses.py`

Of an NPZ file, whole numbers and texts in y are classes, real numbers are numbers to predict. Sets without a test part
lose one fifth of their rows to it, drawn by the seed. Inputs are scaled by the training part: each column of a table by
its own mean and deviation, pixels of images all by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bayesemble.core.errors import DataError, SettingError
from bayesemble.data.array_files import files_of, find_reader
from bayesemble.data.array_rows import as_classes, as_rows, as_targets
from bayesemble.data.catalogue import (
    DATASETS,
    TEST_SHARE,
    Array,
    Kind,
    Parts,
    Split,
    data_generator,
    find_dataset,
    load_parts,
    make_split,
    split_rows,
)
from bayesemble.data.find_schema import find_schema
from bayesemble.data.remote.addresses import exists, is_address, local_copy
from bayesemble.data.schema import Encoded, Schema
from bayesemble.data.table_files import Chunk, listed, read_rows

_ROWS_OVER_ALL_EPOCHS = 40_000  # they bring a small network close to its best


@dataclass(frozen=True, eq=False)
class _Whole:
    """All rows of a set, scaled by nothing yet."""

    parts: Parts
    kind: Kind
    one_scale: bool = False
    image_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    encode: Callable[[Chunk], Array] | None = None
    """Turns rows of another table into the columns of this one."""


def load_data(text: str, seed: int = 0, rows: int | None = None, ood: str | None = None) -> Split:
    """Load data by its text; the same text and seed always give the same rows.

    Args:
        text: An embedded set, or a file or folder as above.
        seed: Of the split, and of the choice of rows.
        rows: How many rows to train on, drawn by the seed; None takes all.
        ood: The text of another set with as many columns, whose inputs are the foreign ones.
    """
    whole = _read(text, seed)
    parts = whole.parts if rows is None else _fewer(whole.parts, rows, seed, text)
    if ood is not None:
        parts = replace(parts, x_ood=_ood(ood, seed, whole, text))
    return make_split(parts, whole.kind, whole.one_scale, whole.image_shape, whole.num_classes)


def resolve_data(text: str) -> str:
    """The text with the whole path, so that it can be read from elsewhere too; names of embedded sets stay."""
    if text in DATASETS:
        return text
    if is_address(text):
        _place(text)
        return text
    path, column = _place(text)
    return str(path.resolve()) + (f":{column}" if column else "")


def data_stamp(text: str) -> int:
    """When the file or folder of a set was changed last, in nanoseconds."""
    if text in DATASETS:
        return 0
    path, _ = _place(text)
    inside = (*path.iterdir(), *files_of(path)) if path.is_dir() else ()
    return max(one.stat().st_mtime_ns for one in (path, *inside))


def data_fingerprint(text: str) -> str | None:
    """What tells the files of a set from others: a hash of their bytes and names; an embedded set has none.

    It is that of the files, not of arrays made of them, whose last digits depend on the machine.
    """
    if text in DATASETS:
        return None
    path, _ = _place(text)
    digest = hashlib.sha256()
    for one in files_of(path):
        try:
            with one.open("rb") as file:
                digest.update(f"{one.relative_to(path)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        except OSError as error:
            raise DataError(f"{one} cannot be read: {error}") from error
    return digest.hexdigest()[:16]


def data_name(text: str) -> str:
    """What people call the set: its name, or that of its file or folder."""
    return text if text in DATASETS else _place(text)[0].resolve().name


def usual_epochs(text: str, num_train: int) -> int:
    """Passes over the rows that bring a small network close to its best."""
    if text in DATASETS:
        return find_dataset(text).epochs
    return max(10, min(100, round(_ROWS_OVER_ALL_EPOCHS / num_train)))


def _place(text: str) -> tuple[Path, str | None]:
    """The file or folder, and the column after the last colon; a path may have colons itself."""
    if is_address(text):
        return _place_of_address(text)
    if Path(text).exists():
        return Path(text), None
    path, colon, column = text.rpartition(":")
    if colon and Path(path).exists():
        return Path(path), column
    raise DataError(
        f"unknown data set {text!r}; choose one of {', '.join(DATASETS)}, or a file or folder that is there: "
        "table.csv:target, arrays.npz, or a folder of images"
    )


def _place_of_address(text: str) -> tuple[Path, str | None]:
    if exists(text):
        return local_copy(text), None
    address, _, column = text.rpartition(":")
    if is_address(address) and exists(address):
        return local_copy(address), column
    raise DataError(f"there is no file at {text!r}; an address names one file: s3://bucket/table.csv:target")


def _read(text: str, seed: int) -> _Whole:
    if text in DATASETS:
        dataset, parts = find_dataset(text), load_parts(text, seed)
        classes = len(np.unique(parts.y_train)) if dataset.kind == "classification" else None
        return _Whole(parts, dataset.kind, dataset.one_scale, dataset.image_shape, classes)
    path, column = _place(text)
    reader = find_reader(path)
    if reader is None:
        return _read_table(path, column, seed)
    if column is not None:
        raise DataError(f"{path} is no table, so it has no columns to name; leave out {':' + column!r}")
    return _of_arrays(reader.arrays(path), str(path), seed)


# --- tables ---


def _read_table(path: Path, column: str | None, seed: int) -> _Whole:
    if not column:
        names = list(next(iter(read_rows(path, 1))).columns)
        raise DataError(
            f"which column of {path} is to be predicted? Write {path}:COLUMN with one of {listed(names, most=30)}"
        )
    schema = find_schema(read_rows(path), column)
    encoded = [schema.encode(chunk) for chunk in read_rows(path)]
    inputs = np.concatenate([_matrix(part, schema) for part in encoded])
    targets = np.concatenate([part.targets for part in encoded if part.targets is not None])
    classes = len(schema.target.categories)
    parts = _split(inputs, targets if classes else schema.decode_targets(targets), seed, bool(classes))

    def encode(chunk: Chunk) -> Array:
        return _matrix(schema.encode(chunk, with_targets=False), schema)

    return _Whole(parts, "classification" if classes else "regression", num_classes=classes or None, encode=encode)


def _matrix(encoded: Encoded, schema: Schema) -> Array:
    """Numbers, and a column for each category that is 1 in its rows; an unknown category is 0 in all of them."""
    blocks = [encoded.numbers]
    columns = [column for column in schema.columns if column.kind == "category"]
    for codes, column in zip(encoded.categories.T, columns, strict=True):
        numbers = np.arange(1, len(column.categories) + 1)  # 0 is for unknown ones
        blocks.append((codes[:, None] == numbers).astype(np.float32))
    return np.concatenate(blocks, axis=1)


# --- arrays ---


def _of_arrays(arrays: dict[str, Array], source: str, seed: int) -> _Whole:
    """Inputs `(row, ...)` and targets `(row,)`, with a test part or not."""
    suffixes = ("_train", "_test") if "x_train" in arrays else ("",)
    inputs = [as_rows(arrays["x" + suffix], f"{source}, x{suffix}") for suffix in suffixes]
    targets = [as_targets(arrays["y" + suffix], f"{source}, y{suffix}") for suffix in suffixes]
    for suffix, x, y in zip(suffixes, inputs, targets, strict=True):
        if len(x.rows) != len(y):
            raise DataError(f"{source}: x{suffix} has {len(x.rows)} rows, y{suffix} has {len(y)}; they must agree")
    if inputs[0].rows.shape[1] != inputs[-1].rows.shape[1]:
        shapes = " and ".join(str(arrays["x" + suffix].shape) for suffix in suffixes)
        raise DataError(f"{source}: training and test rows must be of one shape, got {shapes}")
    kind, classes, targets = as_classes(targets, source)
    rows = [x.rows for x in inputs]
    if len(suffixes) == 2:
        parts = Parts(rows[0], targets[0], rows[1], targets[1])
    else:
        parts = _split(rows[0], targets[0], seed, kind == "classification")
    return _Whole(parts, kind, inputs[0].one_scale, inputs[0].image_shape, classes)


# --- parts ---


def _split(inputs: Array, targets: Array, seed: int, classes: bool) -> Parts:
    """One fifth of the rows for testing, with all classes in proportion where there are enough rows of each."""
    if len(inputs) < 5:
        raise DataError(f"at least 5 rows are needed for a training and a test part, got {len(inputs)}")
    counts = np.unique(targets, return_counts=True)[1] if classes else np.zeros(1)
    stratify = classes and counts.min() >= 2 and len(counts) <= TEST_SHARE * len(inputs)
    return split_rows(inputs, targets, data_generator(seed, "split"), stratify)


def _fewer(parts: Parts, rows: int, seed: int, text: str) -> Parts:
    count = len(parts.x_train)
    if not 2 <= rows <= count:
        raise SettingError(f"{text} has {count} training rows, so rows can be 2 to {count}, got {rows}")
    kept = data_generator(seed, "rows").permutation(count)[:rows]
    return replace(parts, x_train=parts.x_train[kept], y_train=parts.y_train[kept])


def _ood(text: str, seed: int, own: _Whole, own_text: str) -> Array:
    """The inputs of another set, in its test part if it has one; rows of a table need no target."""
    path = None if text in DATASETS else _place(text)[0]
    if path is None:
        rows = load_parts(text, seed).x_test
    elif reader := find_reader(path):
        rows = as_rows(reader.inputs(path), str(path)).rows
    elif own.encode is not None:
        rows = np.concatenate([own.encode(chunk) for chunk in read_rows(path)])
    else:
        raise DataError(f"foreign rows of the table {path} need data that is a table too; {own_text} is not")
    if rows.shape[1] != own.parts.x_train.shape[1]:
        raise DataError(
            f"foreign rows must have the columns of the data: {text} has {rows.shape[1]}, "
            f"{own_text} has {own.parts.x_train.shape[1]}"
        )
    return rows
