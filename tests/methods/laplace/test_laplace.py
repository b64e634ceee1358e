import importlib.util
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.core.seeds import scoped
from bayesemble.methods import METHODS
from bayesemble.methods.laplace import laplace
from bayesemble.methods.laplace.laplace import SLOT, Laplace
from bayesemble.task.likelihoods import Heteroscedastic
from helpers import all_leaves, largest_difference, norm_convnet, norm_mlp, quick_fit, small_mlp, table

needs_curvlinops = pytest.mark.skipif(
    importlib.util.find_spec("curvlinops") is None, reason="curvlinops-for-pytorch, the extra 'laplace', is missing"
)
STRUCTURES = ["full", pytest.param("kron", marks=needs_curvlinops), "diag"]


def task(model=small_mlp, **options) -> be.Task:
    return be.Task(model, options.pop("likelihood", be.Categorical()), **options)


def outputs(ensemble: be.Ensemble, x: Tensor, executor=None) -> Tensor:
    """Outputs of the draws as the method reads them, `(draw, row, output)`."""
    function = partial(ensemble.method.member_outputs, ensemble.state, ensemble.task)
    return (executor or be.Loop()).outputs(lambda p, b, i, _: function(p, b, i), ensemble.draw(), x, False)


def test_networks_can_be_drawn_once_training_is_over():
    ensemble = quick_fit(task(), table(), Laplace())
    assert Laplace().can_draw(ensemble.state)
    assert not Laplace().can_draw(Laplace().init(ensemble.task, 0))


# --- draws ---


@pytest.mark.parametrize("structure", STRUCTURES)
def test_draws_have_the_mean_and_spread_of_the_gaussian(structure):
    ensemble = quick_fit(task(), table(), Laplace(structure=structure, draws=4000))
    drawn, center, slot = ensemble.draw(), ensemble.state.members.params, ensemble.state.slots[SLOT]
    away = torch.cat([(drawn.params[name] - center[name]).flatten(1) for name in ("2.weight", "2.bias")], 1).double()
    if structure == "kron":
        left, right, std = (slot[f"{key}.0"][0].double() for key in ("left", "right", "std"))
        variance = torch.einsum("ij,jk,lk->il", left**2, std**2, right**2)
        variance = torch.cat([variance[:, :-1].flatten(), variance[:, -1]])
    else:
        right = slot["right.0"][0].double() if structure == "full" else torch.eye(18).double()
        variance = (right**2 @ slot["std.0"][0, 0].double() ** 2).flatten()
    assert (away.mean(0).abs() < 4.5 * (variance / 4000).sqrt()).all()
    assert (away.var(0) / variance - 1).abs().max() < 4.5 * (2 / 4000) ** 0.5


def test_all_else_is_shared_and_training_is_that_of_a_deep_ensemble():
    method = Laplace(num_members=1)
    ensemble, plain = quick_fit(task(), table(), method), quick_fit(task(), table(), be.DeepEnsemble(num_members=1))
    assert largest_difference(all_leaves(ensemble), all_leaves(plain)) == 0
    drawn = ensemble.draw(50)
    assert drawn.shared == {"0.weight", "0.bias"}
    assert drawn.params["2.weight"].shape == (50, 2, 8)
    assert quick_fit(task(), table(), method).predict(table()[0]).probs.isfinite().all()


