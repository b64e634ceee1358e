"""Networks that members begin with: from a factory, or from one that is given; one architecture or several."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from bayesemble.core.errors import ModelError
from bayesemble.task.adapters.around_shards import AroundShards, obstacle
from bayesemble.task.adapters.starts import is_adapted
from bayesemble.task.adapters.still import is_still
from bayesemble.task.starts.weights import Patterns, reinitialised, renewed

NetworkSource = nn.Module | Callable[[], nn.Module]
"""A factory of networks, or a network."""

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
    sources = tuple(AroundShards(one) if _is_sharded(one) and obstacle(one) is None else one for one in sources)
    return sources[0] if len(sources) == 1 else sources


def _is_sharded(source: NetworkSource) -> bool:
    return isinstance(source, nn.Module) and any(_wrapper(part) == "FSDPModule" for part in source.modules())


def new_module(
    source: ModelSource, start: str | None = None, member: int = 0, fresh: Patterns = (), share_frozen: bool = False
) -> nn.Module:
    """Make a network that a member begins with; random numbers come from where torch takes them.

    Of several architectures, `member` says whose network it is to be: see `Alternatives`. Leaves of a given network
    that `fresh` names are drawn anew. Frozen parameters of a network that is given may be shared with it instead of
    being copied, and those of an adapted one always are.
    """
    checked = checked_source(source)
    if isinstance(checked, tuple):
        return Alternatives(checked, start, member)
    return _new_network(checked, start, fresh, share_frozen)


def _new_network(
    source: NetworkSource, start: str | None, fresh: Patterns = (), share_frozen: bool = False
) -> nn.Module:
    if isinstance(source, nn.Module):
        _refuse_scripted(source)
        _refuse_lazy(source)
        _refuse_sharded(source)
        share = share_frozen or is_adapted(source)
        return renewed(source, fresh, share) if start == "given" else reinitialised(source, share_frozen=share)
    module = source()
    if not isinstance(module, nn.Module):
        raise ModelError(f"the model factory must return an nn.Module, it returned {type(module).__name__}")
    _refuse_lazy(module)
    _refuse_scripted(module)
    _refuse_sharded(module)
    return module


def check_another(made: nn.Module, before: nn.Module) -> None:
    """Refuse a factory that hands out one and the same network again and again, by what `new_module` made of it."""
    networks, others = (one if isinstance(one, Alternatives) else [one] for one in (made, before))
    if any(network is other for network, other in zip(networks, others, strict=True)):
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
    # Out of training, torch has one operation for a whole layer of a transformer, which knows nothing of dropout.
    whole = [layer for layer in module.modules() if isinstance(layer, nn.TransformerEncoderLayer)]
    layers = [*dropout_layers(module), *whole]
    try:
        for layer in layers:
            layer.training = True  # of this layer alone, not of those inside
        yield
    finally:
        for layer in layers:
            layer.training = False


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


_WRAPPERS = {"FSDPModule", "FullyShardedDataParallel", "DistributedDataParallel"}  # importing them takes a while


def _wrapper(part: nn.Module) -> str | None:
    """What a part is wrapped by, if it is."""
    return next((kind.__name__ for kind in type(part).__mro__ if kind.__name__ in _WRAPPERS), None)


def _refuse_sharded(network: nn.Module) -> None:
    for name, part in network.named_modules():
        if found := _wrapper(part):
            why = obstacle(network) if found == "FSDPModule" else "use fully_shard for adapters in it"
            why = why or "pass the network itself, not a factory of it"
            raise ModelError(
                f"{name or type(network).__name__} is wrapped by {found}, so that its weights belong to several "
                f"processes, but members run by putting their own weights into the network; {why}. Or freeze the "
                "wrapped part, run it over the rows before, and train members on what it gives: see docs/scale.md"
            )


def _refuse_scripted(module: nn.Module) -> None:
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ModelError("the network is scripted or traced, and runs only with its own weights; pass the eager module")


def _refuse_lazy(module: nn.Module) -> None:
    for name, leaf in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(leaf, UninitializedParameter | UninitializedBuffer):
            raise ModelError(f"{name!r} is lazy and has no shape yet; run one batch through the network before")
