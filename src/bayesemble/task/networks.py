"""Networks that members begin with: from a factory, or from one that is given; one architecture or several."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.types import Leaves
from bayesemble.task.adapters.starts import fresh_leaves, is_adapted, reset_of, resets_adapters_alone
from bayesemble.task.adapters.still import frozen_parts, is_still

NetworkSource = nn.Module | Callable[[], nn.Module]
"""A factory of networks, or a network."""

STARTS = ("fresh", "given")
"""What becomes of a network: it is re-initialised for each member, or each member begins with its weights."""

ModelSource = NetworkSource | list[NetworkSource] | tuple[NetworkSource, ...]
"""One source, or one for each architecture."""


class Alternatives(nn.ModuleList):
    """Networks of different architectures, of which a member runs one: member i runs number i modulo their count.

    Every member holds the leaves of all architectures, so that members can be stacked. The price is memory: that of
    all networks, for each member. Trainable parameters that a member does not use are zero; neither data nor a prior
    centred on zero moves them from there. Leaves are named by number: `1.head.weight`.
    """

    architecture: Tensor
    """Which of the networks this member runs."""

    def __init__(self, sources: tuple[NetworkSource, ...], start: str | None = None, member: int = 0) -> None:
        index = member % len(sources)
        used = _new_network(sources[index], start)  # made first, it is what the member's seed makes of it alone
        super().__init__(used if i == index else _new_network(source, start) for i, source in enumerate(sources))
        self.register_buffer("architecture", torch.tensor(index))
        kept = {id(parameter) for parameter in used.parameters()}
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.requires_grad and id(parameter) not in kept:
                    parameter.zero_()

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Run this member's network alone."""
        return self[int(self.architecture)](*inputs, **named_inputs)


def checked_source(model: Any) -> NetworkSource | tuple[NetworkSource, ...]:
    """What networks are made from: one source, or a tuple of several; or what is wrong with it."""
    sources = tuple(model) if isinstance(model, list | tuple) else (model,)
    if not sources:
        raise ModelError("the list of models is empty; at least one network or factory is needed")
    for source in sources:
        if not (isinstance(source, nn.Module) or callable(source)):
            inside = " in the list" if isinstance(model, list | tuple) else ""
            raise ModelError(
                "model must be an nn.Module, a factory of one, or a list of these for several architectures, "
                f"got {type(source).__name__}{inside}"
            )
    return sources[0] if len(sources) == 1 else sources


def new_module(source: ModelSource, start: str | None = None, member: int = 0, share_frozen: bool = False) -> nn.Module:
    """Make a network that a member begins with; random numbers come from where torch takes them.

    Of several architectures, `member` says whose network it is to be: see `Alternatives`. Frozen parameters of a
    network that is given may be shared with it instead of being copied, and those of an adapted one always are.
    """
    checked = checked_source(source)
    if isinstance(checked, tuple):
        return Alternatives(checked, start, member)
    return _new_network(checked, start, share_frozen)


def _new_network(source: NetworkSource, start: str | None, share_frozen: bool = False) -> nn.Module:
    if isinstance(source, nn.Module):
        _refuse_scripted(source)
        _refuse_lazy(source)
        share = share_frozen or is_adapted(source)
        if start == "given":
            return _copied(source, [one for one in source.parameters() if share and not one.requires_grad])
        return reinitialised(source, share)
    module = source()
    if not isinstance(module, nn.Module):
        raise ModelError(f"the model factory must return an nn.Module, it returned {type(module).__name__}")
    _refuse_lazy(module)
    _refuse_scripted(module)
    return module


def check_factory(source: ModelSource, made: nn.Module) -> None:
    """Refuse a factory that hands out one and the same network again and again: `made` is what `new_module` made."""
    checked = checked_source(source)
    sources = checked if isinstance(checked, tuple) else (checked,)
    for one, network in zip(sources, made if isinstance(made, Alternatives) else (made,), strict=True):
        if not isinstance(one, nn.Module) and one() is network:
            raise ModelError(
                "the model factory returns the same module each time, so all members would be one network; "
                "build a new module in it, or pass the module itself"
            )


def check_trainable(module: nn.Module) -> None:
    """Refuse a network with nothing to train, and architectures of different number types."""
    for network in module if isinstance(module, Alternatives) else [module]:
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise ModelError(f"{type(network).__name__} has no trainable parameters")
    types = {str(parameter.dtype) for parameter in module.parameters() if parameter.is_floating_point()}
    if isinstance(module, Alternatives) and len(types) > 1:
        raise ModelError(f"all architectures must have the same number type, got {' and '.join(sorted(types))}")


def dropout_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a network that drop something; those of parts that stand still do not."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    return [layer for layer in layers if layer.p > 0 and not is_still(layer)]


@contextmanager
def dropout_on(module: nn.Module) -> Iterator[None]:
    """Let dropout layers act in a network that is not in training."""
    layers = dropout_layers(module)
    try:
        for layer in layers:
            layer.train(True)
        yield
    finally:
        for layer in layers:
            layer.train(False)