@pytest.mark.parametrize("method", [Laplace(), Laplace(num_members=2, select="all")], ids=["one", "two"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_network_depends_on_its_number_alone(method, structure):
    method = Laplace(num_members=method.num_members, select=method.select, structure=structure)
    state = quick_fit(task(), table(), method).state
    whole = method.draw(state, range(6), seed=3).params["2.weight"]
    parts = [method.draw(state, numbers, seed=3).params["2.weight"] for numbers in (range(1), range(1, 6))]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(whole, method.draw(state, range(6), seed=4).params["2.weight"])


def test_a_mixture_is_its_parts_side_by_side():
    """Each member has the Gaussian that it would have alone, draws go around, and weights are heeded."""
    mixture = quick_fit(task(), table(), Laplace(num_members=3))
    alone = quick_fit(task(), table(), Laplace(num_members=1))
    for name, leaf in alone.state.slots[SLOT].items():
        torch.testing.assert_close(mixture.state.slots[SLOT][name][0].abs(), leaf[0].abs(), rtol=1e-3, atol=1e-4)
    drawn, center = mixture.draw(7).params["0.weight"], mixture.state.members.params["0.weight"]
    assert all(torch.equal(drawn[number], center[number % 3]) for number in range(7))
    first = mixture.keep([1]).state.slots[SLOT]
    assert torch.equal(first["std.0"][0], mixture.state.slots[SLOT]["std.0"][1])
    drawn = mixture.reweight([0.75, 0.25, 0]).draw(6)  # from the two that weigh anything
    assert all(torch.equal(drawn.params["0.weight"][number], center[number % 2]) for number in range(6))
    torch.testing.assert_close(drawn.weights, torch.tensor([3, 1, 3, 1, 3, 1], dtype=torch.float64) / 12)


# --- the linear network ---


def smooth_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


@pytest.mark.parametrize("num_members", [1, 2])
def test_glm_outputs_are_those_of_the_network_made_linear(num_members):
    x, y = table()
    method = Laplace(num_members=num_members, select="all", draws=6)
    ensemble = quick_fit(task(smooth_mlp), (x.double(), y), method)
    found, drawn = outputs(ensemble, x.double()), ensemble.draw()
    for number in range(6):
        params, buffers = ensemble.state.members.split()[number % num_members]
        slopes = torch.func.jacrev(lambda own, b=buffers: ensemble.task.forward(own, b, x.double()))(params)
        expected = ensemble.task.forward(params, buffers, x.double())
        for name, slope in slopes.items():
            away = drawn.params[name][number] - params[name]
            expected = expected + slope.flatten(2) @ away.flatten()
        torch.testing.assert_close(found[number], expected)
    assert not torch.allclose(found, ensemble.executor.outputs(_plain(ensemble), drawn, x.double(), False))
    torch.testing.assert_close(outputs(ensemble, x.double(), be.Vmap()), found)


def _plain(ensemble: be.Ensemble):
    return lambda params, buffers, inputs, _: ensemble.task.forward(params, buffers, inputs)


def test_linear_outputs_have_the_variance_of_the_formula():
    """Var f(x) = J S J', the same for all draws of any structure."""
    x, y = table()
    x, method = x.double(), Laplace(select="all", draws=3000)
    ensemble = quick_fit(task(smooth_mlp), (x, y), method)
    slot, (params, buffers) = ensemble.state.slots[SLOT], ensemble.state.members.split()[0]
    root = slot["right.0"][0] * slot["std.0"][0]
    slopes = torch.func.jacrev(lambda own: ensemble.task.forward(own, buffers, x[:3]))(params)
    jacobian = torch.cat([slopes[name].flatten(2) for name in params], 2)
    expected = (jacobian @ root).square().sum(2)
    found = outputs(ensemble, x[:3], be.Vmap()).var(0)
    assert (found / expected - 1).abs().max() < 4.5 * (2 / 3000) ** 0.5


def test_for_the_last_layer_linear_and_sampled_networks_are_the_same():
    ensemble, x = quick_fit(task(), table(), Laplace()), table()[0]
    sampled = quick_fit(task(), table(), Laplace(predict="samples"))
    torch.testing.assert_close(outputs(ensemble, x), outputs(sampled, x), rtol=0, atol=1e-5)
    torch.testing.assert_close(sampled.predict(x).probs, outputs(ensemble, x).softmax(2).mean(0), rtol=0, atol=1e-5)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.body(packed)[1][0][-1])


@pytest.mark.parametrize("num_members", [1, 2])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_network_without_derivatives_of_a_kind_is_run_for_its_features(structure, num_members):
    """Sequences of different lengths, packed: neither vmap nor forward mode can run them."""
    x, y = table()
    x, lengths = x.unsqueeze(1).expand(-1, 3, -1).contiguous(), torch.arange(len(x)) % 3 + 1
    method = Laplace(structure=structure, num_members=num_members)
    ensemble = quick_fit(task(Packed), ((x, lengths), y), method)
    drawn = ensemble.draw(5)
    plain = be.Loop().outputs(_plain(ensemble), drawn, (x, lengths), False)
    found = ensemble.predict((x, lengths), num_draws=5).member_probs
    torch.testing.assert_close(found, plain.softmax(-1), rtol=0, atol=1e-5)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(x) * scale


@pytest.mark.parametrize("likelihood", [be.Gaussian(), be.Poisson()])
@pytest.mark.parametrize("odd", ["no row", "a later batch", "in prediction"])
def test_rows_whose_features_do_not_tell_their_outputs_are_run_through_the_network(likelihood, odd):
    """Scaled by 1, outputs are those of the head, by another number they are not; nothing may depend on the way."""
    x, y = table()
    scale, ahead = torch.ones(48, 1), torch.ones(48, 1)
    if odd == "a later batch":
        scale[-5:] = 3
    elif odd == "in prediction":
        ahead[7:] = 3
    targets = y[:, None].expand(-1, 2).float()
    ensemble = quick_fit(task(Scaled, likelihood=likelihood), ((x, scale), targets), Laplace())
    drawn = ensemble.draw(5)
    plain = be.Loop().outputs(_plain(ensemble), drawn, (x, ahead), False)
    found = ensemble.predict((x, ahead), num_draws=5).member_mean
    torch.testing.assert_close(found, plain.exp() if isinstance(likelihood, be.Poisson) else plain)
    if isinstance(likelihood, be.Gaussian):
        design = torch.cat([x, torch.ones(48, 1)], 1).double()
        curvature = (design * scale).T @ (design * scale)
        scales = torch.tensor([ensemble.task.scales["head.weight"]] * 4 + [ensemble.task.scales["head.bias"]])
        covariance = (curvature + torch.diag(scales.double() ** -2)).inverse()
        expected = (ahead.double() * design @ covariance * design * ahead).sum(1).float()
        torch.testing.assert_close(ensemble.predict((x, ahead)).epistemic[:, 0], expected, rtol=1e-4, atol=1e-6)


def test_a_prediction_runs_the_body_once_for_each_member_and_batch():
    rows, body = [], small_mlp

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = body()

        def forward(self, x: Tensor) -> Tensor:
            rows.append(len(x))
            return self.net(x)

    ensemble = quick_fit(task(Counted), table(), Laplace(num_members=2))
    rows.clear()
    ensemble.predict(table()[0], num_draws=50)
    assert rows.count(48) == 2
    assert sum(rows) < 2 * 60


# --- normal outputs ---


@pytest.mark.parametrize("select", ["output", "all"])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("noise", [0.5, "learned"])
def test_a_normal_prediction_is_the_limit_of_many_draws(select, structure, noise):
    """Mean, epistemic and aleatoric variance of a mixture of two, against draws within their standard errors."""
    x, y = table()
    targets = torch.stack([x[:, 0], x[:, 1] * y], dim=1).double()
    method = Laplace(num_members=2, select=select, structure=structure)
    ensemble = quick_fit(task(smooth_mlp, likelihood=be.Gaussian(noise)), (x.double(), targets), method)
    ensemble, num = ensemble.reweight([0.3, 0.7]), 1000
    few = x[:4].double()
    exact, drawn = ensemble.predict(few), ensemble.predict(few, num_draws=num)
    assert (exact.num_members, drawn.num_members) == (2, num)
    torch.testing.assert_close(exact.weights, torch.tensor([0.3, 0.7], dtype=torch.float64))
    errors = 5 * (exact.epistemic / num * 2).sqrt()  # the weights of draws differ, so a few more are needed
    assert ((exact.mean - drawn.mean).abs() < errors).all()
    for member in range(2):
        own = drawn.member_mean[member::2]
        assert (own.var(0) / exact.mean_variance[member] - 1).abs().max() < 5 * (4 / num) ** 0.5
        assert ((own.mean(0) - exact.means[member]).abs() < 5 * (2 * exact.mean_variance[member] / num).sqrt()).all()
    between = (exact.means - exact.mean).square()
    expected = torch.tensordot(exact.weights, between + exact.mean_variance, dims=1)
    torch.testing.assert_close(exact.epistemic, expected)
    torch.testing.assert_close(exact.aleatoric, drawn.aleatoric, rtol=1e-4 if noise == "learned" else 1e-9, atol=1e-9)
    torch.testing.assert_close(exact.variance, exact.aleatoric + exact.epistemic)


def test_samples_and_other_likelihoods_are_drawn():
    x, y = table()
    for likelihood, settings in ((be.Gaussian(), {"predict": "samples"}), (be.Poisson(), {})):
        model = partial(_regressor, 1)
        ensemble = quick_fit(task(model, likelihood=likelihood), (x, y.float()), Laplace(draws=7, **settings))
        assert ensemble.predict(x).num_members == 7


# --- all kinds of tasks ---


@pytest.mark.parametrize(
    "likelihood",
    [
        be.Gaussian(0.5),
        be.Gaussian("learned"),
        be.HeteroscedasticGaussian(),
        be.HeteroscedasticStudent(),
        be.Poisson(),
        be.Bernoulli(),
    ],
)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("select", ["output", "all"])
def test_every_likelihood(likelihood, structure, select):
    x, y = table()
    num = 2 if isinstance(likelihood, Heteroscedastic) else 1
    model = partial(_regressor, num)
    method = Laplace(num_members=2, select=select, structure=structure, draws=5)
    ensemble = quick_fit(task(model, likelihood=likelihood), (x, y.float()), method)
    assert ensemble.predict(x).log_prob(y.float()).isfinite().all()
    assert outputs(ensemble, x).isfinite().all()


def _regressor(num: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, num))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_convolutions_with_batch_norm(structure):
    """Norm layers are run as at prediction; where they cannot be part of it they are refused, not passed over."""
    x = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data, wish = (x, torch.arange(24) % 4), (nn.Conv2d, nn.Linear) if structure == "kron" else "all"
    ensemble = quick_fit(task(norm_convnet), data, Laplace(select=wish, structure=structure, draws=3))
    assert ensemble.predict(x).probs.isfinite().all()
    assert outputs(ensemble, x).isfinite().all()
    if structure == "kron":
        with pytest.raises(SettingError, match="'1' is BatchNorm2d"):
            quick_fit(task(norm_convnet), data, Laplace(select="all", structure="kron"))


