"""The weights that members begin with: drawn anew, taken from a given network, or a little apart from these."""

import copy
import math
from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.types import Leaves, is_named
from bayesemble.task.adapters.starts import fresh_leaves, is_adapted, reset_of, resets_adapters_alone
from bayesemble.task.adapters.still import frozen_parts

STARTS = ("fresh", "given")
"""What becomes of a network: it is re-initialised for each member, or each member begins with its weights."""

Patterns = tuple[str, ...]
"""Names of leaves, or patterns such as `"head.*"`."""


def check_start(start: str | None, jitter: float, fresh: Patterns, given: list[nn.Module], mixed: bool) -> None:
    """Refuse ways to begin that there are not; `given` are the networks that are no factories."""
    if start not in (None, *STARTS):
        raise SettingError(f'start is "fresh", "given" or None, not {start!r}')
    if start == "fresh" and not given:
        raise SettingError('start="fresh" re-initialises a network; a factory makes each start itself')
    if not (jitter >= 0 and math.isfinite(jitter)):
        raise SettingError(f"jitter is a number from 0, got {jitter}")
    if fresh and not (start == "given" and given and not mixed):
        raise SettingError(
            f"fresh={fresh} names leaves of a given network that each member draws anew; pass one network itself, not "
            'a factory or several, with start="given"'
        )


def as_patterns(fresh: object) -> Patterns:
    """One pattern of names or several, as a tuple."""
    patterns = (fresh,) if isinstance(fresh, str) else fresh
    if not (isinstance(patterns, list | tuple) and all(isinstance(one, str) for one in patterns)):
        raise SettingError(f'fresh is a pattern of names such as "head.*", or several, got {fresh!r}')
    return tuple(patterns)


def renewed(original: nn.Module, fresh: Patterns, share_frozen: bool = False) -> nn.Module:
    """Copy a network with its weights, but for those leaves that the patterns name, which are drawn anew."""
    if not fresh:
        return copied(original, [one for one in original.parameters() if share_frozen and not one.requires_grad])
    trained = [name for name, parameter in original.named_parameters() if parameter.requires_grad]
    for pattern in fresh:
        if not any(is_named(name, (pattern,)) for name in trained):
            few = ", ".join(trained[-3:])
            raise SettingError(f"fresh={pattern!r} names no trained parameter of the network; some of them are {few}")
    statistics = [name for name, _ in original.named_buffers()]
    return reinitialised(original, {one for one in (*trained, *statistics) if is_named(one, fresh)}, share_frozen)


def reinitialised(original: nn.Module, fresh: Collection[str] | None = None, share_frozen: bool = False) -> nn.Module:
    """Copy a network and reset the leaves with these names, children before parents; name what nothing resets.

    Without names it is all that is trained, and the statistics of layers too; of an adapted network, its adapters and
    fresh heads. Parameters are set to NaN first, so whatever no `reset_parameters` reaches shows. Frozen parameters
    keep their values, and a layer in which everything is frozen keeps its statistics too. A leaf of zeros was meant to
    begin with zeros, as the second factor of a low-rank adapter is, and stays so.

    Frozen parameters that nothing resets may be those of the original itself instead of copies.
    """
    names = fresh_leaves(original) if fresh is None else set(fresh)
    safe = _out_of_reach(original, names)
    module = copied(original, [one for name, one in original.named_parameters() if share_frozen and name in safe])
    parameters: Leaves = dict(module.named_parameters())
    drawn = {name: leaf for name, leaf in parameters.items() if name in names}
    kept = {name: leaf for name, leaf in parameters.items() if name not in safe | names}
    kept |= {name: leaf for name, leaf in module.named_buffers() if not (fresh is None or name in names)}
    before = {name: leaf.detach().clone() for name, leaf in kept.items()}
    with torch.no_grad():
        for parameter in drawn.values():
            parameter.fill_(torch.nan)
        _reset_layers(module, {id(leaf) for leaf in drawn.values()}, fresh is None and not is_adapted(original))
        for name, value in before.items():
            kept[name].copy_(value)
        _refuse_untouched(original, drawn)
        for name, leaf in original.named_parameters():
            if name in drawn and not leaf.any():
                drawn[name].zero_()
    return module


def _reset_layers(module: nn.Module, drawn: set[int], bare_too: bool) -> None:
    """Reset the layers that hold one of these parameters; those without any as well, outside of frozen parts."""
    frozen = {id(layer) for name in frozen_parts(module) for layer in module.get_submodule(name).modules()}
    for layer in reversed(list(module.modules())):
        reset, inside = reset_of(layer, module), list(layer.parameters())
        bare = bare_too and not inside and id(layer) not in frozen
        if reset is not None and (bare or any(id(leaf) in drawn for leaf in inside)):
            reset()


def _out_of_reach(original: nn.Module, fresh: set[str]) -> set[str]:
    """Names of frozen parameters that no layer which is reset can change."""
    drawn = {id(parameter) for name, parameter in original.named_parameters() if name in fresh}
    reached: set[int] = set()
    for layer in original.modules():
        own = [id(parameter) for parameter in layer.parameters()]
        if not resets_adapters_alone(layer) and reset_of(layer, original) is not None and drawn & set(own):
            reached.update(own)
    return {name for name, one in original.named_parameters() if not one.requires_grad and id(one) not in reached}


def _refuse_untouched(original: nn.Module, drawn: Leaves) -> None:
    untouched = [name for name, parameter in drawn.items() if parameter.isnan().any()]
    if untouched:
        raise ModelError(
            f"nothing re-initialises the parameter {untouched[0]!r} of {type(original).__name__}, so all members "
            "would share it; pass a factory such as `lambda: MyNet()`, or give its module a reset_parameters method"
        )


def copied(original: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A copy of a network of which some frozen parameters lie in the memory of the original."""
    try:
        return copy.deepcopy(original, {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in shared})
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            f"{type(original).__name__} cannot be copied ({error}); pass a factory such as `lambda: MyNet()`"
        ) from error


def begun(params: Leaves, buffers: Leaves, still: Collection[str]) -> tuple[Leaves, Leaves]:
    """A copy of parameters and buffers, but for those that training does not change."""
    copies = {name: leaf if name in still else leaf.clone() for name, leaf in buffers.items()}
    return {name: leaf.clone() for name, leaf in params.items()}, copies


def shake(params: Leaves, names: Collection[str], jitter: float, seed: int) -> None:
    """Add noise to the leaves with these names, in place: `jitter` times their size, the root mean square."""
    generator = seeds.generator(seed, "jitter")
    for leaf in [leaf for name, leaf in params.items() if name in names] if jitter else []:
        scale = float(leaf.double().square().mean().sqrt())
        leaf.add_(torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf.device), alpha=jitter * scale)
