"""What the state of an implicit ensemble holds beside its members: components, their probabilities and statistics."""

from dataclasses import replace

from torch import nn

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.types import Leaves
from bayesemble.methods.implicit.patches import Patch, Patches
from bayesemble.task.running import OF_LIKELIHOOD

# Names of slots.
PATCHES_SLOT = "patches"  # what is drawn, and how, as numbers
COMPONENTS_SLOT = "components"  # components but the first, (member, K - 1, ...)
MIXING_SLOT = "mixing"  # logits of the probabilities of components, if they are learned
COMPONENT_STEPS_SLOT = "component_steps"  # how often components were moved, if shared leaves are moved in between
BUFFERS_SLOT = "component_buffers"  # statistics of components that are whole networks, (member, K, ...)


def patches_of(state: State) -> Patches:
    """What is drawn, and how. Sorted by name, which is the order that draws follow: a checkpoint keeps no other."""
    return {name: Patch.decode(numbers) for name, numbers in sorted(state.slots[PATCHES_SLOT].items())}


def leaves_of(state: State) -> Leaves:
    """Leaves, components and logits, by name."""
    return state.members.params | state.slots.get(COMPONENTS_SLOT, {}) | state.slots.get(MIXING_SLOT, {})


def with_fixed(networks: Members, learned: Leaves, buffers: Leaves) -> Members:
    """Networks whose leaves that are not learned count as buffers, and with statistics of their own, if any."""
    fixed = {name: leaf for name, leaf in networks.params.items() if name not in learned}
    params = {name: leaf for name, leaf in networks.params.items() if name in learned}
    return replace(networks, params=params, buffers=networks.buffers | fixed | buffers)


def own_buffers(state: State, assigned: Leaves, owners: list[int]) -> Leaves:
    """Statistics of the components that were drawn, if each has its own: `(draw, ...)`."""
    slot = state.slots.get(BUFFERS_SLOT)
    return {} if slot is None else {name: leaf[owners, _which(assigned)] for name, leaf in slot.items()}


def keep_buffers(state: State, assigned: Leaves, networks: Members) -> None:
    """Put the statistics of the components that were drawn back into their places."""
    for name, leaf in state.slots.get(BUFFERS_SLOT, {}).items():
        leaf[list(range(len(leaf))), _which(assigned)] = networks.buffers[name]


def _which(assigned: Leaves) -> list[int]:
    """The component that each whole network was drawn from, if one assignment holds for all leaves."""
    first = next(iter(assigned.values()))
    return first.reshape(len(first), -1)[:, 0].tolist()


def copy_trained(network: nn.Module, members: Members) -> None:
    """Put the parameters and buffers of a trained network into all members."""
    trained = dict(network.named_parameters()) | dict(network.named_buffers())
    for name, leaf in (members.params | members.buffers).items():
        if name.startswith(OF_LIKELIHOOD):
            continue
        shape = leaf.shape if name in members.shared else leaf.shape[1:]
        if name not in trained or trained[name].shape != shape:
            came = "nothing" if name not in trained else f"shape {tuple(trained[name].shape)}"
            raise SettingError(
                f"start must be a network like the task's: {name!r} needs shape {tuple(shape)}, got {came}"
            )
        leaf.copy_(trained[name].detach())