def test_inputs_in_a_dict_and_an_output_by_name():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
            return {"logits": self.head(x) * scale.unsqueeze(1)}

    x, y = table()
    inputs = {"x": x, "scale": torch.ones(len(x))}
    for structure in ["full", *(["kron"] if importlib.util.find_spec("curvlinops") else [])]:
        ensemble = quick_fit(task(Named, output="logits"), (inputs, y), Laplace(structure=structure))
        assert ensemble.predict(inputs).probs.isfinite().all()


def test_data_of_each_member():
    x, y = table()
    own = be.PerMember(torch.stack([x, 3 * x]), torch.stack([y, y]))
    slot = quick_fit(task(), own, Laplace(num_members=2)).state.slots[SLOT]
    assert not torch.allclose(slot["std.0"][0], slot["std.0"][1])


def test_many_outputs_do_not_ask_for_much_memory(monkeypatch):
    """Gradients of rows and outputs come a few at a time, whatever their number."""
    sizes = []
    cat = torch.cat

    def watched(tensors, *args, **kwargs):
        found = cat(tensors, *args, **kwargs)
        sizes.append(found.numel())
        return found

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("bayesemble.methods.laplace.gauss_newton.BUDGET", 1 << 20)
    monkeypatch.setattr(torch, "cat", watched)
    model = partial(nn.Linear, 16, 200)
    for own in (model, lambda: nn.Sequential(model(), nn.Tanh())):
        quick_fit(task(own), (x, torch.arange(8)), Laplace(structure="diag"), epochs=1)
    assert max(sizes) <= (1 << 20) // 8


