"""Fixed masks are those of a row that is predicted alone."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import ModelError, SettingError
from helpers import quick_fit, table

X, Y = table(12)


class Often(nn.Module):
    """One dropout layer that is met twice in a pass, and one that drops whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.dropout, self.channels = nn.Dropout(0.4), nn.Dropout1d(0.3)

    def forward(self, x):
        h = self.dropout(self.first(x).tanh())
        h = self.channels(h.unsqueeze(-1).expand(-1, -1, 3)).mean(-1)
        return self.third(self.dropout(self.second(h).tanh()))


def single_rows(ensemble: be.Ensemble, **options) -> torch.Tensor:
    return torch.cat([ensemble.predict(X[row : row + 1], **options).probs for row in range(len(X))])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_module_says_of_each_row_what_predict_says_of_it_alone(executor):
    task = be.Task(Often, be.Categorical())
    ensemble = quick_fit(task, (X, Y), be.MCDropout(num_members=2, draws=5), executor=executor)
    module = ensemble.module(["probs"])
    once = module(X)["probs"]
    assert torch.allclose(once, single_rows(ensemble), atol=1e-6)
    assert torch.equal(module(X)["probs"], once)
    other = ensemble.module(["probs"], num_draws=3, seed=1)(X)["probs"]
    assert torch.allclose(other, single_rows(ensemble, num_draws=3, seed=1), atol=1e-6)
    assert not torch.allclose(other, once)
    assert len(ensemble.modules()) == 2


def test_a_layer_that_is_more_than_a_mask_is_refused():
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.1), nn.Linear(4, 2)), be.Categorical())
    with pytest.raises(SettingError, match="AlphaDropout, which is more than a mask"):
        quick_fit(task, (X, Y), be.MCDropout()).module()


def test_masks_that_do_not_fit_several_rows_are_refused():
    class Folded(nn.Module):
        """Rows and their columns on one axis."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.dropout, self.head = nn.Linear(1, 3), nn.Dropout(0.2), nn.Linear(12, 2)

        def forward(self, x):
            return self.head(self.dropout(self.inner(x.reshape(-1, 1))).reshape(len(x), 12))

    with pytest.raises(ModelError, match="do not fit several"):
        quick_fit(be.Task(Folded, be.Categorical()), (X, Y), be.MCDropout()).module()
