"""Choosing parameters by name, by the kind of layer they belong to, or by where that layer stands."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import nn

from bayesemble.core.errors import SettingError
from bayesemble.core.types import is_named
from bayesemble.task.network_ends import Ends, layer_of, parameters_by_layer

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)

WORDS = ("all", "norm", "output", "input")

Wish = str | Sequence[str] | type[nn.Module] | tuple[type[nn.Module], ...] | Callable[[str, nn.Module], bool]
"""What `select` takes."""


def select(module: nn.Module, wish: Wish, ends: Ends | None = None) -> list[str]:
    """Names of the trainable parameters that are meant, in the order of the network.

    Args:
        module: The network.
        wish: One of

            - "all", "norm" (scales and shifts of norm layers), "output" or "input" (the layer there);
            - a sum of these words, such as "norm+output", of which a part may be missing in the network;
            - "not" and one of these words: all other parameters;
            - patterns of names separated by commas, such as "body.*,head.weight", or a sequence of them;
            - a type of layers such as `nn.Linear`, or a tuple of types: all parameters inside such layers;
            - a function `(name, layer) -> bool`, asked about each layer that owns parameters itself.
        ends: The layers at the ends of the network, as `find_ends` finds them. Without it the output is the last and
            the input the first layer, in the order of registration, that owns parameters and is not a norm layer.
    """
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    meant = _meant(module, wish, ends, names)
    chosen = [name for name in names if name in meant]
    if not chosen:
        raise SettingError(
            f"select={_called(wish)} or part of it means no parameter of {type(module).__name__}; use all, norm, "
            "not norm, or output, input, a sum such as norm+output, a type of layers, or patterns of its names: "
            f"{_some(names)}"
        )
    return chosen


def layers(module: nn.Module, names: Collection[str]) -> dict[str, list[str]]:
    """The given parameters by the layer that each belongs to by its name, in the order of the network."""
    known = [name for name, _ in module.named_parameters()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingError(f"{type(module).__name__} has no parameter {unknown[0]!r}; it has {_some(known)}")
    found: dict[str, list[str]] = {}
    for name in known:
        if name in names:
            found.setdefault(layer_of(name), []).append(name)
    return found


def _meant(module: nn.Module, wish: Any, ends: Ends | None, names: list[str]) -> set[str]:
    """Names of what is meant, of frozen parameters too."""
    if isinstance(wish, str):
        return _by_text(module, wish, ends, names)
    kinds = wish if isinstance(wish, tuple) else (wish,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds):
        return _of_kinds(module, kinds)
    if isinstance(wish, Sequence) and all(isinstance(pattern, str) for pattern in wish):
        return _by_patterns(wish, names)
    if callable(wish) and not isinstance(wish, type | nn.Module):
        owned = parameters_by_layer(module)
        return {name for layer in owned if wish(layer, module.get_submodule(layer)) for name in owned[layer]}
    raise SettingError(
        "select is a text such as 'norm+output', a sequence of names, a type of layers such as nn.Linear, a tuple of "
        f"such types, or a function of the name of a layer and the layer; got {wish!r}"
    )


def _by_text(module: nn.Module, wish: str, ends: Ends | None, names: list[str]) -> set[str]:
    if wish.startswith("not ") and wish.removeprefix("not ").strip() in WORDS:
        return set(names) - _by_word(module, wish.removeprefix("not ").strip(), ends)
    words = [word.strip() for word in wish.split("+")]
    strange = [word for word in words if word not in WORDS]
    if not strange:
        return set().union(*(_by_word(module, word, ends) for word in words))
    if len(strange) < len(words):
        raise SettingError(
            f"select={wish!r}: {strange[0]!r} is not one of the words that + can join, {', '.join(WORDS)}; "
            "patterns of names are joined by commas"
        )
    return _by_patterns(wish.split(","), names)


def _by_patterns(patterns: Iterable[str], names: list[str]) -> set[str]:
    """What matches any of the patterns; nothing, if one of them matches nothing."""
    found = [{name for name in names if is_named(name, [pattern.strip()])} for pattern in patterns]
    return set().union(*found) if all(found) else set()


def _by_word(module: nn.Module, word: str, ends: Ends | None) -> set[str]:
    if word == "all":
        return {name for name, _ in module.named_parameters()}
    if word == "norm":
        return _of_kinds(module, NORM_LAYERS)
    owned = parameters_by_layer(module)
    if ends is None:
        others = [layer for layer in owned if not isinstance(module.get_submodule(layer), NORM_LAYERS)]
        return {name for layer in (others[-1:] if word == "output" else others[:1]) for name in owned[layer]}
    found = ends.outputs if word == "output" else ends.inputs
    if len(found) != 1:
        candidates = [_pattern(layer, owned.get(layer, [])) for layer in found or owned]
        raise SettingError(
            f"{type(module).__name__} has {len(found) or 'no'} {word} layers that can be told "
            f'from a run; name the one that is meant, as in select="head.*". Candidates: {_some(candidates)}'
        )
    return set(owned.get(found[0], ()))


def _of_kinds(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> set[str]:
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    found = [layer for layer in module.modules() if isinstance(layer, kinds)]
    return {known[id(parameter)] for layer in found for parameter in layer.parameters()}


def _pattern(layer: str, names: list[str]) -> str:
    """What to write for the parameters of a layer."""
    return f"{layer}.*" if all(layer_of(name) == layer != "" for name in names) else ",".join(names)


def _called(wish: Any) -> str:
    return getattr(wish, "__name__", repr(wish))


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
