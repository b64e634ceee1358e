"""An ensemble of adapters as a folder that others can use: files of peft, weights of the members, a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesemble import __version__
from bayesemble.core import settings
from bayesemble.core.arrays import as_inputs
from bayesemble.core.files import json_text, write_text
from bayesemble.core.settings import require
from bayesemble.core.types import tensors_of
from bayesemble.training.batches import source_for
from bayesemble.training.pretrained.model_card import Card
from bayesemble.training.pretrained.peft_folders import likelihood_of, write_adapters
from bayesemble.training.run_folders.backbone import describe_backbone


def write_pretrained(ensemble: Any, folder: Path, data: Any, ood: Any, num: int | None, limits: str) -> None:
    """Write the networks of an ensemble, and what its scores on data are; see `Ensemble.save_pretrained`."""
    require(data is not None or ood is None, "ood rows are told from those of data=; pass both")
    task, networks = ensemble.task, ensemble.draw(num)
    write_adapters(folder, task, networks)
    backbone = describe_backbone(task, ensemble.state) or {"name": None, "sha256": None}
    about = {
        "weights": networks.weights.tolist(),
        "method": settings.dump(ensemble.method),
        "likelihood": settings.dump(task.likelihood) | {"learned": likelihood_of(task, networks)},
        "backbone": {key: backbone[key] for key in ("name", "sha256")},
        "calibration": settings.dump(ensemble.calibration),
        "library": __version__,
    }
    card = Card(
        network=type(task.module).__name__,
        method=type(ensemble.method).__name__,
        members=networks.num_members,
        trained=task.num_parameters,
        backbone=backbone["name"],
        sha256=backbone["sha256"],
        rows=task.num_rows,
        scores={} if data is None else ensemble.evaluate(data, ood),
        scored_rows=0 if data is None else source_for(task, data, shuffle=False).num_data,
        ood_rows=0 if ood is None else len(tensors_of(as_inputs(ood, task.dtype))[0]),
        limits=limits,
    )
    write_text(folder / "ensemble.json", json_text(about) + "\n")
    write_text(folder / "README.md", card.text())
