import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from helpers import all_leaves, images, largest_difference, norm_convnet, quick_fit, small_mlp, table, with_dropout


def network() -> nn.Module:
    return with_dropout(small_mlp)


def fitted(method=None, **options) -> be.Ensemble:
    return quick_fit(be.Task(network, be.Categorical()), table(), method or be.MCDropout(), **options)


def test_it_trains_as_a_network_with_dropout_does():
    plain = quick_fit(be.Task(network, be.Categorical()), table(), be.DeepEnsemble(num_members=1))
    assert largest_difference(all_leaves(fitted()), all_leaves(plain)) == 0


def test_passes_differ_and_average_to_the_prediction():
    found = fitted().predict(table()[0], num_draws=30)
    assert found.member_probs.shape[0] == 30
    assert found.mutual_information.mean() > 0
    torch.testing.assert_close(found.member_probs.mean(0), found.probs)


def test_a_pass_drops_hidden_units_of_each_row_at_the_rate_of_the_layer():
    """The logits of one hidden unit at a time, against all subsets of what can be dropped."""
    ensemble, x = fitted(), table()[0][:3]
    members = ensemble.state.members
    hidden = torch.relu(x @ members.params["0.weight"][0].T + members.params["0.bias"][0])
    head, bias = members.params["3.weight"][0], members.params["3.bias"][0]
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 8)
    allowed = (masks[:, None] * hidden / 0.7) @ head.T + bias  # (subset, row, class)
    probs = ensemble.predict(x, num_draws=40).member_probs.float()
    gaps = (probs[:, None] - allowed.softmax(-1)).abs().amax(-1).amin(1)
    assert gaps.max() < 1e-5


@pytest.mark.parametrize("members", [1, 2])
def test_the_executor_does_not_matter(members):
    x = table()[0]
    loop, vmap = (fitted(be.MCDropout(num_members=members), executor=kind).predict(x) for kind in ("loop", "vmap"))
    torch.testing.assert_close(loop.member_probs, vmap.member_probs, rtol=0, atol=1e-5)


def test_afterwards_dropout_is_off_again():
    ensemble, x = fitted(), table()[0]
    ensemble.predict(x)
    params, buffers = ensemble.state.members.split()[0]
    first, again = (ensemble.task.forward(params, buffers, x) for _ in range(2))
    assert torch.equal(first, again)


def test_a_network_without_dropout_is_refused():
    with pytest.raises(SettingError, match=r"use be\.Dropout"):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.MCDropout())
    with pytest.raises(SettingError, match="draws is a whole number from 1, got 0"):
        be.MCDropout(draws=0)


def test_passes_of_a_convolutional_network_differ_too():
    """Convolutions run in the loop, which has to give every pass a seed of its own."""
    task = be.Task(lambda: with_dropout(norm_convnet), be.Categorical())
    found = quick_fit(task, images(), be.MCDropout(), epochs=1).predict(images()[0], num_draws=4)
    gaps = (found.member_probs[:, None] - found.member_probs).abs().amax((2, 3))
    assert (gaps + torch.eye(4) > 1e-3).all()


class Transformer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.encoder(x.unsqueeze(1).repeat(1, 3, 2)).mean(1))


def test_layers_of_a_transformer_drop_units_too():
    """Out of training, torch runs such a layer as one operation, in which there is no dropout."""
    x, y = table()
    with scoped(0):
        task = be.Task(Transformer(0.3), be.Categorical(), start="given")
    ensemble = quick_fit(task, (x, y), be.MCDropout(), epochs=0)
    assert ensemble.predict(x).epistemic.mean() > 1e-4
    assert not any(layer.training for layer in ensemble.task.module.modules())