def pick_output(result: Any, output: str | Callable[[Any], Tensor] | None) -> Tensor:
    """Pick the tensor out of what a network returns: by a name, by a function, or as it is."""
    if callable(output):
        result = output(result)
    elif isinstance(output, str):
        result = _named_output(result, output)
    if not isinstance(result, Tensor):
        raise ModelError(
            f"the network returned {type(result).__name__}, not a tensor; "
            'say where the tensor is, for example Task(..., output="logits")'
        )
    return result


def _named_output(result: Any, name: str) -> Any:
    try:
        return result[name] if isinstance(result, Mapping) else getattr(result, name)
    except (KeyError, AttributeError):
        there = result if isinstance(result, Mapping) else getattr(result, "_fields", ())
        names = f" with {', '.join(map(repr, there))}" if there else ""
        raise ModelError(
            f"the network returned a {type(result).__name__}{names}, which has no output={name!r}; "
            "name what is there, or pass a function such as output=lambda result: result[0]"
        ) from None


def called(module: nn.Module, index: int) -> str:
    """What a network is called in messages: by its number, if there are several architectures."""
    return (
        f"architecture {index} ({type(module[index]).__name__})" if isinstance(module, Alternatives) else "the network"
    )


def reinitialised(original: nn.Module, share_frozen: bool = False) -> nn.Module:
    """Copy a network and reset every layer, children before parents; name what nothing resets.

    Trainable parameters are set to NaN first, so whatever no `reset_parameters` reaches shows. Frozen parameters
    keep their values, and a layer in which everything is frozen keeps its statistics too. A leaf of zeros was meant to
    begin with zeros, as the second factor of a low-rank adapter is, and stays so. Of an adapted network, all but its
    adapters and fresh heads stays as it is.

    Frozen parameters that nothing resets may be those of the original itself instead of copies.
    """
    fresh, adapted = fresh_leaves(original), is_adapted(original)
    safe = _out_of_reach(original, fresh)
    module = _copied(original, [one for name, one in original.named_parameters() if share_frozen and name in safe])
    frozen = {id(layer) for name in frozen_parts(module) for layer in module.get_submodule(name).modules()}
    drawn = {name: parameter for name, parameter in module.named_parameters() if name in fresh}
    wanted = {id(parameter) for parameter in drawn.values()}
    kept = [(p, p.detach().clone()) for name, p in module.named_parameters() if name not in safe | fresh]
    with torch.no_grad():
        for parameter in drawn.values():
            parameter.fill_(torch.nan)
        for layer in reversed(list(module.modules())):
            reset, own = reset_of(layer, module), list(layer.parameters())
            without_parameters = not (own or adapted or id(layer) in frozen)
            if reset is not None and (without_parameters or any(id(p) in wanted for p in own)):
                reset()
        for parameter, value in kept:
            parameter.copy_(value)
    missed = [name for name, parameter in drawn.items() if parameter.isnan().any()]
    if missed:
        raise ModelError(
            f"nothing re-initialises the parameter {missed[0]!r} of {type(original).__name__}, so all members "
            "would share it; pass a factory such as `lambda: MyNet()`, or give its module a reset_parameters method"
        )
    with torch.no_grad():
        for (name, before), parameter in zip(original.named_parameters(), module.parameters(), strict=True):
            if name in fresh and not before.any():
                parameter.zero_()
    return module


def _out_of_reach(original: nn.Module, fresh: set[str]) -> set[str]:
    """Names of frozen parameters that no layer which is reset can change."""
    drawn = {id(parameter) for name, parameter in original.named_parameters() if name in fresh}
    reached: set[int] = set()
    for layer in original.modules():
        own = [id(parameter) for parameter in layer.parameters()]
        if not resets_adapters_alone(layer) and reset_of(layer, original) is not None and drawn & set(own):
            reached.update(own)
    return {name for name, one in original.named_parameters() if not one.requires_grad and id(one) not in reached}


def _refuse_scripted(module: nn.Module) -> None:
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ModelError("the network is scripted or traced, and runs only with its own weights; pass the eager module")


def _copied(original: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A copy of which some frozen parameters lie in the memory of the original."""
    try:
        return copy.deepcopy(original, {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in shared})
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            f"{type(original).__name__} cannot be copied ({error}); pass a factory such as `lambda: MyNet()`"
        ) from error


def _refuse_lazy(module: nn.Module) -> None:
    for name, leaf in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(leaf, UninitializedParameter | UninitializedBuffer):
            raise ModelError(f"{name!r} is lazy and has no shape yet; run one batch through the network before")


def check_start(start: str | None, jitter: float, given: list[nn.Module]) -> None:
    """Refuse ways to begin that there are not; `given` are the networks that are no factories."""
    if start not in (None, *STARTS):
        raise SettingError(f'start is "fresh", "given" or None, not {start!r}')
    if start == "fresh" and not given:
        raise SettingError('start="fresh" re-initialises a network; a factory makes each start itself')
    if not (jitter >= 0 and math.isfinite(jitter)):
        raise SettingError(f"jitter is a number from 0, got {jitter}")


def shake(params: Leaves, size: float, generator: torch.Generator) -> None:
    """Add noise to each leaf in place, `size` times its root mean square."""
    for leaf in params.values():
        scale = float(leaf.double().square().mean().sqrt())
        leaf.add_(torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf.device), alpha=size * scale)
