"""Choosing parameters by name or by the kind of layer they belong to."""

import fnmatch

from torch import nn

from bayesemble.errors import SettingError

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def select(module: nn.Module, wish: str) -> list[str]:
    """Names of the trainable parameters that are meant, in the order of the network.

    Args:
        module: The network.
        wish: "all", "norm" (scales and shifts of norm layers), "not norm" (all others), or patterns of names separated
            by commas, such as "body.*,head.weight".
    """
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    norm = _of_norm_layers(module)
    if wish == "all":
        chosen = names
    elif wish in ("norm", "not norm"):
        chosen = [name for name in names if (name in norm) == (wish == "norm")]
    else:
        patterns = [pattern.strip() for pattern in wish.split(",")]
        found = [[name for name in names if fnmatch.fnmatchcase(name, pattern)] for pattern in patterns]
        chosen = [name for name in names if any(name in one for one in found)] if all(found) else []
    if not chosen:
        raise SettingError(
            f"select={wish!r} or part of it means no parameter of {type(module).__name__}; use all, norm, not norm, "
            f"or patterns of its names: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        )
    return chosen


def _of_norm_layers(module: nn.Module) -> set[str]:
    layers = [(prefix, layer) for prefix, layer in module.named_modules() if isinstance(layer, NORM_LAYERS)]
    return {f"{prefix}.{name}".lstrip(".") for prefix, layer in layers for name, _ in layer.named_parameters()}
