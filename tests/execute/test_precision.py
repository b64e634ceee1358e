"""Training in bfloat16 keeps weights, moments and predictions in single precision, and never ends in a crash."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.execute import precision
from bayesemble.execute.precision import check_precision
from helpers import dropout_mlp, largest_difference, quick_fit, small_mlp, table

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")


@pytest.fixture
def without_onednn():
    """Matrix products that every processor can do."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def coarse(executor, method=None, make=small_mlp, epochs=6):
    task = be.Task(make, be.Categorical())
    method = method or be.DeepEnsemble(num_members=3, learning_rate=0.05)
    return quick_fit(task, table(), method, executor=executor, epochs=epochs, precision="bf16")


METHODS = {
    "deep ensemble": (None, small_mlp),
    "repulsive": (be.Repulsive(num_members=3, learning_rate=0.05), small_mlp),
    "function space": (be.Repulsive(num_members=3, learning_rate=0.05, space="function"), small_mlp),
    "dropout": (None, dropout_mlp),
    "laplace": (be.Laplace(learning_rate=0.05), small_mlp),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_weights_moments_losses_and_predictions_are_single(name, executor, without_onednn):
    ensemble = coarse(executor, *METHODS[name])
    fine = quick_fit(be.Task(METHODS[name][1], be.Categorical()), table(), ensemble.method, executor=executor, epochs=6)
    for leaves in ensemble.state.groups().values():
        assert all(leaf.dtype != torch.bfloat16 for leaf in leaves.values())
    predictive = ensemble.predict(table()[0])
    assert predictive.log_probs.dtype == torch.float32
    away = largest_difference(ensemble.state.members.params, fine.state.members.params)
    assert away > 0, "computed in another number type"
    assert name == "dropout" or away < 0.5, "but near those of single precision"


def test_predictions_are_computed_in_single_precision(without_onednn):
    ensemble = coarse("loop")
    with torch.no_grad():
        for index, (params, _) in enumerate(ensemble.state.members.split()):
            expected = torch.func.functional_call(ensemble.task.module, params, table()[0]).softmax(-1)
            torch.testing.assert_close(ensemble.predict(table()[0]).member_probs[index], expected)


def test_recorded_steps_have_the_bits_of_steps_in_python(without_onednn):
    one, other = (coarse(be.Vmap(steps=steps), epochs=20) for steps in ("traced", "eager"))
    assert largest_difference(one.state.members.params, other.state.members.params) == 0


def test_a_run_is_resumed_in_the_precision_it_began_with(tmp_path, without_onednn):
    folder = {"checkpoint": tmp_path / "run"}
    task, method = be.Task(small_mlp, be.Categorical()), be.DeepEnsemble(num_members=2)
    quick_fit(task, table(), method, precision="bf16", **folder)
    whole = quick_fit(task, table(), method, precision="bf16", epochs=4)
    with pytest.raises(be.CheckpointError, match="made with precision bf16, now it is None"):
        quick_fit(task, table(), method, epochs=4, resume=True, **folder)
    on = quick_fit(task, table(), method, epochs=4, resume=True, precision="bf16", **folder)
    assert largest_difference(on.state.members.params, whole.state.members.params) == 0
    loaded = be.load(tmp_path / "run", small_mlp)
    assert torch.equal(loaded.predict(table()[0]).probs, on.predict(table()[0]).probs)


def test_what_cannot_be_had_is_refused():
    check_precision(None, torch.float64, CPU)
    with pytest.raises(SettingError, match="precision is 'bf16' or None, got 'fp8'"):
        check_precision("fp8", torch.float32, CPU)
    with pytest.raises(SettingError, match=r"the network has torch.float64; leave it out"):
        quick_fit(be.Task(lambda: nn.Linear(4, 2).double(), be.Categorical()), table(), precision="bf16")


@pytest.mark.parametrize(
    ("code", "ends"), [("pass", False), ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", True)]
)
def test_a_processor_that_cannot_multiply_such_matrices_is_found_out_in_another_process(code, ends, monkeypatch):
    monkeypatch.setattr(precision, "_TRY", code)
    monkeypatch.setattr(torch._C, "_get_mkldnn_enabled", lambda: True)
    precision._ends_by.cache_clear()
    try:
        if ends:
            with pytest.raises(SettingError, match=r"SIGILL, seen in another process.*ONEDNN_MAX_CPU_ISA.*mkldnn"):
                check_precision("bf16", torch.float32, CPU)
        else:
            check_precision("bf16", torch.float32, CPU)
    finally:
        precision._ends_by.cache_clear()


class Checkpointed(nn.Module):
    """A network whose body is run again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def test_with_accumulation_and_activation_checkpointing_together(without_onednn):
    """Two steps of plain gradient descent differ from those in float32 by the accuracy of bfloat16, 2^-8 of a step."""
    method = be.DeepEnsemble(num_members=2, learning_rate=1.0, optimizer="sgd", momentum=0.0)
    task, options = be.Task(Checkpointed, be.Categorical(), prior=None), {"batch_size": None, "executor": "loop"}
    begun, fine, parts = (
        quick_fit(task, table(), method, epochs=epochs, **options, **own).state.members.params
        for epochs, own in ((1, {}), (2, {}), (2, {"max_batch": 7, "precision": "bf16"}))
    )
    step = {name: leaf - begun[name] for name, leaf in fine.items()}
    size = max(float(leaf.abs().max()) for leaf in step.values())
    away = largest_difference(fine, parts)
    assert 0 < away < 4 * 2**-8 * size
