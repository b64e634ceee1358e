"""How members are placed: one file each, families in folders with their own tools.

This file is the registry: one line for each method. The command line, `compare` and the contract tests read it.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.methods.along_training.sgmcmc import CyclicalSGMCMC
from bayesemble.methods.along_training.snapshot import Snapshot
from bayesemble.methods.along_training.subspace import Subspace
from bayesemble.methods.along_training.swag import SWAG
from bayesemble.methods.base import Method
from bayesemble.methods.deep_ensemble import DeepEnsemble
from bayesemble.methods.hmc import HMC
from bayesemble.methods.implicit.patched import ECMP, EMP, DropConnect, Dropout, Explicit, Patched
from bayesemble.methods.laplace.laplace import Laplace
from bayesemble.methods.mc_dropout import MCDropout
from bayesemble.methods.repulsion.repulsive import Repulsive
from bayesemble.methods.repulsion.stein import Stein

__all__ = [
    "ECMP",
    "EMP",
    "HMC",
    "METHODS",
    "SWAG",
    "CyclicalSGMCMC",
    "DeepEnsemble",
    "DropConnect",
    "Dropout",
    "Explicit",
    "Laplace",
    "MCDropout",
    "Method",
    "Patched",
    "Repulsive",
    "Snapshot",
    "Stein",
    "Subspace",
    "make_method",
    "method_class",
]

METHODS: dict[str, Callable[..., Method]] = {
    "map": partial(DeepEnsemble, num_members=1),
    "deep_ensemble": DeepEnsemble,
    "repulsive": Repulsive,
    "svgd": Stein,
    "emp": EMP,
    "ecmp": ECMP,
    "dropout": Dropout,
    "dropconnect": DropConnect,
    "mc_dropout": MCDropout,
    "explicit": Explicit,
    "swag": SWAG,
    "csgmcmc": CyclicalSGMCMC,
    "snapshot": Snapshot,
    "subspace": Subspace,
    "laplace": Laplace,
    "hmc": HMC,
}


def method_class(name: str) -> type[Any]:
    """The settings class behind a name."""
    if name not in METHODS:
        raise SettingError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    maker = METHODS[name]
    return maker.func if isinstance(maker, partial) else maker  # type: ignore[return-value]


def make_method(name: str, **settings: Any) -> Method:
    """Make a method by name; settings that the name fixes or does not have are refused."""
    known = [field.name for field in fields(method_class(name))]
    maker = METHODS[name]
    fixed = maker.keywords if isinstance(maker, partial) else {}
    for key, value in settings.items():
        if key not in known:
            raise SettingError(f"method {name!r} has no setting {key!r}; it has {', '.join(known)}")
        if key in fixed and value != fixed[key]:
            raise SettingError(f"method {name!r} always has {key}={fixed[key]!r}, {key}={value!r} cannot be honoured")
    try:
        return maker(**settings)
    except SettingError as error:
        raise SettingError(f"method {name!r}: {error}") from error
