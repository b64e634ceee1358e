"""The method that CONTRIBUTING.md writes out is trained, and does what its sentences say."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bayesemble.methods import METHODS, make_method

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def written(monkeypatch) -> ModuleType:
    """The Python block, run; the name that it registers is gone afterwards."""
    [block] = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    module = ModuleType("contributing")
    monkeypatch.setitem(sys.modules, "contributing", module)
    exec(compile(block, "CONTRIBUTING.md", "exec"), vars(module))
    yield module
    del METHODS["shaken"]


def test_its_method_is_trained_and_draws_around_each_member(written):
    ensemble, method = written.ensemble, written.Shaken()
    assert make_method("shaken") == method == ensemble.method
    first, last = ensemble.history[0]["loss"], ensemble.history[-1]["loss"]
    assert max(last) < min(first)
    drawn, members = ensemble.draw(10).params["weight"], ensemble.state.members.params["weight"]
    assert not torch.equal(drawn[:5], drawn[5:])
    assert torch.cat([drawn[:5] - members, drawn[5:] - members]).abs().max() < 5 * method.size


def test_every_part_of_a_method_is_named(written):
    parts = {name for name in vars(written.be.Method) if not name.startswith("_")}
    first_columns = " ".join(re.findall(r"^\|( `.*?) \|", TEXT, flags=re.MULTILINE))
    assert set(re.findall(r"`(\w+)", first_columns)) == parts - {"init", "step"}
