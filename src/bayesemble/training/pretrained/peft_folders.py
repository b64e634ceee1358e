"""Adapters in the files and under the names of the package peft: a folder for each member, which it loads by itself.

FOLDER/member-000/adapter_config.json         what the adapters are
                 /adapter_model.safetensors   base_model.model.<layer>.lora_A.weight, ... and heads by their own names
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core.errors import ModelError
from bayesemble.core.files import json_text, make_folder, replacing, write_text
from bayesemble.core.members import Members
from bayesemble.core.types import Leaves
from bayesemble.task.adapters.adapt import Adaptation, adaptation_of
from bayesemble.task.adapters.lora import FACTORS
from bayesemble.task.adapters.peft_models import configurations
from bayesemble.task.running import network_leaves
from bayesemble.task.task import BoundTask
from bayesemble.training.run_folders.tensor_files import write_tensors

_PREFIX = "base_model.model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def member_folder(folder: Path, index: int) -> Path:
    """Where the adapters of a member are."""
    return folder / f"member-{index:03d}"


def write_adapters(folder: Path, task: BoundTask, networks: Members) -> None:
    """Write a folder for each network; refuse what the package has no file for."""
    config, names = _described(task.module, list(network_leaves(networks.params)))
    _check_buffers(task.module, networks)
    for index, (params, _) in enumerate(networks.split()):
        own = member_folder(folder, index)
        make_folder(own)
        write_text(own / CONFIG, json_text(config) + "\n")
        with replacing(own / WEIGHTS) as temporary:
            write_tensors(
                temporary, {names[name]: leaf for name, leaf in network_leaves(params).items()}, {"format": "pt"}
            )


def likelihood_of(task: BoundTask, networks: Members) -> dict[str, Any]:
    """What the likelihood learned with each network, which is no part of the network."""
    return {name: leaf.tolist() for name, leaf in task.likelihood_leaves(networks.params).items()}


def _described(module: nn.Module, leaves: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration of the adapters, and what the package calls each leaf."""
    adaptation, by_peft = adaptation_of(module), configurations(module)
    if adaptation is not None and adaptation.kind == "lora":
        return _config(adaptation), {name: _called(name) for name in leaves}
    if adaptation is None and len(by_peft) == 1:
        ((adapter, config),) = by_peft.items()
        return _plain(config.to_dict()) | {"inference_mode": True}, {n: _without(n, adapter) for n in leaves}
    came = "a network that is not adapted" if adaptation is None else f"kind={adaptation.kind!r}"
    came = f"{len(by_peft)} sets of adapters" if len(by_peft) > 1 else came
    raise ModelError(
        "save_pretrained writes low-rank adapters, as be.adapt(model, 'lora', ...) makes them, and their heads; this "
        f"is {came}. Ensemble.save keeps any ensemble"
    )


def _config(adaptation: Adaptation) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": adaptation.backbone,
        "inference_mode": True,
        "r": adaptation.rank,
        "lora_alpha": adaptation.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": "|".join(re.escape(name) for name in adaptation.targets),
        "modules_to_save": list(adaptation.heads) or None,
    }


def _called(name: str) -> str:
    return f"{_PREFIX}{name}.weight" if name.rpartition(".")[2] in FACTORS else _PREFIX + name


def _without(name: str, adapter: str) -> str:
    """The name of a leaf in a file of the package, which leaves out what the adapters are called."""
    at = name.find(_PREFIX)
    if at < 0:
        raise ModelError(
            f"{name!r} is trained outside of the network that peft has put adapters into; use Ensemble.save"
        )
    return name[at:].replace(f".modules_to_save.{adapter}.", ".").replace(f".{adapter}.", ".")


def _check_buffers(module: nn.Module, networks: Members) -> None:
    """Refuse networks with statistics of their own, which the files have no place for."""
    given: Leaves = dict(module.named_buffers())
    for name, leaf in network_leaves(networks.buffers).items():
        if name not in networks.shared and not all(torch.equal(own, given[name]) for own in leaf):
            raise ModelError(
                f"{name!r} differs from member to member, as statistics of batch norm do, which files of peft have no "
                "place for; use Ensemble.save"
            )


def _plain(value: Any) -> Any:
    """Settings as JSON has them."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(own) for key, own in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(own) for own in value)
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, Enum):
        return value.value
    return value.tolist() if isinstance(value, Tensor) else value
