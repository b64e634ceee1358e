import json

import torch

import bayesemble as be
from helpers import quick_fit, small_mlp, table


def trained(seed: int = 0) -> be.Ensemble:
    return quick_fit(
        be.Task(small_mlp, be.Categorical()),
        table(),
        be.DeepEnsemble(num_members=2, optimizer="adam", learning_rate=0.05),
        epochs=20,
        seed=seed,
    )


def unsure_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows a tenth of which have the other class, so that a finite temperature fits them best."""
    x, y = table(200, seed=3)
    y[::10] = 1 - y[::10]
    return x, y


def test_it_is_json_and_names_what_was_trained_and_how_it_is_calibrated():
    ensemble = trained(seed=5)
    told = json.loads(json.dumps(ensemble.describe()))
    assert (told["seed"], told["method"]["num_members"], told["task"]["num_rows"]) == (5, 2, len(table()[0]))
    assert told["calibration"] is None
    calibrated = ensemble.calibrate(unsure_rows())
    assert calibrated.describe()["calibration"]["temperature"] == calibrated.calibration.temperature


def test_a_notebook_shows_members_and_calibration():
    ensemble = trained()
    assert "calibration" not in ensemble._repr_html_()
    assert "calibration" in ensemble.calibrate(unsure_rows())._repr_html_()
