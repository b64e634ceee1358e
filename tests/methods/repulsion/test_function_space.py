from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.core.seeds import scoped
from bayesemble.core.types import Batch, Clock
from bayesemble.methods.base import Context
from bayesemble.methods.repulsion import density_scores
from bayesemble.methods.repulsion.interacting import products
from helpers import all_leaves, dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def data(rows: int = 6) -> tuple[Tensor, Tensor]:
    x, y = table(rows)
    return x.double(), y + (x[:, 2] > 0)


def flat_jacobian(module: nn.Module, params: dict, x: Tensor) -> Tensor:
    """d f / d w of one member, `(outputs, weights)`."""
    jacobian = jacrev(lambda leaves: functional_call(module, leaves, (x,)).flatten())(params)
    return torch.cat([leaf.flatten(1) for leaf in jacobian.values()], 1)


def moved(method, task: be.Task, x: Tensor, y: Tensor, seed: int = 0, step: int = 0) -> tuple[State, Tensor]:
    """The state before, and what one plain SGD step adds to the weights of each member, per unit of learning rate."""
    bound = task.bind(len(x), x)
    state = method.init(bound, seed)
    before = state.clone()
    after, _ = method.step(state, Batch(x, y), Context(bound, be.Vmap(), Clock(step, 10, seed)))
    steps = [after.members.params[name] - leaf for name, leaf in before.members.params.items()]
    return before, torch.cat([leaf.flatten(1) for leaf in steps], 1) / method.learning_rate


PLAIN = {"num_members": 4, "space": "function", "optimizer": "sgd", "momentum": 0.0, "learning_rate": 1e-3}


