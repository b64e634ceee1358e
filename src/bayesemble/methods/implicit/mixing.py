"""How likely each component of an implicit ensemble is: probabilities of the assignments, fixed or learned.

Learned, each group of leaves (a layer, or the network) has logits a `(member, K)`, q = softmax(a), and

    p_k = (1 - rate) q_k,   k = 1..K,   and `rate` for the component that is zero

Their gradient in the evidence lower bound has two parts. The data part is estimated from S >= 2 draws by the score
function, each draw compared with the mean of the others (which keeps it unbiased):

    (1/S) sum_s (l_s - mean of the other l) * d log P(Z_s) / d a,     d log P(Z) / d a_k = n_k(Z) - n(Z) q_k

with l_s the mean log likelihood of draw s and n_k(Z) how many assignments of the group are k. The part of the KL is
exact: it is that of sum_k p_k log p(M_k) - n sum_k p_k log p_k, for n assignments.
"""

import math

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.types import Leaves
from bayesemble.methods.implicit.patches import Patches, components_of
from bayesemble.task.priors import NormalPrior, Prior
from bayesemble.task.task import Task


def start(patches: Patches, num_members: int, dtype: torch.dtype) -> Leaves:
    """Logits of equal probabilities, by group."""
    return {patch.key: torch.zeros(num_members, patch.components, dtype=dtype) for patch in patches.values()}


def probabilities(patches: Patches, logits: Leaves | None, num_members: int) -> Leaves:
    """Probabilities of each group, `(member, K)` or, with the zero component at the end, `(member, K + 1)`."""
    found = {}
    for patch in {patch.key: patch for patch in patches.values()}.values():
        equal = torch.full((num_members, patch.components), 1 / patch.components, dtype=torch.float64)
        shares = equal if logits is None else logits[patch.key].double().softmax(1)
        zero = torch.full((num_members, 1), patch.rate, dtype=torch.float64, device=shares.device)
        found[patch.key] = torch.cat([(1 - patch.rate) * shares, zero], 1) if patch.rate else shares
    return found


def data_slopes(logits: Leaves, patches: Patches, draws: list[Leaves], values: list[Tensor]) -> Leaves:
    """Gradient of the expected mean log likelihood, estimated from assignments and values `(member,)` of the draws."""
    slopes, stacked = {key: torch.zeros_like(leaf) for key, leaf in logits.items()}, torch.stack(values)
    others = (stacked.sum(0) - stacked) / (len(values) - 1)
    for assigned, value, other in zip(draws, stacked, others, strict=True):
        advantage = ((value - other) / len(values)).unsqueeze(1)
        for key, counts in _counts(logits, patches, assigned).items():
            share = logits[key].softmax(1)
            slopes[key] += advantage * (counts - counts.sum(1, keepdim=True) * share)
    return slopes


def _counts(logits: Leaves, patches: Patches, assigned: Leaves) -> Leaves:
    """How many assignments of each group are k, `(member, K)`; leaves that share one count once."""
    counts = {key: torch.zeros_like(leaf) for key, leaf in logits.items()}
    seen = set()
    for name, patch in patches.items():
        if patch.is_own or patch.key not in seen:
            seen.add(patch.key)
            numbers = assigned[name].reshape(len(assigned[name]), -1)
            counts[patch.key] += torch.stack([(numbers == k).sum(1) for k in range(counts[patch.key].shape[1])], 1)
    return counts


def add_prior_gradients(scores: Leaves, logits: Leaves, learned: Leaves, patches: Patches, task: Task) -> None:
    """Add the gradient of the KL in the logits, for leaves and components `learned`; in place."""
    for key, logit in logits.items():
        share, group = logit.softmax(1), {name: patch for name, patch in patches.items() if patch.key == key}
        rate = next(iter(group.values())).rate
        slope = -_num_assignments(group, learned) * ((1 - rate) * share).log()
        if task.prior is not None:
            for name in group:
                slope = slope + _log_priors(learned, name, task.prior, task.scales)
        scores[key] += (1 - rate) * share * (slope - (share * slope).sum(1, keepdim=True)) / task.temperature


def kl_divergence(leaves: Leaves, patches: Patches, shares: Leaves, task: Task, sigma: float) -> Tensor:
    """KL from the prior to what is drawn, `(member,)`, for components that do not overlap.

        sum over groups of  n sum_k p_k log p_k - sum_k p_k E[log p(M_k + sigma noise)] - entropy of the noise

    The entropy, d/2 log(2 pi e sigma^2) for d numbers, is a constant; it is left out if sigma is 0, and so is the zero
    component, but for its p log p.

    Args:
        leaves: Leaves and their components, by name.
        patches: What is drawn.
        shares: Probabilities of each group, `(member, K)` or, with the zero component, `(member, K + 1)`.
        task: With the prior: normal, if there is noise.
        sigma: Standard deviation of the noise.
    """
    if not isinstance(task.prior, NormalPrior) and (sigma or task.prior is None):
        raise SettingError(f"the KL is known for a NormalPrior, or without noise; the task has {task.prior}")
    total = torch.zeros(len(next(iter(leaves.values()))), dtype=torch.float64)
    for key, share in shares.items():
        group = {name: patch for name, patch in patches.items() if patch.key == key}
        total += _num_assignments(group, leaves) * torch.xlogy(share, share).sum(1)
        for name in group:
            kept = share[:, : len(components_of(leaves, name))]
            total -= (kept * _log_priors(leaves, name, task.prior, task.scales)).sum(1)
            if sigma:
                numbers, scale = leaves[name][0].numel(), task.scales[name]
                entropy = (math.log(2 * math.pi * sigma**2) + 1) / 2
                total += numbers * kept.sum(1) * (sigma**2 / (2 * scale**2) - entropy)
    return total


def _log_priors(leaves: Leaves, name: str, prior: Prior, scales: dict[str, float]) -> Tensor:
    """Log prior density of each component of a leaf, `(member, K)`."""
    return torch.stack([prior.log_prob({name: part}, scales) for part in components_of(leaves, name)], 1)


def _num_assignments(group: Patches, leaves: Leaves) -> int:
    """How many assignments a group has: those of all its leaves, or one for all together."""
    counts = [patch.count(tuple(leaves[name].shape[1:])) for name, patch in group.items() if patch.is_own]
    return sum(counts) if counts else 1
