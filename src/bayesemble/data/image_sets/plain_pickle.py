"""Pickles that hold data and nothing else: numbers, texts, bytes, lists, dicts and plain arrays.

A pickle is a program that may call any function of Python. Here the few names that arrays are written with stand for
stand-ins of our own, and every other name is refused before anything is called. So nothing of a file is ever run.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bayesemble.core.errors import DataError

_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f4", "f8", "b1"}


class _Type:
    """Stands for `numpy.dtype`: a number type by its short name, of which the byte order comes later."""

    def __init__(self, name: Any, *_: Any) -> None:
        name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
        if name not in _NUMBERS:
            raise pickle.UnpicklingError(f"it holds an array of type {name!r}; plain numbers alone are read")
        self.type = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order in ("<", ">"):
            self.type = self.type.newbyteorder(order)


class _Array:
    """Stands for `numpy.ndarray`, filled from the bytes of its numbers."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of objects; plain numbers alone are read")
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise pickle.UnpicklingError(f"it holds an array of shape {shape!r}")
        if math.prod(shape) * kind.type.itemsize != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} and {len(content)} bytes do not fit together")
        numbers = np.frombuffer(content, kind.type)
        self.array = numbers.reshape(shape, order="F" if by_columns else "C")


class _Function:
    """A stand-in that is called; a pickle may not set anything of it."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("it changes a function")


class _EmptyArray(_Function):
    """Stands for `_reconstruct`, with which arrays begin."""

    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _Encode(_Function):
    """Stands for `_codecs.encode`, which newer versions of Python write bytes with."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("it encodes a text in an unusual way")
        return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _EmptyArray(),
    ("numpy._core.multiarray", "_reconstruct"): _EmptyArray(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Encode(),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is neither a number, a text nor an array")
        return _KNOWN[module, name]

    def persistent_load(self, number: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of the file")


def read_plain_pickle(path: Path) -> Any:
    """What a pickle holds, with texts of Python 2 as bytes; a pickle that holds anything but data is refused."""
    try:
        return _plain(_Reader(io.BytesIO(path.read_bytes()), encoding="bytes").load())
    except Exception as error:  # a damaged pickle makes the reader fail in any way
        raise DataError(f"{path} cannot be read as a pickle of plain data: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is neither a number, a text nor an array")
