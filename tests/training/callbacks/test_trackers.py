"""Each tracker is read back with its own package; where that is not installed, its test is skipped."""

import json
import sys

import pytest

import bayesemble as be
from helpers import oracle, quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())
FIGURES = {"gradients", "loss/mean", "loss/0", "loss/1", "loss/2", "seconds", "validation_loss"}


def train(callback):
    return quick_fit(TASK, table(32), callbacks=[callback], validation=table(8))


def test_tensorboard_reads_the_history(tmp_path):
    oracle("tensorboard")
    fitted = train(be.callbacks.TensorBoard(tmp_path / "events"))
    accumulator = oracle("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(tmp_path / "events")).Reload()
    assert set(events.Tags()["scalars"]) == FIGURES
    found = [(event.step, event.value) for event in events.Scalars("validation_loss")]
    assert found == [(row["epoch"], pytest.approx(row["validation_loss"])) for row in fitted.history]


def test_wandb_has_the_history_of_an_offline_run(tmp_path, monkeypatch):
    wandb = oracle("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged = []
    with wandb.init(mode="offline", dir=tmp_path, project="test") as run:
        monkeypatch.setattr(run, "log", lambda figures, step: logged.append((step, figures)))
        fitted = train(be.callbacks.WandB())
        assert wandb.run is run, "a run that was under way goes on"
        assert run.config["bayesemble"]["method"]["class"] == "DeepEnsemble"
    assert logged == [(row["epoch"], be.callbacks.figures(row)) for row in fitted.history]
    train(be.callbacks.WandB(mode="offline", dir=tmp_path, project="test"))
    assert wandb.run is None, "one that was begun here is finished"
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2


@pytest.mark.filterwarnings("ignore")  # what mlflow and its database say to one another
def test_mlflow_has_the_history_and_the_settings(tmp_path):
    mlflow = oracle("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    fitted = train(be.callbacks.MLflow(run_name="test"))
    assert mlflow.active_run() is None
    run = mlflow.last_active_run()
    assert run.data.params["method.num_members"] == "3"
    found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "validation_loss")
    assert [(one.step, one.value) for one in found] == [
        (row["epoch"], row["validation_loss"]) for row in fitted.history
    ]
    assert set(run.data.metrics) == FIGURES


@pytest.mark.parametrize(("name", "module"), [("TensorBoard", "tensorboard"), ("WandB", "wandb"), ("MLflow", "mlflow")])
def test_a_package_that_is_missing_is_named(name, module, monkeypatch):
    for known in [known for known in sys.modules if known.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    arguments = ["folder"] if name == "TensorBoard" else []
    with pytest.raises(be.MissingExtraError, match=f"be.callbacks.{name} needs {module}, .* pip install {module}"):
        getattr(be.callbacks, name)(*arguments)


def test_what_is_described_can_be_written_as_json():
    assert json.dumps(quick_fit(TASK, table(32), epochs=1).describe())
