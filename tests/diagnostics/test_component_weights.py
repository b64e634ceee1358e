import itertools

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.diagnostics.weighting import stacking_weights
from helpers import norm_mlp, quick_fit, small_mlp, table


def fitted(method: be.Patched, model=norm_mlp) -> be.Ensemble:
    return quick_fit(be.Task(model, be.Categorical()), table(48), method, epochs=6)


def of_all_components(ensemble: be.Ensemble, data) -> torch.Tensor:
    """log p(y_n|x_n) of the network of each component of one layer, `(component, row)`."""
    network = ensemble.task.module.eval()
    found = []
    for k in range(3):
        leaves = {name: leaf[0] for name, leaf in ensemble.state.members.params.items()}
        for name, others in ensemble.state.slots["components"].items():
            if k:
                leaves[name.removeprefix("components.")] = others[0, k - 1]
        with torch.no_grad():
            outputs = torch.func.functional_call(network, leaves, (data[0],)).double()
        found.append(outputs.log_softmax(1)[torch.arange(len(data[1])), data[1]])
    return torch.stack(found)


def test_for_one_layer_it_is_stacking():
    ensemble, held_out = fitted(be.EMP(components=3, select="output", jitter=2.0), small_mlp), table(40, seed=5)
    log_probs = of_all_components(ensemble, held_out)
    best = stacking_weights(log_probs)
    stacked = be.stack_components(ensemble, held_out)
    ((key, logits),) = stacked.state.slots["mixing"].items()
    assert key == "mixing.layer-0"
    found = logits[0].double().softmax(0)

    def score(weights: torch.Tensor) -> float:
        return float((weights.log()[:, None] + log_probs).logsumexp(0).mean())

    assert score(found.clamp(min=1e-30)) == pytest.approx(score(best.clamp(min=1e-30)), abs=1e-6)
    assert score(found) > score(torch.full((3,), 1 / 3, dtype=torch.float64))
    drawn = stacked.draw(600).params["2.bias"]
    parts = [ensemble.state.members.params["2.bias"][0], *ensemble.state.slots["components"]["components.2.bias"][0]]
    shares = torch.tensor([float((drawn == part).all(1).double().mean()) for part in parts])
    assert (shares - found.float()).abs().max() < 4 * 0.5 / 600**0.5


@pytest.mark.parametrize("num_networks", [4, 2])
def test_two_layers_are_weighed_as_well_as_any_weights_on_a_grid(num_networks):
    """With all four combinations; of two networks that are drawn, it only must not fall."""
    ensemble, held_out = fitted(be.EMP(components=2, jitter=1.0)), table(40, seed=5)
    stacked = be.stack_components(ensemble, held_out, num_networks=num_networks)
    logits = [leaf[0].double() for leaf in stacked.state.slots["mixing"].values()]
    assert all(leaf.softmax(0).sum() == pytest.approx(1) for leaf in logits)
    if num_networks < 4:
        return
    combinations = list(itertools.product(range(2), range(2)))
    assigned = {
        name: torch.tensor([pair[0 if name.startswith("1") else 1] for pair in combinations])
        for name in ensemble.state.slots["patches"]
    }
    networks = ensemble.method.networks_of(ensemble.state, [0] * 4, assigned)
    plain = be.Ensemble(ensemble.task, be.DeepEnsemble(num_members=4), State(networks), be.Loop())
    log_probs = plain.predict(held_out[0]).member_log_prob(held_out[1]).double()

    def score(first: torch.Tensor, second: torch.Tensor) -> float:
        likely = torch.stack([first[i] + second[j] for i, j in combinations])
        return float((likely[:, None] + log_probs).logsumexp(0).mean())

    grid = [torch.tensor([p, 1 - p], dtype=torch.float64).log() for p in torch.linspace(1e-9, 1 - 1e-9, 41).tolist()]
    best = max(score(one, other) for one in grid for other in grid)
    assert score(*(leaf.log_softmax(0) for leaf in logits)) > best - 1e-5


def test_weights_are_saved_and_training_can_go_on(tmp_path):
    ensemble = fitted(be.EMP(components=2, num_members=2, jitter=1.0, rate=0.1))
    stacked = be.stack_components(ensemble, table(40, seed=5))
    stacked.save(tmp_path / "stacked")
    again = be.load(tmp_path / "stacked", norm_mlp)
    x = table(10, seed=6)[0]
    torch.testing.assert_close(again.predict(x).probs, stacked.predict(x).probs)
    assert not torch.allclose(stacked.predict(x).probs, ensemble.predict(x).probs)
    assert stacked.state.slots["first_moment"].keys() >= stacked.state.slots["mixing"].keys()


def test_what_has_no_few_components_is_refused():
    held_out = table(40, seed=5)
    with pytest.raises(SettingError, match="DeepEnsemble has no components to weigh"):
        be.stack_components(quick_fit(be.Task(norm_mlp, be.Categorical()), table(48)), held_out)
    with pytest.raises(SettingError, match="here element have"):
        be.stack_components(fitted(be.ECMP(components=2)), held_out)
    with pytest.raises(SettingError, match="statistics='own' belong to networks"):
        be.stack_components(fitted(be.EMP(components=2, statistics="own", draws=3)), held_out)
    with pytest.raises(SettingError, match="at least two networks"):
        be.stack_components(fitted(be.EMP(components=2)), held_out, num_networks=1)
