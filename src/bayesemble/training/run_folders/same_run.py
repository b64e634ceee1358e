"""Whether a checkpoint is of the run that is asked for: the same settings, but for those that may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayesemble.core.errors import CheckpointError


def check_same_run(
    held: Mapping[str, Any], asked: Mapping[str, Any], change: Sequence[str], epoch: int
) -> list[dict[str, Any]]:
    """Refuse a checkpoint of other settings; give what has changed of those settings of the method that may.

    Args:
        held: What the checkpoint says, by name; "method" is a mapping of settings.
        asked: The same of the run that is to go on.
        change: Settings of the method that may be others.
        epoch: How many epochs are done.
    """
    there, here = held["method"], asked["method"]
    changed = [
        {"epoch": epoch, "setting": name, "from": there.get(name), "to": here[name]}
        for name in change
        if there.get(name) != here[name]
    ]
    held = {**held, "method": there | {one["setting"]: one["to"] for one in changed}}
    for key, value in asked.items():
        if value != held[key]:
            raise CheckpointError(
                f"the checkpoint was made with {key} {held[key]}, now it is {value}; repeat the settings"
            )
    return changed
