"""What memory training takes at least, and a refusal where that cannot be had."""

from bayesemble.core.errors import SettingError
from bayesemble.core.memory import available_memory
from bayesemble.methods.base import Method
from bayesemble.task.task import Task


def training_bytes(task: Task, method: Method) -> int:
    """Parameters and buffers of all members, gradients and moments of those that move at a time; no activations."""
    module, size = task.module, task.dtype.itemsize
    learned = task.num_parameters + method.extent(task).extra
    moving = min(method.num_members, method.gradients_per_step)
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    own = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    numbers = method.num_members * learned + moving * learned * (1 + method.num_moments)
    return size * numbers + method.num_members * own + sum(leaf.numel() * leaf.element_size() for leaf in frozen)


def check_memory(task: Task, method: Method) -> None:
    """Refuse members that cannot fit into memory, before any is made."""
    need, free = training_bytes(task, method), available_memory()
    if need <= free:
        return
    fitting = int(method.num_members * free / need)
    fewer = f"train {fitting} members or fewer, or " if fitting else ""
    raise SettingError(
        f"{method.num_members} members of {task.num_parameters:,} parameters need at least {need / 1e9:.3g} GB for "
        f"parameters, gradients and moments, {free / 1e9:.3g} GB can be had; {fewer}keep them on disk with "
        "offload=FOLDER and executor=be.Loop() or be.Vmap(chunk=...). Activations come on top of that: those of "
        "Vmap(chunk=k) are of k members at a time"
    )