# --- the prior ---


def test_the_prior_can_be_chosen_by_the_evidence():
    methods = [Laplace(prior="marginal_likelihood", structure=kind) for kind in ("full", "diag")]
    for prior in (None, be.LaplacePrior(), be.NormalPrior()):
        for method in methods:
            slot = quick_fit(task(prior=prior), table(), method).state.slots[SLOT]
            assert 0 < slot["prior_precision"].item() < 1e6
            assert slot["log_evidence"].isfinite().all()
    assert "prior_precision" not in quick_fit(task(), table(), Laplace()).state.slots[SLOT]


def test_a_tighter_prior_leaves_less_to_draw():
    wide, tight = (
        quick_fit(task(prior=be.NormalPrior(std=std)), table(), Laplace()).draw(200).params["2.weight"].std(0).mean()
        for std in (1.0, 0.01)
    )
    assert tight < 0.02 < wide


# --- saving, resuming ---


@pytest.mark.parametrize("structure", STRUCTURES)
def test_saved_and_loaded_it_draws_the_same(structure, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "laplace", Laplace)
    method = Laplace(num_members=2, select="0.*,2.*", structure=structure)
    ensemble = quick_fit(task(), table(), method)
    ensemble.save(tmp_path)
    loaded = be.load(tmp_path, small_mlp)
    assert loaded.method == method
    assert largest_difference(loaded.draw(5).params, ensemble.draw(5).params) == 0


