"""Foreign data: is the ensemble in more doubt on inputs unlike the training data?"""

import torch
from torch import Tensor

from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive
from bayesemble.settings import require


def doubt(predictive: Predictive, measure: str = "total") -> Tensor:
    """One number per row that grows with doubt: "total" (entropy or variance), "epistemic" or "aleatoric"."""
    require(measure in ("total", "epistemic", "aleatoric"), f"unknown measure of doubt {measure!r}")
    if measure == "total":
        assert isinstance(predictive, ClassPredictive | RealPredictive)
        values = predictive.entropy if isinstance(predictive, ClassPredictive) else predictive.variance
    else:
        values = predictive.epistemic if measure == "epistemic" else predictive.aleatoric
    return values.flatten(1).sum(1) if values.dim() > 1 else values


def ood_auroc(predictive: Predictive, foreign: Predictive, measure: str = "total") -> float:
    """Probability that a foreign row has more doubt than a familiar one; ties count half. 0.5 is chance, 1 is best.

    It tells how well the two sets can be told apart, not whether the doubt itself is calibrated.
    """
    from sklearn.metrics import roc_auc_score

    scores = torch.cat([doubt(predictive, measure), doubt(foreign, measure)]).double()
    labels = torch.cat([torch.zeros(predictive.num_rows), torch.ones(foreign.num_rows)])
    return float(roc_auc_score(labels.cpu().numpy(), scores.cpu().numpy()))
