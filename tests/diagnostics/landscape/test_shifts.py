import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape import divergence_under_shift, sample_subspace
from bayesemble.diagnostics.landscape.measure import as_ensemble
from helpers import quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), epochs=4, record="epoch")


def test_it_is_the_mutual_information_of_members_and_of_samples_around_each(ensemble):
    shifts = {"test": table(seed=1)[0], "far": 10 * table(seed=2)[0]}
    found = divergence_under_shift(ensemble, shifts, kinds=("members", "dropout"), num=4, seed=3)
    assert found.names == ["test", "far"]
    for place, x in enumerate(shifts.values()):
        expected = be.metrics.jensen_shannon(ensemble.predict(x))
        assert float(found.divergence["members"][place]) == pytest.approx(expected, abs=1e-7)
        around = [
            as_ensemble(ensemble, sample_subspace(ensemble, m, "dropout", 4, seed=3)).predict(x) for m in range(3)
        ]
        mean = sum(be.metrics.jensen_shannon(one) for one in around) / 3
        assert float(found.divergence["dropout"][place]) == pytest.approx(mean, abs=1e-7)


def test_equal_networks_do_not_differ_and_contradicting_ones_differ_by_log_2(ensemble):
    equal = divergence_under_shift(ensemble, {"a": table()[0]}, kinds=("random",), scales={"random": 0.0})
    assert float(equal.divergence["random"]) == pytest.approx(0, abs=1e-6)
    two = ensemble.keep([0, 1])
    params = two.state.members.params
    for name in ("0.weight", "0.bias", "2.weight"):
        params[name].zero_()
    params["2.bias"].copy_(torch.tensor([[50.0, 0.0], [0.0, 50.0]]))
    found = divergence_under_shift(two, {"a": table()[0]}, kinds=("members",))
    assert float(found.divergence["members"]) == pytest.approx(0.6931471805599453, abs=1e-6)


def test_what_cannot_be_compared_is_refused(ensemble):
    with pytest.raises(be.SettingError, match="two networks or more"):
        divergence_under_shift(ensemble.keep([0]), {"a": table()[0]})
    with pytest.raises(be.SettingError, match="no rows were given"):
        divergence_under_shift(ensemble, {})
    x = table()[0]
    numbers = quick_fit(be.Task(small_mlp, be.Gaussian(noise=0.5)), (x, x[:, :2]))
    with pytest.raises(be.SettingError, match="this task predicts numbers"):
        divergence_under_shift(numbers, {"a": x}, kinds=("members",))
