"""The weights that members begin with: drawn anew, taken from a given network, or a little apart from these."""

import copy
import fnmatch
import math
from collections.abc import Collection

import torch
from torch import nn

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.types import Leaves

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


def is_named(name: str, patterns: Patterns) -> bool:
    """Whether one of the patterns means this leaf."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def renewed(original: nn.Module, fresh: Patterns) -> nn.Module:
    """Copy a network with its weights, but for those leaves that the patterns name, which are drawn anew."""
    if not fresh:
        return copied(original)
    trained = [name for name, parameter in original.named_parameters() if parameter.requires_grad]
    for pattern in fresh:
        if not any(is_named(name, (pattern,)) for name in trained):
            few = ", ".join(trained[-3:])
            raise SettingError(f"fresh={pattern!r} names no trained parameter of the network; some of them are {few}")
    return reinitialised(original, fresh)


def reinitialised(original: nn.Module, fresh: Patterns = ("*",)) -> nn.Module:
    """Copy a network and reset the leaves that are named, children before parents; name what nothing resets.

    Trainable parameters are set to NaN first, so whatever no `reset_parameters` reaches shows. Frozen parameters
    keep their values, and a layer in which everything is frozen keeps its statistics too. A leaf of zeros was meant to
    begin with zeros, as the second factor of a low-rank adapter is, and stays so.
    """
    module = copied(original)
    parameters: Leaves = dict(module.named_parameters())
    drawn = {name: leaf for name, leaf in parameters.items() if leaf.requires_grad and is_named(name, fresh)}
    kept = {name: leaf for name, leaf in parameters.items() if name not in drawn}
    kept |= {name: leaf for name, leaf in module.named_buffers() if not is_named(name, fresh)}
    before, own = {name: leaf.detach().clone() for name, leaf in kept.items()}, {id(leaf) for leaf in drawn.values()}
    with torch.no_grad():
        for parameter in drawn.values():
            parameter.fill_(torch.nan)
        for layer in reversed(list(module.modules())):
            # nn.MultiheadAttention and nn.Transformer spell it with an underscore.
            reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
            inside = list(layer.parameters())
            if callable(reset) and ((not inside and "*" in fresh) or any(id(leaf) in own for leaf in inside)):
                reset()
        for name, value in before.items():
            kept[name].copy_(value)
        _refuse_untouched(original, drawn)
        for name, leaf in original.named_parameters():
            if name in drawn and not leaf.any():
                drawn[name].zero_()
    return module


def _refuse_untouched(original: nn.Module, drawn: Leaves) -> None:
    untouched = [name for name, parameter in drawn.items() if parameter.isnan().any()]
    if untouched:
        raise ModelError(
            f"nothing re-initialises the parameter {untouched[0]!r} of {type(original).__name__}, so all members "
            "would share it; pass a factory such as `lambda: MyNet()`, or give its module a reset_parameters method"
        )


def copied(original: nn.Module) -> nn.Module:
    """A copy of a network."""
    try:
        return copy.deepcopy(original)
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            f"{type(original).__name__} cannot be copied ({error}); pass a factory such as `lambda: MyNet()`"
        ) from error


def begun(leaves: tuple[Leaves, Leaves], names: Collection[str], jitter: float, seed: int) -> tuple[Leaves, Leaves]:
    """A copy of parameters and buffers, of which those with these names get noise: `jitter` times their own size.

    The size of a leaf is its root mean square.
    """
    params, buffers = ({name: leaf.clone() for name, leaf in own.items()} for own in leaves)
    generator = seeds.generator(seed, "jitter")
    for leaf in [leaf for name, leaf in params.items() if name in names] if jitter else []:
        scale = float(leaf.double().square().mean().sqrt())
        leaf.add_(torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).to(leaf.device), alpha=jitter * scale)
    return params, buffers


def leaves_of(module: nn.Module) -> tuple[Leaves, Leaves]:
    """What a network trains, and its buffers with the frozen parameters among them; no copies."""
    named = dict(module.named_parameters())
    params = {name: leaf.detach() for name, leaf in named.items() if leaf.requires_grad}
    frozen = {name: leaf.detach() for name, leaf in named.items() if not leaf.requires_grad}
    return params, frozen | {name: buffer.detach() for name, buffer in module.named_buffers()}
