import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import bayesemble as be
from helpers import dropout_mlp, norm_mlp, quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def fitted() -> be.Ensemble:
    return quick_fit(be.Task(norm_mlp, be.Categorical()), table(), executor="vmap")


def test_predicting_in_batches_is_predicting_at_once(fitted):
    x = table(50, seed=3)[0]
    whole, parts = fitted.predict(x), fitted.predict(x, batch_size=7)
    torch.testing.assert_close(whole.probs, parts.probs)


def test_the_prediction_is_the_average_of_plain_modules_in_eval_mode(fitted):
    x = table(20, seed=3)[0]
    members, total = fitted.state.members, 0
    for index in range(3):
        network = fitted.task.module.eval()
        leaves = {name: leaf[index] for name, leaf in (members.params | members.buffers).items()}
        network.load_state_dict(leaves)
        total = total + network(x).softmax(-1) / 3
    torch.testing.assert_close(fitted.predict(x).probs, total.detach())


def test_a_reduced_prediction_keeps_every_doubt_but_not_the_members(fitted):
    x, y = table(50, seed=3)
    whole, reduced = fitted.predict(x), fitted.predict(x, keep_members=False, batch_size=16)
    for quantity in ("probs", "entropy", "aleatoric", "epistemic", "disagreement"):
        torch.testing.assert_close(getattr(reduced, quantity), getattr(whole, quantity), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(reduced.log_prob(y), whole.log_prob(y))
    with pytest.raises(be.SettingError, match="use keep_members=True"):
        reduced.member(0)


def test_evaluate_gives_the_metrics_of_the_prediction(fitted):
    x, y = table(50, seed=3)
    scores = be.evaluate(fitted, (x, y), ood=10 * x)
    predictive = fitted.predict(x)
    assert scores["accuracy"] == be.metrics.accuracy(predictive, y)
    assert scores["nll"] == pytest.approx(be.metrics.nll(predictive, y))
    assert scores["ood_auroc"] == pytest.approx(be.metrics.ood_auroc(predictive, fitted.predict(10 * x)))
    assert fitted.evaluate(TensorDataset(x, y))["nll"] == pytest.approx(scores["nll"])


def test_numpy_in_doubles_and_lists_are_predicted_alike(fitted):
    x = table(9)[0]
    expected = fitted.predict(x).probs
    for inputs in (x.numpy().astype(np.float64), x.tolist(), x.double()):
        torch.testing.assert_close(fitted.predict(inputs).probs, expected)


def test_dropout_is_off_in_prediction():
    ensemble = quick_fit(be.Task(dropout_mlp, be.Categorical()), table())
    x = table()[0]
    assert torch.equal(ensemble.predict(x).probs, ensemble.predict(x).probs)


def test_draws_are_members_and_repeat_by_seed(fitted):
    assert fitted.draw().num_members == 3
    first, again, other = fitted.draw(50, seed=1), fitted.draw(50, seed=1), fitted.draw(50, seed=2)
    assert torch.equal(first.params["0.weight"], again.params["0.weight"])
    assert not torch.equal(first.params["0.weight"], other.params["0.weight"])
    members = fitted.state.members.params["0.weight"]
    assert all(any(torch.equal(one, member) for member in members) for one in first.params["0.weight"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(3, 5), r"cannot run on inputs of shape \[\(3, 5\)\]"),
        (torch.full((3, 4), torch.nan), "finite numbers; row 0, column 0"),
        (torch.zeros(0, 4), "no rows"),
        (np.array([["a", "b", "c", "d"]]), "row 0, column 0 holds 'a'"),
        (4.0, "array with rows"),
    ],
)
def test_inputs_that_cannot_be_predicted_are_refused(fitted, inputs, message):
    with pytest.raises(be.DataError, match=message):
        fitted.predict(inputs)


def test_it_says_what_it_is(fitted):
    assert repr(fitted) == "Ensemble(3 x Sequential, DeepEnsemble, vmap)"


def test_several_regression_outputs(generator):
    x = torch.randn(60, 4, generator=generator)
    y = x @ torch.randn(4, 2, generator=generator)
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Gaussian(noise=0.1)), (x, y), epochs=3)
    predictive = ensemble.predict(x)
    assert predictive.mean.shape == predictive.variance.shape == (60, 2)
    assert predictive.log_prob(y).shape == (60,)


def test_small_regression_means_have_the_shape_of_their_targets():
    """Outputs (row, 1) and targets (row,) must never broadcast to a square."""
    x = table()[0]
    ensemble = quick_fit(be.Task(lambda: small_mlp()[0:1].append(nn.Linear(8, 1)), be.Gaussian()), (x, x[:, 0]))
    assert ensemble.predict(x).mean.shape == (48,)


def test_inputs_per_member_of_another_number_of_members_are_refused(fitted):
    for count in (2, 4):
        with pytest.raises(be.DataError, match=f"that of {count} members, but there are 3"):
            fitted.predict(be.PerMember(torch.zeros(count, 5, 4)))


def test_an_ensemble_shows_in_a_notebook_what_it_is():
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    text = ensemble._repr_html_()
    assert text.startswith("<table>")
    for words in ("DeepEnsemble", "Sequential, 58 parameters", "Categorical", "VaguePrior", "last loss of members"):
        assert words in text


def test_networks_from_anywhere_predict_as_members_do():
    x, y = table()
    fitted = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y))
    given = be.Ensemble.of_networks(fitted.task, fitted.draw().take(torch.tensor([2, 0])), fitted.executor)
    assert given.num_members == 2
    assert torch.equal(given.predict(x).member_probs, fitted.predict(x).member_probs[[2, 0]])
    assert given.evaluate((x, y)) == be.metrics.summarise(given.predict(x), y)
