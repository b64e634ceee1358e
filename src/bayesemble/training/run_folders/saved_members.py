"""Members from a file are checked before they are used: their weights, and each leaf against the network."""

from bayesemble.core.errors import CheckpointError
from bayesemble.core.members import Members
from bayesemble.task.task import BoundTask

_ROUNDING = 1e-6


def check_members(members: Members, task: BoundTask, folder: str) -> None:
    """Refuse members that are not whole, not finite, or not of the task's network, by the first leaf that is wrong."""
    _check_weights(members, folder)
    _check_leaves(task, members, folder)


def _check_weights(members: Members, folder: str) -> None:
    """Refuse members without a whole set of weights, and leaves that are not one for each member, or not finite."""
    weights = members.weights
    possible = weights.dim() == 1 and weights.is_floating_point() and bool((weights >= 0).all())
    if not (possible and abs(float(weights.double().sum()) - 1) < _ROUNDING):
        raise CheckpointError(f"the weights of the members in {folder} are not non-negative numbers with the sum 1")
    for name, leaf in (members.params | members.buffers).items():
        if name not in members.shared and (leaf.dim() == 0 or len(leaf) != len(weights)):
            raise CheckpointError(f"{name!r} in {folder} is {tuple(leaf.shape)}, but there are {len(weights)} members")
        # Infinite numbers in a buffer may be meant, as in the mask of an attention.
        if not (leaf.isfinite() if name in members.params else ~leaf.isnan()).all():
            raise CheckpointError(f"{name!r} in {folder} is not finite: training had diverged")


def _check_leaves(task: BoundTask, members: Members, folder: str) -> None:
    """Compare names, shapes and number types with the network; name the first leaf that differs."""
    expected = dict(zip(("parameter", "buffer"), task.new_member(seed=0), strict=True))
    found = {"parameter": members.params, "buffer": members.buffers}
    for kind, leaves in expected.items():
        for name in [*leaves, *(extra for extra in found[kind] if extra not in leaves)]:
            here, there = found[kind].get(name), leaves.get(name)
            if here is None or there is None:
                lacking = "the saved run" if here is None else "the network"
                raise CheckpointError(f"{kind} {name!r} is not in {lacking}; is {folder} a run of this network?")
            shape = here.shape if name in members.shared else here.shape[1:]
            if shape != there.shape or here.dtype != there.dtype:
                raise CheckpointError(
                    f"{kind} {name!r} is {tuple(shape)} {here.dtype} in {folder}, "
                    f"but the network has {tuple(there.shape)} {there.dtype}"
                )
