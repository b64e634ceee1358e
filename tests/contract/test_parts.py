"""Members by number are the same wherever they train: parts, put together, are what one run gives."""

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.methods import METHODS
from contract.test_dropped_members import INDEPENDENT, OTHERS, factory
from contract.test_methods import small
from helpers import quick_fit, table

PARTS = (range(2), range(2, 5))


def fitted(name: str, executor: str, **options) -> be.Ensemble:
    method = small(name, num_members=5)
    task = be.Task(factory(method.keeps_dropout, None), be.Categorical())
    return quick_fit(task, table(), method, executor=executor, epochs=3, **options)


def leaves_of(ensemble: be.Ensemble) -> dict[str, torch.Tensor]:
    groups = {f"{group}/{name}": leaf for group, own in ensemble.state.groups().items() for name, leaf in own.items()}
    return groups | {"weights": ensemble.state.members.weights}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_parts_put_together_are_the_whole(name, executor):
    whole = fitted(name, executor)
    joined = be.Ensemble.concat([fitted(name, executor, members=part) for part in reversed(PARTS)])
    expected, found = leaves_of(whole), leaves_of(joined)
    assert found.keys() == expected.keys()
    if executor == "loop":
        assert all(torch.equal(found[place], leaf) for place, leaf in expected.items())
    for place, leaf in expected.items():
        torch.testing.assert_close(found[place], leaf, rtol=1e-3, atol=1e-4)
    assert joined.method == whole.method
    assert joined.part is None
    assert joined.state.members.shared == whole.state.members.shared
    for row, other in zip(whole.history, joined.history, strict=True):
        assert other["loss"] == pytest.approx(row["loss"], rel=1e-3)
        assert other["gradients"] == row["gradients"]
    x = table()[0]
    one, other = whole.predict(x, seed=3), joined.predict(x, seed=3)
    torch.testing.assert_close(other.probs, one.probs, **({"rtol": 0, "atol": 0} if executor == "loop" else {}))
    for name, leaf in whole.draw(seed=1).params.items():
        assert executor != "loop" or torch.equal(joined.draw(seed=1).params[name], leaf)


@pytest.mark.parametrize("name", [name for name in OTHERS if not METHODS[name].fixed])
def test_members_that_may_depend_on_one_another_train_together(name):
    with pytest.raises(SettingError, match="may depend on one another; train them together"):
        fitted(name, "loop", members=range(2))
