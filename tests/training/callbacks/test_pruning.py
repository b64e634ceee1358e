import sys

import pytest

import bayesemble as be
from helpers import oracle, quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())


def test_a_trial_that_optuna_prunes_ends_there_and_others_go_on():
    optuna = oracle("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        rate = 0.01 if trial.number < 2 else 1e-30  # the last one learns nothing
        fitted = quick_fit(
            TASK,
            table(32),
            be.DeepEnsemble(num_members=2, learning_rate=rate),
            epochs=5,
            validation=table(16),
            callbacks=[be.callbacks.OptunaPruning(trial)],
        )
        return fitted.history[-1]["validation_loss"]

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=2))
    study.optimize(objective, n_trials=3)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert list(study.trials[0].intermediate_values) == [1, 2, 3, 4, 5]
    assert max(study.trials[2].intermediate_values) < 5


def test_a_figure_that_is_not_there_is_named():
    oracle("optuna")
    with pytest.raises(be.SettingError, match=r"no figure 'validation_loss', but epoch, .*pass validation=\(x, y\)"):
        quick_fit(TASK, table(32), callbacks=[be.callbacks.OptunaPruning(trial=None)])


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(be.MissingExtraError, match=r"OptunaPruning needs optuna, .* pip install optuna"):
        be.callbacks.OptunaPruning(None)
