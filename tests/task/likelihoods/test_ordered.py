import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.task.likelihoods import Ordinal


def test_probabilities_are_differences_of_cumulative_logits(generator):
    scores = 3 * torch.randn(6, generator=generator, dtype=torch.float64)
    leaves = {"first_cut": torch.tensor(-1.0).double(), "log_gaps": torch.tensor([0.3, -2.0]).double()}
    cuts = torch.tensor([-1.0, -1 + 1.3498588, -1 + 1.3498588 + 0.13533528]).double()
    upto = torch.cat([torch.sigmoid(cuts - scores[:, None]), torch.ones(6, 1)], 1)
    expected = torch.diff(upto, prepend=torch.zeros(6, 1).double(), dim=1)
    for label in range(4):
        found = Ordinal(4).log_prob(scores, torch.full((6,), label), leaves)
        torch.testing.assert_close(found.exp(), expected[:, label], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_at_the_start_all_classes_are_equally_probable(classes):
    likelihood = Ordinal(classes)
    leaves = {name: leaf.unsqueeze(0) for name, leaf in likelihood.leaves(()).items()}
    predictive = likelihood.predictive(torch.zeros(1, 1), leaves, torch.ones(1))
    torch.testing.assert_close(predictive.probs, torch.full((1, classes), 1 / classes))


def test_two_ordered_classes_are_a_bernoulli(generator):
    scores, labels = torch.randn(5, generator=generator), torch.tensor([0, 1, 1, 0, 1])
    leaves = Ordinal(2).leaves(())
    torch.testing.assert_close(Ordinal(2).log_prob(scores, labels, leaves), be.Bernoulli().log_prob(scores, labels, {}))


def test_the_information_is_the_expected_curvature(generator):
    scores = torch.randn(5, generator=generator, dtype=torch.float64)
    leaves = {"first_cut": torch.tensor(-1.0).double(), "log_gaps": torch.tensor([0.3, -0.4]).double()}

    def expected(score):
        probs = [Ordinal(4).log_prob(score.detach(), torch.tensor(k), leaves).exp() for k in range(4)]
        curvatures = [
            torch.autograd.functional.hessian(lambda f, k=k: -Ordinal(4).log_prob(f, torch.tensor(k), leaves), score)
            for k in range(4)
        ]
        return sum(p * c for p, c in zip(probs, curvatures, strict=True))

    torch.testing.assert_close(Ordinal(4).information(scores, leaves), torch.stack([expected(one) for one in scores]))


def test_far_scores_are_certain_without_being_infinite():
    leaves = Ordinal(4).leaves(())
    for score, label in ((-1e4, 0), (1e4, 3)):
        assert Ordinal(4).log_prob(torch.tensor([score]), torch.tensor([label]), leaves).item() == 0
        assert torch.isfinite(Ordinal(4).log_prob(torch.tensor([score]), torch.tensor([1]), leaves)).all()


def test_labels_are_checked():
    with pytest.raises(DataError, match=r"a label in 0\.\.3, as num_classes is 4; row 1 has 4"):
        Ordinal(4).check_targets(torch.tensor([0, 4]), ())
    with pytest.raises(DataError, match="at least two classes"):
        Ordinal(4).check_training_targets(torch.tensor([2, 2]))


def test_simulated_grades_have_their_cut_points_found(generator):
    x = torch.rand(3000, 1, generator=generator) * 4 - 2
    noise = torch.logit(torch.rand(3000, generator=generator))
    y = torch.bucketize(2 * x[:, 0] + noise, torch.tensor([-1.0, 0.5, 2.0]))
    task = be.Task(lambda: torch.nn.Linear(1, 1), Ordinal(4), be.NormalPrior(10.0))
    method = be.DeepEnsemble(num_members=2, learning_rate=0.05)
    ensemble = be.fit(task, method, (x, y), epochs=150, batch_size=3000, executor="vmap", progress=False)
    params = ensemble.state.members.params
    cuts = params["likelihood.first_cut"] - params["bias"]
    torch.testing.assert_close(params["weight"].flatten(), torch.full((2,), 2.0), rtol=0.1, atol=0)
    torch.testing.assert_close(cuts.flatten(), torch.full((2,), -1.0), rtol=0.15, atol=0)
    assert ensemble.evaluate((x, y))["ece"] < 0.05
