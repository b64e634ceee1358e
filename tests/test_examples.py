"""The long scripts of `examples/` do on made-up images in seconds what they do on real ones in hours."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def write_idx(path: Path, array: np.ndarray) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())


def idx_folder(folder: Path, rows: int, seed: int) -> Path:
    """Images of 8 x 8 pixels of which one half is bright: the class."""
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for part in ("train", "t10k"):
        labels = generator.integers(0, 2, rows)
        images = generator.integers(0, 120, (rows, 8, 8))
        images[labels == 1, :, :4] += 100
        write_idx(folder / f"{part}-images-idx3-ubyte", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
    return folder


def test_the_reproduction_of_repulsive_ensembles_runs_and_goes_on_where_it_stopped(tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    script = runpy.run_path(str(EXAMPLES / "reproduce_repulsive.py"))
    folders = [str(idx_folder(tmp_path / name, 96, seed)) for seed, name in enumerate(("own", "other"))]
    words = [folders[0], "--ood", folders[1], "--epochs", "2", "--out", str(tmp_path / "out"), "--kernels", "laplace"]
    script["main"]([*words, "--members", "1,3", "--estimators", "kde", "--no-fgsm"])
    file = tmp_path / "out" / "runs.jsonl"
    first = file.read_text()
    assert [json.loads(line)["variant"][:2] for line in first.splitlines()] == [[1, "kde"], [3, "kde"]]
    script["main"]([*words, "--members", "1,3", "--estimators", "kde,ssge", "--no-fgsm"])
    assert file.read_text().startswith(first)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["variant"] for row in rows][2:] == [[3, "ssge", "laplace", False]]
    assert rows[1]["accuracy"] > 0.9
    assert (tmp_path / "out" / "M3-kde-laplace-disagreement.png").stat().st_size > 1000
    shown = capsys.readouterr().out
    assert "| M1 |" in shown
    assert "0.9699, 0.1050, 8.4 |" in shown


def picture_folder(folder: Path, count: int, seed: int, dim: float = 1.0) -> Path:
    """Pictures of 16 x 16 pixels, red or blue."""
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(seed)
    for channel, name in ((0, "blue"), (2, "red")):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = generator.integers(0, 120, (16, 16, 3))
            pixels[..., channel] += int(100 * dim)
            image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{index}.png")
    return folder


@pytest.fixture
def without_onednn(monkeypatch):
    """Its bfloat16 needs instructions that some virtual machines promise and do not have."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("without_onednn")
def test_patching_on_folders_of_pictures_in_mixed_precision(tmp_path, capsys):
    folders = [str(picture_folder(tmp_path / name, 16, seed)) for seed, name in enumerate(("train", "val"))]
    for severity in range(1, 6):
        picture_folder(tmp_path / "c" / "fog" / str(severity), 3, severity, dim=0.0)
    script = runpy.run_path(str(EXAMPLES / "imagenet_emp.py"))
    words = [*folders, "--network", "resnet8", "--size", "16", "--batch", "8", "--draws", "3", "--quiet"]
    words += ["--precision", "bfloat16"]
    words += ["--corrupted", str(tmp_path / "c"), "--corrupted-draws", "2", "--learning-rate", "0.01"]
    script["main"]([*words, "--method", "plain", "--epochs", "1", "--out", str(tmp_path / "plain")])
    out = str(tmp_path / "ecmp")
    script["main"]([*words, "--method", "ecmp", "--epochs", "6", "--out", out, "--baseline", str(tmp_path / "plain")])
    scores = json.loads((tmp_path / "ecmp" / "scores.json").read_text())
    assert scores["top1"] > 0.9
    assert scores["mCE"] > 0
    script["main"]([*words, "--method", "ecmp", "--epochs", "6", "--out", out])  # trained already: scored again
    assert json.loads((tmp_path / "ecmp" / "scores.json").read_text())["top1"] == scores["top1"]
    assert "published on ImageNet (87.2, 67.1, 1.65, 3.15)" in capsys.readouterr().out