@pytest.mark.parametrize("kind", [be.Repulsive, be.Stein])
@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("every", "step", "driving"), [(1, 0, 1.0), (3, 0, 0.6), (3, 1, 0.6)])
def test_a_step_is_the_explicit_jacobian_product(kind, calibrate, elsewhere, every, step, driving):
    """phi_i = J_i^T d (D s)_i + J'_i^T (d n D p - R f')_i with Jacobians written out, J' at the compared points.

    The prior over functions p acts at every n-th step, n times as strong; d is the factor on the driving force.
    """
    x, y = data()
    others = torch.randn(5, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    points = {"points": lambda generator: others} if elsewhere else {}
    method = kind(
        **PLAIN,
        calibrate=calibrate,
        features="outputs",
        prior_draws=4,
        prior_points=2,
        prior_every=every,
        driving=driving,
        **points,
    )
    state, found = moved(method, be.Task(tiny, be.Categorical()), x, y, step=step)
    with scoped(0):
        module = tiny()
    # The first network drawn from the prior is drawn anew at step 0, as it was drawn for the start of step 1.
    after = method.init(be.Task(tiny, be.Categorical()).bind(6, x), 0)
    method.step(after, Batch(x, y), Context(be.Task(tiny, be.Categorical()).bind(6, x), be.Loop(), Clock(0, 10, 0)))
    pool = after.slots["prior_draws"]

    where = others if elsewhere else x
    members = [params for params, _ in state.members.split()]
    f = torch.stack([functional_call(module, params, (where,)).flatten() for params in members])
    prior = torch.stack(
        [functional_call(module, {n: leaf[k] for n, leaf in pool.items()}, (where[:2],)).flatten() for k in range(4)]
    )
    pull = torch.zeros_like(f)
    if step % every == 0:
        pull[:, :6] = every * density_scores.ssge(prior, at=f[:, :6])
    slopes = []
    for params in members:
        outputs = functional_call(module, params, (x,)).detach().requires_grad_()
        slopes.append(
            torch.autograd.grad(-nn.functional.cross_entropy(outputs, y, reduction="sum"), outputs)[0].flatten()
        )
    s = torch.stack(slopes)
    bound = be.Task(tiny, be.Categorical()).bind(6, x)
    forces, pull = method.forces_in(bound, *products([f])), bound.prior_weight * pull
    drive = torch.eye(4, dtype=torch.float64) if forces.driving is None else forces.driving
    for i, params in enumerate(members):
        phi = flat_jacobian(module, params, x).T @ (driving * drive @ s)[i]
        phi = phi + flat_jacobian(module, params, where).T @ (driving * drive @ pull - forces.repelling @ f)[i]
        torch.testing.assert_close(found[i], phi / 6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("features", ["centred", "log_probs", "probs"])
@pytest.mark.parametrize("kind", [be.Repulsive, be.Stein])
def test_what_a_softmax_ignores_is_no_coordinate(kind, features):
    """Six rows of three classes are 12 coordinates: the repulsion is -J'^T R f' with R of that dimension."""
    x, y = data()
    task = be.Task(tiny, be.Categorical(), prior=None)
    method, without = (kind(**PLAIN, features=features, repulsion=repulsion) for repulsion in (0.7, 0.0))
    state, found = moved(method, task, x, y)
    with scoped(0):
        module = tiny()

    def compared(leaves):
        outputs = functional_call(module, leaves, (x,))
        kinds = {"log_probs": outputs.log_softmax, "probs": outputs.softmax}
        seen = kinds[features](-1) if features in kinds else outputs - outputs.mean(-1, keepdim=True)
        return seen.flatten()

    members = [params for params, _ in state.members.split()]
    f = torch.stack([compared(params) for params in members])
    push = -0.7 * method.forces(products([f])[0], 12).repelling @ f
    slopes = [torch.cat([leaf.flatten(1) for leaf in jacrev(compared)(params).values()], 1) for params in members]
    expected = torch.stack([slope.T @ own for slope, own in zip(slopes, push, strict=True)]) / 6
    torch.testing.assert_close(found - moved(without, task, x, y)[1], expected, rtol=1e-6, atol=1e-8)


def test_members_of_svgd_share_the_prior_over_weights_as_they_share_the_likelihood():
    """A linear model has one Jacobian J for all: phi = D (J^T s + p) - R f J with the prior's gradient p."""
    x, y = data()
    task = be.Task(lambda: nn.Linear(4, 3, bias=False).double(), be.Categorical(), be.NormalPrior(std=0.5))
    method = be.Stein(**PLAIN, features="outputs", function_prior=False, driving=0.6)
    state, found = moved(method, task, x, y)
    w = state.members.params["weight"]
    f = (x @ w.mT).flatten(1)
    one_hot = nn.functional.one_hot(y, 3).double()
    slope = ((one_hot - (x @ w.mT).softmax(-1)).mT @ x).flatten(1)
    forces = method.forces(*products([f]))
    push = ((forces.repelling @ f).unflatten(1, (6, 3)).mT @ x).flatten(1)
    expected = 0.6 * forces.driving @ (slope - w.flatten(1) / 0.5**2) - push
    torch.testing.assert_close(found, expected / 6)


@pytest.mark.parametrize("executor", ["loop", be.Vmap(), be.Vmap(chunk=2)], ids=str)
@pytest.mark.parametrize("make", [small_mlp, norm_mlp, dropout_mlp])
def test_executors_agree(executor, make):
    # Plain SGD: a bias before batch norm has gradient 0, which Adam would blow up from rounding.
    method = be.Repulsive(num_members=5, space="function", optimizer="sgd", learning_rate=0.1)
    reference = quick_fit(be.Task(make, be.Categorical()), table(), method)
    other = quick_fit(be.Task(make, be.Categorical()), table(), method, executor=executor)
    assert largest_difference(all_leaves(reference), all_leaves(other)) < 2e-5


@pytest.mark.parametrize("likelihood", [be.Gaussian("learned"), be.HeteroscedasticGaussian()], ids=str)
def test_without_repulsion_and_prior_it_is_a_deep_ensemble(likelihood):
    """Also for leaves of the likelihood, such as a learned noise."""
    x, _ = table()
    y = x[:, :1] if isinstance(likelihood, be.Gaussian) else x[:, 0]
    outputs = 1 if isinstance(likelihood, be.Gaussian) else 2
    task = be.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs)), likelihood, prior=None)
    calm = quick_fit(task, (x, y), be.Repulsive(num_members=3, space="function", repulsion=0.0))
    plain = quick_fit(task, (x, y), be.DeepEnsemble(num_members=3))
    assert largest_difference(all_leaves(calm), all_leaves(plain)) < 1e-6


class Branching(be.Gaussian):
    """A likelihood with a branch on values, which vmap cannot run."""

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: dict) -> Tensor:
        found = super().log_prob(outputs, targets, leaves)
        return found if float(outputs.detach().mean()) < 1e6 else torch.zeros_like(found)


def test_in_the_loop_the_likelihood_runs_member_by_member():
    x, _ = table()
    method, fitted = be.Repulsive(num_members=3, space="function"), []
    for likelihood in (Branching(noise=0.5), be.Gaussian(noise=0.5)):
        task = be.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), likelihood)
        fitted.append(quick_fit(task, (x, x[:, 0]), method, executor="loop"))
    assert largest_difference(*(all_leaves(one) for one in fitted)) == 0


