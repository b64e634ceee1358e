"""A prior around the weights that a given network has, instead of around zero."""

import torch
from torch import nn

from bayesemble.core.errors import CheckpointError, SettingError
from bayesemble.core.types import is_named
from bayesemble.task.priors import Prior
from bayesemble.task.starts.weights import Patterns


def around_start(prior: Prior | None, given: nn.Module | None, fresh: Patterns) -> Prior | None:
    """The prior with its centre, if it is to stand around the weights of the given network.

    Leaves that each member draws anew have no weights to stand around: there the centre is zero.
    """
    if prior is None or not prior.lacks_center:
        return prior
    if given is None:
        raise SettingError(
            f'{prior} stands around the weights of a given network; pass one network itself, with start="given"'
        )
    params = {name: leaf.detach() for name, leaf in given.named_parameters() if leaf.requires_grad}
    return prior.centred_on(
        {name: torch.zeros_like(leaf) if is_named(name, fresh) else leaf.clone() for name, leaf in params.items()}
    )


def on_device(prior: Prior | None, device: torch.device) -> Prior | None:
    """The prior with its centre on a device."""
    if prior is None or not prior.centers:
        return prior
    return prior.centred_on({name: leaf.to(device) for name, leaf in prior.centers.items()})


def check_same_center(saved: Prior | None, here: Prior | None) -> None:
    """Refuse to go on with a prior around other weights than before."""
    before, now = ({} if one is None else one.centers for one in (saved, here))
    for name in before.keys() & now.keys():
        if not torch.equal(before[name].cpu(), now[name].cpu()):
            raise CheckpointError(
                f"the prior of the checkpoint stands around other weights, of {name!r} for one; give the network that "
                "the run began with"
            )
