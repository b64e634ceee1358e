"""The part of the gradient of the log joint that comes from the prior, added in place and a few members at a time."""

from torch import Tensor

from bayesemble.core.memory import how_many_fit
from bayesemble.core.types import Leaves
from bayesemble.task.priors import NormalPrior, Prior

Factor = float | Tensor | None
"""What a gradient is multiplied by: a number, one for each member `(member,)`, or nothing."""


def add_gradient(
    prior: Prior,
    scales: dict[str, float],
    gradients: Leaves,
    params: Leaves,
    center: Leaves | None,
    factor: Factor,
    temperature: float,
    block: int,
) -> None:
    """Add the gradient of the prior's log density at `params`, over the temperature, to `gradients`.

    It is worked out for `block` numbers at a time: all at once would need memory for another copy of a leaf. With
    `center` `(member, ...)` each member's prior is centred there; a factor `(member,)` is one for each member.
    """
    if prior.couples_leaves:
        assert center is None, "anchors are for a NormalPrior"
        for name, pull in prior.gradient(params, scales).items():
            each = isinstance(factor, Tensor) and factor.dim() == 1
            own = factor.to(pull).reshape(-1, *[1] * (pull.dim() - 1)) if each else factor  # type: ignore[union-attr]
            gradients[name].add_(pull if own is None else pull * own, alpha=1 / temperature)
        return
    prior = prior if center is None else prior.at_zero()
    plain = type(prior).gradient is NormalPrior.gradient and not prior.centers
    in_one_pass = plain and center is None and factor is None
    for name, leaf in params.items():
        if in_one_pass:
            gradients[name].add_(leaf, alpha=-1 / (temperature * scales[name] ** 2))
            continue
        each = isinstance(factor, Tensor) and factor.dim() == 1
        wholes = [gradients[name], leaf, *([center[name]] if center else [])]
        if isinstance(factor, Tensor) and each:
            wholes.append(factor.to(leaf).reshape(-1, *[1] * (leaf.dim() - 1)))
        rows = how_many_fit(block * len(leaf), leaf.numel())
        parts = [whole.split(rows) if rows < len(leaf) else (whole,) for whole in wholes]
        for gradient, own, *others in zip(*parts, strict=True):
            pull = prior.gradient({name: own - others[0] if center else own}, scales)[name]
            if factor is not None:
                pull = pull * (others[-1] if each else factor)
            gradient.add_(pull, alpha=1 / temperature)
