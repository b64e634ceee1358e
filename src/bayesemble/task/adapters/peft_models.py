"""Networks that the package peft has put adapters into: what members begin with is drawn as that package draws it.

Nothing of the package is imported: its layers are known by the way they are made.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from bayesemble.core.errors import ModelError

_FACTORS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")
_DRAWN_ANEW = (True, "gaussian")


def is_peft(module: nn.Module) -> bool:
    """Whether a network, or a part of it, was made by peft."""
    return next(_configured(module), None) is not None


def given_leaves(module: nn.Module) -> set[str]:
    """Names of trained leaves that are not factors of adapters: members begin with them as they are."""
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return {name for name in names if not set(name.split(".")) & set(_FACTORS)}


def reset_of(layer: nn.Module, module: nn.Module) -> Callable[[], None] | None:
    """What draws the adapters of a layer anew, if it is one of peft's."""
    reset: Any = getattr(layer, "reset_lora_parameters", None)
    if not callable(reset):
        return None
    ways = {name: getattr(one, "init_lora_weights", True) for name, one in configurations(module).items()}
    names = [name for factor in ("lora_A", "lora_embedding_A") for name in getattr(layer, factor, {})]

    def draw() -> None:
        for name in names:
            way = ways.get(name, True)
            if way not in _DRAWN_ANEW:
                raise ModelError(
                    f"the adapters {name!r} begin by init_lora_weights={way!r}, which cannot be drawn anew for each "
                    'member; take Task(..., start="given"), or init_lora_weights=True or "gaussian"'
                )
            reset(name, way)

    return draw


def backbone_name(module: nn.Module) -> str | None:
    """What the configuration of the adapters calls the network that they are for."""
    names = (getattr(one, "base_model_name_or_path", None) for one in configurations(module).values())
    return next((name for name in names if isinstance(name, str) and name), None)


def configurations(module: nn.Module) -> dict[str, Any]:
    """The configurations of all adapters by their names; none if the network was not made by peft."""
    return {name: one for part in _configured(module) for name, one in part.items()}


def _configured(module: nn.Module) -> Iterator[dict[str, Any]]:
    """The configurations that peft keeps at the networks it has changed."""
    for part in module.modules():
        found = getattr(part, "peft_config", None)
        if isinstance(found, dict) and found and hasattr(next(iter(found.values())), "peft_type"):
            yield found