def test_the_prior_over_weights_can_be_kept():
    task = be.Task(small_mlp, be.Categorical(), prior=be.NormalPrior(std=0.1))
    method = be.Repulsive(num_members=3, space="function", repulsion=0.0, function_prior=False)
    calm, plain = quick_fit(task, table(), method), quick_fit(task, table(), be.DeepEnsemble(num_members=3))
    assert largest_difference(all_leaves(calm), all_leaves(plain)) < 1e-6
    assert "prior_draws" not in calm.state.slots


@pytest.mark.parametrize("space", [be.WeightSpace(), be.FunctionSpace(function_prior=False)])
def test_without_repulsion_the_driving_factor_is_a_smaller_rate(space):
    """It acts on likelihood and prior alike."""
    task, plain = be.Task(small_mlp, be.Categorical(), be.NormalPrior(std=0.1)), {"optimizer": "sgd", "momentum": 0.0}
    method = be.Repulsive(num_members=3, space=space, repulsion=0.0, driving=0.5, learning_rate=0.1, **plain)
    slow = quick_fit(task, table(), method)
    other = quick_fit(task, table(), be.DeepEnsemble(num_members=3, learning_rate=0.05, **plain))
    assert largest_difference(all_leaves(slow), all_leaves(other)) < 1e-6


def test_one_prior_draw_is_renewed_at_each_step():
    x, y = data()
    task = be.Task(tiny, be.Categorical()).bind(len(x), x)
    method = be.Repulsive(num_members=2, space="function", prior_draws=3, prior_every=1)
    state = method.init(task, 0)
    for number in range(5):
        before = state.slots["prior_draws"]["0.weight"].clone()
        state, _ = method.step(state, Batch(x, y), Context(task, be.Loop(), Clock(number, 10, 0)))
        changed = (state.slots["prior_draws"]["0.weight"] != before).flatten(1).any(1)
        assert changed.tolist() == [number % 3 == place for place in range(3)]


def test_a_common_shift_of_all_logits_is_not_seen():
    """A member whose logits are all one higher is the same function to a softmax."""
    x, y = data()
    task = be.Task(partial(nn.Linear, 4, 3, dtype=torch.float64), be.Categorical(), prior=None)
    bound = task.bind(len(x), x)
    for features in ("auto", "centred", "log_probs", "probs"):
        method = be.Repulsive(**PLAIN, features=features)
        steps = []
        for shift in (0.0, 1.0):
            state = method.init(bound, 0)
            state.members.params["bias"][1] += shift
            start = state.clone()
            state, _ = method.step(state, Batch(x, y), Context(bound, be.Loop(), Clock(0, 1, 0)))
            steps.append(state.members.params["weight"] - start.members.params["weight"])
        torch.testing.assert_close(steps[0], steps[1])


def test_noise_moves_the_points_and_is_reproducible():
    def fitted(seed):
        method = be.Repulsive(num_members=3, space="function", points="noise", noise=0.5)
        return all_leaves(quick_fit(be.Task(small_mlp, be.Categorical()), table(), method, seed=seed))

    batch = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.Repulsive(num_members=3, space="function"))
    assert largest_difference(fitted(0), fitted(0)) == 0
    assert largest_difference(fitted(0), all_leaves(batch)) > 0


def test_noise_around_the_rows_has_its_size():
    x, y = data()
    found = be.FunctionSpace(points="noise", noise=0.5)._points(Batch(x, y), Clock(3, 10, 7))
    normal = torch.randn(x.shape, generator=seeds.generator(7, "points", 3), dtype=x.dtype)
    torch.testing.assert_close(found, x + 0.5 * normal)


def test_points_elsewhere_leave_batch_norm_statistics_alone():
    far = be.RowSampler(100 + table()[0], 8)
    method = be.Repulsive(num_members=3, space="function", points=far, repulsion=0.0, function_prior=False)
    there = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), method)
    here = quick_fit(be.Task(norm_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=3))
    assert largest_difference(all_leaves(there), all_leaves(here)) < 1e-6


def test_adversarial_training_works_in_function_space_too():
    task = be.Task(small_mlp, be.Categorical(), prior=None)
    method = be.Repulsive(num_members=3, space="function", repulsion=0.0, adversarial=0.1)
    found = quick_fit(task, table(), method)
    plain = quick_fit(task, table(), be.DeepEnsemble(num_members=3, adversarial=0.1))
    assert largest_difference(all_leaves(found), all_leaves(plain)) < 1e-6