def test_more_epochs_make_new_gaussians(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "laplace", Laplace)
    whole = quick_fit(task(), table(), Laplace(), epochs=4)
    quick_fit(task(), table(), Laplace(), epochs=2, checkpoint=tmp_path)
    longer = quick_fit(task(), table(), Laplace(), epochs=4, checkpoint=tmp_path, resume=True)
    assert largest_difference(longer.state.slots[SLOT], whole.state.slots[SLOT]) == 0


def test_validation_while_training_is_by_the_members_themselves():
    ensemble = quick_fit(task(), table(), Laplace(draws=3), validation=table(), keep_best=True)
    plain = quick_fit(task(), table(), be.DeepEnsemble(num_members=1), validation=table(), keep_best=True)
    losses = [[row["validation_loss"] for row in one.history] for one in (ensemble, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert SLOT in ensemble.state.slots


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"structure": "lowrank"}, "structure is 'full', 'kron' or 'diag', got 'lowrank'"),
        ({"predict": "probit"}, "predict is 'glm' or 'samples', got 'probit'"),
        ({"prior": "grid"}, "prior is 'task' or 'marginal_likelihood', got 'grid'"),
        ({"draws": 0}, "draws is a whole number from 1, got 0"),
        ({"anchored": True}, "leave it off"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        Laplace(**settings)


@pytest.mark.parametrize(
    ("task", "method", "sentence"),
    [
        (task(), Laplace(select="head.*"), "means no parameter"),
        (task(prior=None), Laplace(), "prior=None.*marginal_likelihood"),
        (task(prior=be.LaplacePrior()), Laplace(), "NormalPrior"),
        (be.Task([small_mlp, norm_mlp], be.Categorical()), Laplace(num_members=2), "one architecture"),
    ],
)
def test_tasks_that_do_not_fit_are_refused_before_training(task, method, sentence):
    with pytest.raises(SettingError, match=sentence):
        quick_fit(task, table(), method)


def test_what_does_not_fit_into_memory_is_refused_before_training(monkeypatch):
    """A whole covariance of a million numbers is eight terabytes; the sentence names what fits."""
    wide = task(lambda: nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.Linear(1000, 2)))
    method = Laplace(select="all")
    with pytest.raises(SettingError, match=r"1008002 selected numbers.*GB.*'kron' needs .*'diag' needs"):
        method.init(wide.bind(48, table()[0]), 0)
    monkeypatch.setattr(laplace, "available_memory", lambda: 1000.0)
    with pytest.raises(SettingError, match="select fewer leaves"):
        method.init(task().bind(48, table()[0]), 0)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_half_of_what_is_free_may_be_filled_to_the_last_byte(spare, fits, monkeypatch):
    method, bound = Laplace(select="all", num_members=2), task().bind(48, table()[0])
    need = method._memory("full", method._plan(bound)[1], bound)
    monkeypatch.setattr(laplace, "available_memory", lambda: 2.0 * (need + spare))
    if fits:
        method._plan(bound)
    else:
        with pytest.raises(
            SettingError, match=r"structure='full' of 58 .* structure='kron' needs .* and structure='diag'"
        ):
            method._plan(bound)


