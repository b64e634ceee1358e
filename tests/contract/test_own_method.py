"""A method from outside the package goes wherever the library's own methods go."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import bayesemble as be
from bayesemble.apps.cli import main
from bayesemble.apps.compare.compare import compare
from bayesemble.apps.compare.request import Request
from bayesemble.core.members import State
from bayesemble.core.settings import setting
from bayesemble.estimators import EnsembleRegressor
from bayesemble.methods import METHODS


@dataclass(frozen=True, kw_only=True)
class Wandering(be.Method):
    """Gradient ascent that goes twice with every batch."""

    num_members: int = setting(2, "number of members", least=1)
    rate: float = setting(0.1, "step size", above=0)

    @property
    def gradients_per_step(self) -> int:
        return 2 * self.num_members

    def init(self, task, seed) -> State:
        return State(task.new_members(self.num_members, seed))

    def step(self, state, batch, context):
        task, members = context.task, state.members
        for _ in range(2):
            values, gradients = context.gradients(members, batch)
            for name, leaf in task.log_joint_gradient(gradients, members.params).items():
                members.params[name].add_(leaf, alpha=self.rate / task.num_data)
        return state, {"loss": -values}


@pytest.fixture(autouse=True)
def _registered():
    be.register(Wandering)
    yield
    del METHODS["wandering"]


def test_it_is_compared_at_equal_cost(tmp_path):
    request = Request("two_moons", methods="wandering:rate=0.2,map", members=2, epochs=4, seeds=1, budget="steps")
    results = {result.label: result for result in compare(request, tmp_path, progress=False).results}
    assert not any(result.failure for result in results.values())
    spent = {label: result.cost["gradient_evaluations"] for label, result in results.items()}
    assert spent["wandering:rate=0.2"] == spent["map"] > 0
    again = compare(request, tmp_path, progress=False).results
    assert [one.scores for one in again] == [one.scores for one in results.values()]


def test_the_command_line_knows_it(tmp_path, monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr("sys.argv", ["bayesemble", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.main()
        captured = capsys.readouterr()
        assert not end.value.code, captured.err
        return captured.out

    rows = np.random.default_rng(0).normal(size=(60, 3))
    table = tmp_path / "rows.csv"
    table.write_text("a,b,target\n" + "".join(f"{a:.4f},{b:.4f},{a + b + c / 9:.4f}\n" for a, b, c in rows))
    assert {row["setting"] for row in json.loads(call("methods", "wandering", "--json"))} == {"num_members", "rate"}
    fit = ("fit", table, "--target", "target", "--method", "wandering", "--epochs", "2", "--width", "4")
    call(*fit, "--rate", "0.3", "--out", tmp_path / "run")
    call("predict", tmp_path / "run", table, "--out", tmp_path / "predictions.csv")
    assert "nll" in call("evaluate", tmp_path / "run", "--json")
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 61


def test_the_estimators_take_it_by_name():
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    model = EnsembleRegressor("wandering", num_members=2, epochs=2, method__rate=0.3, random_state=0).fit(
        rows, rows[:, 0]
    )
    assert model.ensemble_.method == Wandering(rate=0.3)
    assert np.isfinite(model.predict(rows)).all()


def test_its_settings_are_checked_as_all_others():
    with pytest.raises(be.SettingError, match="rate is a number above 0, got -1"):
        Wandering(rate=-1)
    assert Wandering(num_members=np.int64(3)) == Wandering(num_members=3)
