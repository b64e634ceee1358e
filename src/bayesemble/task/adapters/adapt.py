"""A pretrained network with little of it to train: adapters, heads, norm layers or biases."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.settings import require, whole
from bayesemble.task.adapters.lora import FACTORS, LoraLinear, add_lora
from bayesemble.task.network_ends import parameters_by_layer
from bayesemble.task.select import NORM_LAYERS

KINDS = ("lora", "head", "norm", "bias")
Targets = str | type[nn.Linear] | None
"""Which layers have an adapter: a regular expression of their names or of the ends of these, or `nn.Linear` for all."""

ATTRIBUTE = "bayesemble_adaptation"


@dataclass(frozen=True)
class Adaptation:
    """What was made of a network by `adapt`."""

    kind: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Names of the layers that have a low-rank adapter."""
    heads: tuple[str, ...]
    """Names of the modules that are trained as a whole."""
    given: frozenset[str]
    """Names of trained leaves that members begin with as they were given."""
    backbone: str | None
    """Where the frozen weights come from: a path or an id, if it is known."""


def adapt(
    model: nn.Module,
    kind: str,
    *,
    targets: Targets = None,
    rank: int = 8,
    alpha: float | None = None,
    head: str | None = None,
    fresh_head: bool = True,
    backbone: str | None = None,
) -> nn.Module:
    """A pretrained network of which only a small part is trained; the network that is given stays as it is.

    The result shares the weights of the given network, without a copy, and all but the named parts is frozen, so that
    any number of members takes the memory of one backbone. It is a model for `Task` like any other, for any method:

        task = be.Task(be.adapt(model, "lora", targets="q_proj|v_proj", head="classifier"), be.Categorical())

    Members begin with a head and a first factor A of their own, drawn from their seeds; the second factor B is zero, so
    that each begins with the function of the given network under its head. Norm layers and biases begin as given.

    As the weights are shared, whoever goes on training the given network changes the ensemble too: give
    `copy.deepcopy(model)` then.

    Args:
        model: The pretrained network.
        kind: "lora" trains low-rank adapters W + alpha / rank * B A of dense layers, "head" the head alone, "norm" the
            norm layers, "bias" all biases.
        targets: For "lora", which nn.Linear layers have an adapter: a regular expression that the name of a layer, or
            its end behind a dot, matches as a whole, such as "q_proj|v_proj", or `nn.Linear` for all but the head.
        rank: Rank of the adapters.
        alpha: What the product B A is multiplied by, times rank; by default `rank`, so that it is multiplied by 1.
        head: Modules that are trained as a whole beside the rest, as a regular expression like `targets`. With "head"
            the default is the last layer that is no norm layer, in the order of registration; else it is none.
        fresh_head: Whether each member begins with a head of its own, or all with the one that is given.
        backbone: Where the weights come from, a path or an id, which saved runs name. By default it is what a
            transformers model says of itself.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"adapt needs a network, an nn.Module, got {type(model).__name__}")
    require(kind in KINDS, f"a network is adapted by one of {', '.join(KINDS)}, not {kind!r}")
    rank = whole(rank, f"rank must be a whole number from 1, got {rank!r}")
    scale = float(rank) if alpha is None else float(alpha)
    require(scale > 0, f"alpha must be above 0, got {alpha!r}")
    if kind != "lora" and (targets is not None or alpha is not None or rank != 8):
        raise SettingError(f"targets, rank and alpha are settings of lora; kind={kind!r} has no use for them")
    require(kind != "lora" or targets is not None, 'lora needs targets=, such as "q_proj|v_proj" or nn.Linear')
    if adaptation_of(model) is not None:
        raise ModelError("the network is adapted already; adapt the one that it was made from")
    module = _frozen_view(model)
    heads = _heads(model, kind, head)
    chosen = _targets(module, targets, heads) if kind == "lora" else []
    with seeds.scoped(0):
        for name in chosen:
            add_lora(name, module.get_submodule(name), rank, scale)
    whole_parts = {name for name, _ in module.named_parameters() if _is_inside(name, heads)}
    trained = whole_parts | _of_kind(module, kind)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    factors = {name for name in trained if name.rpartition(".")[2] in FACTORS}
    given = trained - factors - (whole_parts if fresh_head else set())
    record = Adaptation(kind, rank, scale, tuple(chosen), heads, frozenset(given), backbone or _named(model))
    setattr(module, ATTRIBUTE, record)
    return module


def adaptation_of(module: nn.Module) -> Adaptation | None:
    """What `adapt` made of a network, if it did."""
    return getattr(module, ATTRIBUTE, None)


def _frozen_view(model: nn.Module) -> nn.Module:
    """The same modules and buffers anew, with frozen parameters that lie in the memory of the given ones."""
    parameters = {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()}
    try:
        return copy.deepcopy(model, parameters)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"{type(model).__name__} cannot be copied ({error}), so it cannot be adapted") from error


def _heads(model: nn.Module, kind: str, head: str | None) -> tuple[str, ...]:
    """Names of the modules that are trained as a whole, none of them inside another."""
    if head is not None:
        found = [name for name, _ in model.named_modules() if _matches(head, name)]
        if not found:
            raise SettingError(f"head={head!r} is no module of {type(model).__name__}; it has {_some(model)}")
        return tuple(name for name in found if not _is_inside(name, [one for one in found if one != name]))
    if kind != "head":
        return ()
    layers = [name for name in parameters_by_layer(model) if name and not _is_norm(model.get_submodule(name))]
    if not layers:
        raise SettingError(f"{type(model).__name__} has no layer that could be its head; name a module by head=")
    return (layers[-1],)


def _targets(module: nn.Module, targets: Targets, heads: Iterable[str]) -> list[str]:
    """Names of the dense layers that are meant, outside of heads."""
    dense = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    if isinstance(targets, str):
        found = [name for name in dense if _matches(targets, name)]
    elif isinstance(targets, type) and issubclass(targets, nn.Module):
        found = [name for name, layer in dense.items() if isinstance(layer, targets)]
    else:
        raise SettingError(f"targets is a regular expression of names or nn.Linear, got {targets!r}")
    found = [name for name in found if not _is_inside(name, heads)]
    if not found:
        raise SettingError(
            f"targets={targets!r} means no nn.Linear of {type(module).__name__} outside of its head; it has "
            f"{_listed(list(dense))}"
        )
    return found


def _of_kind(module: nn.Module, kind: str) -> set[str]:
    """Names of the leaves that this kind trains, outside of heads."""
    if kind == "lora":
        adapters = [name for name, layer in module.named_modules() if isinstance(layer, LoraLinear)]
        return {f"{name}.{factor}".lstrip(".") for name in adapters for factor in FACTORS}
    if kind == "head":
        return set()
    if kind == "norm":
        known = {id(parameter): name for name, parameter in module.named_parameters()}
        norms = [layer for layer in module.modules() if _is_norm(layer)]
        found = {known[id(parameter)] for layer in norms for parameter in layer.parameters()}
    else:
        found = {name for name, _ in module.named_parameters() if name.rpartition(".")[2] == "bias"}
    if not found:
        raise ModelError(f"{type(module).__name__} has no {kind} to train")
    return found


def _is_norm(layer: nn.Module) -> bool:
    """Whether a layer is one of torch's norm layers, or is called one, as those of language models are."""
    called = type(layer).__name__.endswith("Norm") and not list(layer.children())
    return isinstance(layer, NORM_LAYERS) or called


def _matches(pattern: str, name: str) -> bool:
    """Whether a name, or its end behind a dot, is what a regular expression describes."""
    try:
        return bool(name) and re.fullmatch(rf"(?:.*\.)?(?:{pattern})", name) is not None
    except re.error as error:
        raise SettingError(f"{pattern!r} is no regular expression: {error}") from error


def _is_inside(name: str, modules: Iterable[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") or not one for one in modules)


def _named(model: nn.Module) -> str | None:
    """What a transformers model, or the first one inside, says of where it comes from."""
    names = (getattr(part, "name_or_path", None) for part in model.modules())
    return next((name for name in names if isinstance(name, str) and name), None)


def _some(model: nn.Module) -> str:
    return _listed([name for name, _ in model.named_modules() if name])


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "none"
