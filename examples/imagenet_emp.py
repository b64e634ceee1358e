"""Ensemble Model Patching on ImageNet: ResNet-18 on folders of pictures, in mixed precision, scored on ImageNet-C.

    python examples/imagenet_emp.py TRAIN VAL --method dropout --device cuda --workers 8 --corrupted C --out dropout
    python examples/imagenet_emp.py TRAIN VAL --device cuda --workers 8 --corrupted C --baseline dropout --out ecmp

TRAIN and VAL of ImageNet have a subfolder for each class, ImageNet-C (C) has `<corruption>/<severity>/<class>`. All
settings are those of the paper: 100 epochs of Adam, batches of 256, five components of the norm layers and of the
output, weight decay 2 * 0.001 / 256 on all of them alike, 200 draws (100 on corrupted pictures), and dropout at 0.005
as the rival. Training goes on where it stopped if the command is repeated. `OUT/scores.json` has the scores; mCE and
rmCE are per cent of the errors in that file of the baseline.

On a GPU activations are bfloat16 (`--precision` says otherwise); weights, statistics and moments are float32.
What it takes is written in docs/implicit.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bayesemble as be
from bayesemble import metrics
from bayesemble.data.image_sets.corrupted import imagenet_c
from bayesemble.data.image_sets.picture_folder import MEAN, STD, PictureFolder
from bayesemble.models import resnet, resnet18
from bayesemble.predictive import ClassPredictive

METHODS: dict[str, Any] = {
    "plain": (be.DeepEnsemble, {}),
    "emp": (be.EMP, {"components": 5, "kl": "single"}),
    "ecmp": (be.ECMP, {"components": 5, "kl": "single"}),
    "dropout": (be.Dropout, {"rate": 0.005, "select": "not norm", "kl": "single"}),
}
PUBLISHED = {  # top-5, top-1, ECE, MCE in per cent
    "emp": (87.2, 67.0, 3.91, 6.83),
    "ecmp": (87.2, 67.1, 1.65, 3.15),
    "dropout": (86.7, 65.9, 7.61, 14.0),
    "plain": (86.7, 66.1, 8.09, 14.2),
}


class MixedPrecision(nn.Module):
    """A network whose layers run in bfloat16 where torch holds that safe; its outputs are float32."""

    def __init__(self, network: nn.Module, device: str) -> None:
        super().__init__()
        self.network, self.device = network, device

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            return self.network(x).float()


def make_task(arguments: argparse.Namespace, num_classes: int, rows: int) -> be.Task:
    def network() -> nn.Module:
        plain = resnet18(num_classes) if arguments.network == "resnet18" else resnet(8, num_classes, width=8)
        device = torch.device(arguments.device).type
        precision = arguments.precision or ("float32" if device == "cpu" else "bfloat16")
        return plain if precision == "float32" else MixedPrecision(plain, device)

    return be.Task(network, be.Categorical(), be.NormalPrior.from_weight_decay(2 * 0.001 / arguments.batch, rows))


def train(arguments: argparse.Namespace, pictures: PictureFolder) -> be.Ensemble:
    kind, settings = METHODS[arguments.method]
    loader = DataLoader(
        pictures, batch_size=arguments.batch, shuffle=True, num_workers=arguments.workers, drop_last=True
    )
    return be.fit(
        make_task(arguments, len(pictures.classes), len(pictures)),
        kind(num_members=1, learning_rate=arguments.learning_rate, **settings),
        loader,
        epochs=arguments.epochs,
        seed=arguments.seed,
        device=arguments.device,
        executor=be.Loop(channels_last=True),
        checkpoint=arguments.out / "run",
        resume=(arguments.out / "run").exists(),
        progress=not arguments.quiet,
    )


def predict(ensemble: be.Ensemble, images: Any, num_draws: int) -> ClassPredictive:
    """The average over draws of standardised pictures; draws themselves are forgotten batch by batch."""
    drawn = None if ensemble.method.draws is None else num_draws
    return ensemble.predict(images, num_draws=drawn, batch_size=100, keep_members=False)


def clean_scores(ensemble: be.Ensemble, pictures: PictureFolder, arguments: argparse.Namespace) -> dict[str, float]:
    parts, targets = [], []
    for x, y in DataLoader(pictures, batch_size=500, num_workers=arguments.workers, generator=torch.Generator()):
        parts.append(predict(ensemble, x, arguments.draws))
        targets.append(y)
    found, y = ClassPredictive.concat(parts), torch.cat(targets)
    binning = {"bins": 20, "min_count": 6}
    return {
        "top5": metrics.top_k_accuracy(found, y, k=min(5, found.probs.shape[-1])),
        "top1": metrics.accuracy(found, y),
        "nll": metrics.nll(found, y),
        "ece": metrics.expected_calibration_error(found, y, **binning),
        "mce": metrics.maximum_calibration_error(found, y, **binning),
    }


def corrupted_errors(
    ensemble: be.Ensemble, classes: list[str], arguments: argparse.Namespace
) -> dict[str, list[float]]:
    shift, scale = torch.tensor(MEAN), torch.tensor(STD)

    def seen(images: Any) -> ClassPredictive:
        pixels = (torch.as_tensor(images).float() / 255 - shift) / scale
        return predict(ensemble, pixels.permute(0, 3, 1, 2), arguments.corrupted_draws)

    parts = imagenet_c(arguments.corrupted, classes, arguments.size)
    return metrics.published_corruption_table(seen, parts, batch_size=500).errors


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--corrupted", type=Path, help="ImageNet-C")
    parser.add_argument("--baseline", type=Path, help="the --out of the run that corruption errors are compared with")
    parser.add_argument("--method", choices=METHODS, default="ecmp")
    parser.add_argument("--network", choices=("resnet18", "resnet8"), default="resnet18", help="resnet8 is for a trial")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--corrupted-draws", type=int, default=100)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), help="else bfloat16, but float32 on a CPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("imagenet"))
    arguments = parser.parse_args(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    pictures = PictureFolder(arguments.train, arguments.size, augment=True)
    ensemble = train(arguments, pictures)
    held_out = PictureFolder(arguments.val, arguments.size, pictures.classes)
    scores: dict[str, Any] = clean_scores(ensemble, held_out, arguments)
    if arguments.corrupted:
        scores["errors"] = corrupted_errors(ensemble, pictures.classes, arguments)
    if arguments.corrupted and arguments.baseline:
        base = json.loads((arguments.baseline / "scores.json").read_text())
        scores["mCE"] = metrics.mean_corruption_error(scores["errors"], base["errors"])
        scores["rmCE"] = metrics.relative_mean_corruption_error(
            scores["errors"], 1 - scores["top1"], base["errors"], 1 - base["top1"]
        )
    (arguments.out / "scores.json").write_text(json.dumps(scores, indent=1))
    shown = {name: round(100 * scores[name], 2) for name in ("top5", "top1", "ece", "mce")}
    print(f"{arguments.method}: {shown}, published on ImageNet {PUBLISHED[arguments.method]}")
    print({name: round(scores[name], 1) for name in ("mCE", "rmCE") if name in scores})


if __name__ == "__main__":
    main()