def test_a_run_with_prior_draws_can_be_resumed_bit_for_bit(tmp_path):
    task, method = be.Task(norm_mlp, be.Categorical()), be.Repulsive(num_members=3, space="function")
    whole = quick_fit(task, table(), method, epochs=4)

    def interrupt(state, row):
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick_fit(task, table(), method, epochs=4, checkpoint=tmp_path, on_epoch=interrupt)
    resumed = quick_fit(task, table(), method, epochs=4, checkpoint=tmp_path, resume=True)
    assert largest_difference(all_leaves(whole), all_leaves(resumed)) == 0


def test_a_sampler_is_named_in_the_saved_settings_and_needed_again(tmp_path):
    method = be.Repulsive(num_members=2, space="function", points=be.RowSampler(table()[0], 4))
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table(), method)
    ensemble.save(tmp_path)
    loaded = be.load(tmp_path, small_mlp)
    x, y = table()
    assert torch.equal(loaded.predict(x).probs, ensemble.predict(x).probs)
    with pytest.raises(SettingError, match="sampler of points was not saved"):
        loaded.method.step(loaded.state, Batch(x, y), Context(loaded.task, loaded.executor, Clock(0, 1, 0)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anchored": True}, "anchored=True shifts a prior over weights"),
        ({"bootstrap": True}, "members see different rows"),
    ],
)
def test_what_makes_no_sense_in_function_space_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.Repulsive(space="function", **settings))


def test_log_probs_need_classes():
    x, _ = table()
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian())
    with pytest.raises(SettingError, match=r"log_probs.*Categorical"):
        quick_fit(task, (x, x[:, :1]), be.Repulsive(space="function", features="log_probs"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": "softmax"}, "features is 'auto', 'outputs', 'centred', 'log_probs' or 'probs', got 'softmax'"),
        ({"points": "grid"}, "points is 'batch', 'noise' or a Sampler, got 'grid'"),
        ({"noise": -0.1}, "noise is a number from 0, got -0.1"),
        ({"prior_every": 0}, "prior_every is a whole number from 1, got 0"),
        ({"prior_points": 0}, "prior_points is a whole number from 1, got 0"),
        ({"prior_draws": 1}, "prior_draws is a whole number from 2, got 1"),
        ({"measure_every": 0}, "measure_every is a whole number from 1 or None, got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        be.FunctionSpace(**settings)


def test_norms_are_those_of_the_last_estimate():
    x, y = data()
    task = be.Task(tiny, be.Categorical()).bind(len(x), x)
    method = be.Repulsive(num_members=3, space=be.FunctionSpace(measure_every=3))
    state, norms = method.init(task, 0), []
    for number in range(5):
        state, info = method.step(state, Batch(x, y), Context(task, be.Loop(), Clock(number, 10, 0)))
        norms.append(info["repulsion_norm"])
    assert torch.equal(norms[0], norms[2])
    assert not torch.equal(norms[2], norms[3])
    assert torch.equal(norms[3], norms[4])


@pytest.mark.parametrize("prior", [be.NormalPrior(std=1.0), None], ids=["prior", "none"])
@pytest.mark.parametrize("function_prior", [True, False])
def test_steps_are_alike_but_for_the_first_and_where_points_are_drawn(prior, function_prior):
    x, _ = data()
    bound = be.Task(tiny, be.Gaussian(0.5), prior=prior).bind(len(x), x)

    def kind(step, points="batch"):
        own = {"prior_every": 2, "points": points, "function_prior": function_prior}
        method = be.Repulsive(num_members=3, space="function", **own)
        return method.kind_of_step(Context(bound, be.Vmap(), Clock(step, 10, 0)))

    assert kind(0) is None
    assert kind(1, points="noise") is None
    assert None not in (kind(1), kind(2))
    assert kind(1) == kind(3)
    assert kind(2) == kind(4)
    assert (kind(1) != kind(2)) == (function_prior and prior is not None)  # the prior acts at every second step


def test_what_is_drawn_ahead_is_what_the_step_draws():
    x, y = data()
    task = be.Task(tiny, be.Categorical()).bind(len(x), x)
    method = be.Repulsive(num_members=3, space="function", prior_every=2)
    context = Context(task, be.Vmap(), Clock(4, 10, 0))
    ahead, taken = (method.init(task, 0) for _ in range(2))
    before = {name: leaf.clone() for name, leaf in ahead.slots["prior_draws"].items()}
    method.draw_ahead(ahead, context)
    taken, _ = method.step(taken, Batch(x, y), context)
    for name, leaf in ahead.slots["prior_draws"].items():
        assert torch.equal(leaf, taken.slots["prior_draws"][name])
        assert [torch.equal(one, other) for one, other in zip(leaf, before[name], strict=True)].count(False) == 1
