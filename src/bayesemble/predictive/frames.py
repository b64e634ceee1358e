"""Predictions as tables of pandas and as data sets of xarray, with a name for every column and axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.lazy import import_extra
from bayesemble.core.settings import require

_ADVICE = "'bayesemble[frames]'"
_PARTS = ("aleatoric", "epistemic")


def to_frame(predictive: Any, level: float, names: Sequence[Any] | None) -> Any:
    """See `Predictive.to_frame`."""
    pandas = import_extra("pandas", "to_frame makes a table of the package pandas", _ADVICE)
    columns: dict[str, Any] = {}
    for name, (_, values) in _by_row(predictive, level, names).items():
        if name == "probs":
            labels = _labels(predictive, names)
            flat = values.reshape(len(values), -1, len(labels))
            for output in range(flat.shape[1]):
                tail = f"_{output}" if flat.shape[1] > 1 else ""
                columns |= {f"p_{label}{tail}": flat[:, output, place] for place, label in enumerate(labels)}
        elif values.ndim == 1:
            columns[name] = values
        else:
            flat = values.reshape(len(values), -1)
            columns |= {f"{name}_{output}": flat[:, output] for output in range(flat.shape[1])}
    return pandas.DataFrame(columns)


def to_xarray(predictive: Any, level: float, names: Sequence[Any] | None) -> Any:
    """See `Predictive.to_xarray`."""
    xarray = import_extra("xarray", "to_xarray makes a data set of the package xarray", _ADVICE)
    arrays = _by_row(predictive, level, names)
    if not predictive.kept:
        own = "member_probs" if predictive.kind == "classes" else "member_mean"
        values = _numpy(getattr(predictive, own))
        arrays[own] = (("member", *arrays["probs" if predictive.kind == "classes" else "mean"][0]), values)
        arrays["weight"] = (("member",), _numpy(predictive.weights))
    coords = {"class": _labels(predictive, names)} if predictive.kind == "classes" else {}
    about = {"prediction": type(predictive).__name__} | ({} if predictive.kind == "classes" else {"level": level})
    return xarray.Dataset(arrays, coords, about)


def _by_row(predictive: Any, level: float, names: Sequence[Any] | None) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Names of axes and values `(row, ...)` of all that is told of a row."""
    answers = _numpy(predictive.answers)
    axes = ("row", *(["output"] if answers.ndim == 2 else [f"output_{axis}" for axis in range(answers.ndim - 1)]))
    if predictive.kind == "classes":
        chosen = answers if names is None else np.asarray(_labels(predictive, names))[answers]
        found = {"answer": (axes, chosen), "probs": ((*axes, "class"), _numpy(predictive.probs))}
        found["total"] = (axes, _numpy(predictive.entropy))
    else:
        require(names is None, "names are those of classes, which a prediction of numbers has not")
        low, high = (_numpy(end) for end in predictive.interval(level))
        found = {"mean": (axes, answers), "std": (axes, _numpy(predictive.std))}
        found |= {"low": (axes, low), "high": (axes, high), "total": (axes, _numpy(predictive.variance))}
    return found | {name: (axes, _numpy(getattr(predictive, name))) for name in _PARTS}


def _labels(predictive: Any, names: Sequence[Any] | None) -> list[Any]:
    num = predictive.probs.shape[-1]
    require(names is None or len(names) == num, f"names are one for each of {num} classes, got {names}")
    return list(range(num)) if names is None else list(names)


def _numpy(values: Tensor) -> NumpyArray:
    return values.detach().cpu().numpy()
