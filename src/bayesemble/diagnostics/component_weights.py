"""Weights of the components of an implicit ensemble, found after training from held-out data.

A network of Ensemble Model Patching has one assignment Z_g for each layer g, k with probability p_gk. Training takes
all as equally likely. Afterwards the probabilities that predict best are those that maximise the log score
of the average,

    mean_n log sum_Z prod_g p_g(Z_g) p(y_n | x_n, Z)

For one layer this is stacking, which is convex. For several it is climbed by expectation maximisation, no step of which
loses anything:

    r_n(Z) ~ prod_g p_g(Z_g) p(y_n | x_n, Z),      p_gk <- mean_n sum_Z r_n(Z) 1[Z_g = k]

The sum is over all combinations if they are few, else over networks drawn from the ensemble, weighted by how much more
likely they have become.

Reference: Chang et al. (2019), whose future work this is; Yao, Vehtari, Simpson & Gelman (2018) for stacking.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import SettingError
from bayesemble.core.members import State
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.diagnostics.weighting import member_log_probs
from bayesemble.methods.deep_ensemble import DeepEnsemble
from bayesemble.methods.implicit.components import MIXING_SLOT, patches_of
from bayesemble.methods.implicit.mixing import probabilities
from bayesemble.methods.implicit.patched import Patched
from bayesemble.methods.implicit.patches import Patches
from bayesemble.training.ensemble import Ensemble

_ROUNDS, _GAIN, _SMALLEST = 2000, 1e-12, 1e-12


def stack_components(ensemble: Ensemble, data: Any, *, num_networks: int = 256, seed: int = 0) -> Ensemble:
    """The same ensemble with the probabilities of its components that predict held-out data best.

    Args:
        ensemble: Of `EMP` or another method whose layers, or whole networks, have one draw each.
        data: Held-out inputs and targets.
        num_networks: How many networks are looked at; all combinations, if there are no more.
        seed: Of those that are drawn.
    """
    method, state, patches = _checked(ensemble), ensemble.state, patches_of(ensemble.state)
    require(num_networks >= 2, f"at least two networks are compared, num_networks is {num_networks}")
    shares = {
        key: share.log()
        for key, share in probabilities(patches, state.slots.get(MIXING_SLOT), method.num_members).items()
    }
    owners, chosen, log_proposal = _combinations(shares, method.num_members, num_networks, seed)
    networks = method.networks_of(state, owners.tolist(), _assignments(patches, list(shares), chosen))
    as_members = replace(
        ensemble, method=DeepEnsemble(num_members=len(owners)), state=State(networks.reweight(torch.ones(len(owners))))
    )
    log_probs = member_log_probs(as_members, data) + state.members.weights.log().cpu()[owners, None]
    found = _climbed(shares, owners, chosen, log_probs - log_proposal[:, None], patches)
    logits = {key: share.to(ensemble.task.dtype) for key, share in found.items()}
    method = replace(method, mixing="learned", training_draws=max(method.training_draws, 2))
    return replace(ensemble, method=method, state=replace(state, slots=_with_logits(state.slots, logits)))


def _checked(ensemble: Ensemble) -> Patched:
    method = ensemble.method
    if not isinstance(method, Patched):
        raise SettingError(f"{type(method).__name__} has no components to weigh; stacking weighs its members")
    kinds = {patch.kind for patch in patches_of(ensemble.state).values()}
    require(
        kinds <= {"layer", "network"},
        f"components are weighed where a layer or a network has one draw, here {' and '.join(sorted(kinds))} have: "
        "networks with as many draws as numbers or units tell too little of each",
    )
    require(
        method.statistics == "shared",
        "statistics='own' belong to networks that were drawn by the old weights; weigh an ensemble with shared ones",
    )
    return method


def _combinations(shares: Leaves, num_members: int, most: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Members and assignments `(network, group)` that are looked at, and the log of how often each is."""
    sizes = [share.shape[1] for share in shares.values()]
    total = num_members
    for size in sizes:
        total *= size
    if total <= most:
        all_of_them = torch.tensor(list(product(range(num_members), *map(range, sizes))))
        return all_of_them[:, 0], all_of_them[:, 1:], torch.zeros(total, dtype=torch.float64)
    owners = torch.arange(most) % num_members
    generator = seeds.generator(seed, "networks to weigh components by")
    parts = [torch.multinomial(share.exp()[owners].cpu(), 1, generator=generator) for share in shares.values()]
    chosen = torch.cat(parts, 1)
    counts = torch.bincount(owners, minlength=num_members)[owners].double()
    return owners, chosen, _log_likely(shares, owners, chosen) + counts.log()


def _log_likely(shares: Leaves, owners: Tensor, chosen: Tensor) -> Tensor:
    """log prod_g p_g(Z_g) of each network."""
    return torch.stack([share.cpu()[owners, chosen[:, g]] for g, share in enumerate(shares.values())]).sum(0)


def _assignments(patches: Patches, keys: list[str], chosen: Tensor) -> Leaves:
    """The assignments of each leaf `(network, 1)`."""
    return {name: chosen[:, keys.index(patch.key)] for name, patch in patches.items()}


def _climbed(shares: Leaves, owners: Tensor, chosen: Tensor, weighted: Tensor, patches: Patches) -> Leaves:
    """Log probabilities `(member, K)` of each group by expectation maximisation; that of the zero component stays."""
    kept = {patch.key: patch.components for patch in patches.values()}
    fixed = {key: share[:, kept[key] :] for key, share in shares.items()}
    before = -torch.inf
    for _ in range(_ROUNDS):
        joint = weighted + _log_likely(shares, owners, chosen)[:, None]
        value = float(joint.logsumexp(0).mean())
        if value - before < _GAIN:
            break
        before = value
        taken = joint.softmax(0).mean(1)
        updated = {}
        for g, (key, share) in enumerate(shares.items()):
            counts = torch.zeros(share.shape, dtype=torch.float64).index_put_((owners, chosen[:, g]), taken, True)
            own = counts[:, : kept[key]].clamp(min=_SMALLEST)
            room = 1 - fixed[key].exp().sum(1, keepdim=True)
            updated[key] = torch.cat([(room * own / own.sum(1, keepdim=True)).log(), fixed[key]], 1)
        shares = updated
    return {key: share[:, : kept[key]].log_softmax(1) for key, share in shares.items()}


def _with_logits(slots: dict[str, Leaves], logits: Leaves) -> dict[str, Leaves]:
    """Slots with these probabilities, and moments at rest for them, so that training can go on."""
    moments = {
        slot: slots[slot] | {key: torch.zeros_like(leaf) for key, leaf in logits.items()}
        for slot in ("first_moment", "second_moment", "momentum")
        if slot in slots
    }
    return slots | moments | {MIXING_SLOT: logits}