@pytest.mark.parametrize(("most", "fits"), [(58, True), (57, False)])
def test_the_largest_whole_covariance_is_taken(most, fits, monkeypatch):
    monkeypatch.setattr(laplace, "_MOST_WHOLE", most)
    assert laplace._is_quick("full", list(task().shapes), task().bind(48, table()[0])) == fits
    assert laplace._is_quick("diag", list(task().shapes), task().bind(48, table()[0]))


def test_the_whole_covariance_of_a_thousand_classes_is_refused_before_training(monkeypatch):
    """Memory or not: its decomposition would take an hour. What fits is named, and works."""
    monkeypatch.setattr(laplace, "available_memory", lambda: 1e12)
    x, many = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), partial(nn.Linear, 4, 3000)
    data = (x, torch.arange(64))
    with pytest.raises(SettingError, match=r"15000 selected numbers.*at most; structure='kron' needs .*'diag' needs"):
        quick_fit(task(many), data, Laplace())
    assert (
        quick_fit(task(partial(nn.Linear, 4, 1000)), data, Laplace(structure="kron")).predict(x).probs.isfinite().all()
    )


def test_without_the_package_kron_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "curvlinops", None)
    with pytest.raises(be.MissingExtraError, match="needs the package curvlinops-for-pytorch"):
        Laplace(select="all", structure="kron").init(task().bind(48, table()[0]), 0)  # before anything is trained
    quick_fit(task(), table(), Laplace(structure="kron"))  # an output layer has no need of it


# --- another implementation ---


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_against_laplace_torch(structure):
    other = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    x, y = table()
    ensemble = quick_fit(task(), (x, y), Laplace(structure=structure))
    with scoped(0):
        network = small_mlp()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(ensemble.state.members.params[name][0])
        found = other.Laplace(network, "classification", subset_of_weights="last_layer", hessian_structure=structure)
        found.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16))
    slot = ensemble.state.slots[SLOT]
    root = slot["right.0"][0] * slot["std.0"][0] if structure == "full" else slot["std.0"][0, 0].diag()
    expected = found.posterior_covariance if structure == "full" else found.posterior_variance.diag()
    torch.testing.assert_close(root @ root.T, expected, rtol=1e-3, atol=1e-4)
    assert slot["log_evidence"].item() == pytest.approx(found.log_marginal_likelihood().item(), abs=1e-3)
