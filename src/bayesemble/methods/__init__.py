"""How members are placed: one file each, families in folders with their own tools.

This file is the registry: one line for each method. The command line, `compare` and the contract tests read it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.methods.along_training.hmc import HMC as HMC
from bayesemble.methods.along_training.sgmcmc import CyclicalSGMCMC as CyclicalSGMCMC
from bayesemble.methods.along_training.snapshot import Snapshot as Snapshot
from bayesemble.methods.along_training.subspace import Subspace as Subspace
from bayesemble.methods.along_training.swag import SWAG as SWAG
from bayesemble.methods.base import Method as Method
from bayesemble.methods.deep_ensemble import DeepEnsemble as DeepEnsemble
from bayesemble.methods.implicit.patched import ECMP as ECMP
from bayesemble.methods.implicit.patched import EMP as EMP
from bayesemble.methods.implicit.patched import DropConnect as DropConnect
from bayesemble.methods.implicit.patched import Dropout as Dropout
from bayesemble.methods.implicit.patched import Explicit as Explicit
from bayesemble.methods.implicit.patched import Patched as Patched
from bayesemble.methods.laplace.laplace import Laplace as Laplace
from bayesemble.methods.mc_dropout import MCDropout as MCDropout
from bayesemble.methods.mean_field import MeanField as MeanField
from bayesemble.methods.repulsion.repulsive import Repulsive as Repulsive
from bayesemble.methods.repulsion.stein import Stein as Stein


@dataclass(frozen=True)
class Entry:
    """A method under a name."""

    cls: type[Method]
    idea: str
    """One line, for the README and the command line."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the name fixes."""
    page: str | None = None
    """The page of the documentation that says more."""


METHODS: dict[str, Entry] = {
    "map": Entry(DeepEnsemble, "one network, the baseline of everything", fixed={"num_members": 1}),
    "deep_ensemble": Entry(
        DeepEnsemble,
        "independent starts; options `bootstrap`, `anchored` (randomise-then-optimise), `adversarial` (FGSM)",
    ),
    "repulsive": Entry(
        Repulsive,
        "members pushed apart in weight or function space, calibrated so that it matters",
        page="repulsion.md",
    ),
    "svgd": Entry(Stein, "Stein variational gradient descent, in weight or function space"),
    "emp": Entry(
        EMP,
        "Ensemble Model Patching: five components on norm layers and output, one drawn per layer",
        page="implicit.md",
    ),
    "ecmp": Entry(ECMP, "the same with one drawn per number"),
    "dropout": Entry(Dropout, "units left out at random, as a distribution over weights; any network"),
    "dropconnect": Entry(DropConnect, "single weights left out at random"),
    "mc_dropout": Entry(MCDropout, "the network's own `nn.Dropout` layers, on in prediction"),
    "explicit": Entry(Explicit, "whole networks as components, one drawn per batch"),
    "swag": Entry(
        SWAG, "a Gaussian around the last part of training; several members are MultiSWAG", page="posteriors.md"
    ),
    "csgmcmc": Entry(CyclicalSGMCMC, "cyclical SGLD and SGHMC at the true temperature, chains side by side"),
    "snapshot": Entry(Snapshot, "networks kept along cyclical learning rates: snapshot and fast geometric ensembles"),
    "subspace": Entry(
        Subspace, "slice sampling, or a fitted Gaussian, in a few directions around the average of the last weights"
    ),
    "laplace": Entry(
        Laplace,
        "a Gaussian at the trained network from the curvature of its loss, last layer or all; many are a mixture",
    ),
    "mean_field": Entry(
        MeanField, "mean-field variational inference: an independent Gaussian for each weight, the single-mode rival"
    ),
    "hmc": Entry(
        HMC, "Hamiltonian Monte Carlo on the whole data: the truth for small networks that others are measured by"
    ),
}


def register(cls: type[Method], name: str | None = None, **fixed: Any) -> type[Method]:
    """Give a method of your own a name, so that `compare`, the estimators and the command line know it.

        @be.register
        @dataclass(frozen=True, kw_only=True)
        class MyMethod(be.DeepEnsemble):
            '''One line that says the idea.'''

    Its name is `my_method` unless another is given; `fixed` are settings that go with the name. Training, saving and
    loading need no name: there the class only has to be defined.
    """
    require(isinstance(cls, type) and issubclass(cls, Method), f"a class derived from be.Method is needed, got {cls!r}")
    decorated = "__dataclass_fields__" in vars(cls)
    require(decorated, f"{cls.__name__} must be a dataclass: put @dataclass(frozen=True, kw_only=True) on it")
    require(bool((cls.__doc__ or "").strip()), f"{cls.__name__} needs a first line of documentation that says its idea")
    name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    known = METHODS.get(name)
    taken = known is not None and known.cls.__qualname__ != cls.__qualname__
    require(not taken, f"the name {name!r} is taken by {known and known.cls.__name__}; give another: name=...")
    METHODS[name] = Entry(cls, (cls.__doc__ or "").strip().splitlines()[0], fixed)
    return cls


def method_class(name: str) -> type[Method]:
    """The settings class behind a name."""
    return _entry(name).cls


def make_method(name: str, **settings: Any) -> Method:
    """Make a method by name; settings that the name fixes or does not have are refused."""
    entry = _entry(name)
    known = [one.name for one in fields(entry.cls) if one.init]
    for key, value in settings.items():
        if key not in known:
            raise SettingError(f"method {name!r} has no setting {key!r}; it has {', '.join(known)}")
        if key in entry.fixed and value != entry.fixed[key]:
            raise SettingError(
                f"method {name!r} always has {key}={entry.fixed[key]!r}, {key}={value!r} cannot be honoured"
            )
    try:
        return entry.cls(**(dict(entry.fixed) | settings))
    except SettingError as error:
        raise SettingError(f"method {name!r}: {error}") from error


def _entry(name: str) -> Entry:
    if name not in METHODS:
        raise SettingError(
            f"unknown method {name!r}; choose one of {', '.join(METHODS)}, or be.register one of your own, "
            "on the command line by --plugin FILE"
        )
    return METHODS[name]
