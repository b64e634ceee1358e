"""Operations whose rounding of a number depends on the place where it lies in its tensor.

Torch works on whole vectors of the processor, and on the last numbers of a tensor, which do not fill one, in another
way. Sums, products and roots are rounded correctly in both, and products of stacked matrices are worked out one by one.
But functions such as the logistic one differ in the last bit, so a member may feel how many others lie beside it.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from bayesemble.core.seeds import EagerMode

_ARITHMETIC = "add sub rsub mul div neg abs sign sgn sqrt reciprocal clamp clamp_min clamp_max maximum minimum where"
_COMPARISON = "eq ne ge gt le lt logical_and logical_or logical_not isfinite"
_FUNCTIONS = (  # seen to be the same at all places
    "exp log log1p sin cos tanh tanh_backward relu threshold_backward leaky_relu leaky_relu_backward lgamma "
    "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm "
    "native_layer_norm_backward"
)
_PRODUCTS_AND_SUMS = "mm bmm baddbmm sum mean linalg_vector_norm"
_COPIES = (
    "clone copy _to_copy _unsafe_view cat stack index index_select gather scatter_add fill zero zeros_like ones_like "
    "full_like empty_like zeros ones full empty new_zeros new_ones new_full new_empty new_empty_strided scalar_tensor "
    "arange select_backward slice_backward unsqueeze_copy expand_copy lift_fresh_copy randperm randint"
)
_UPDATES = "_fused_adam _fused_adamw _fused_sgd _foreach_add _foreach_mul _foreach_div"  # fit by fit, or arithmetic
_KNOWN = frozenset(" ".join((_ARITHMETIC, _COMPARISON, _FUNCTIONS, _PRODUCTS_AND_SUMS, _COPIES, _UPDATES)).split())


class PlaceDependent(EagerMode):
    """Notes the operations inside its block that may round by place: all that are not known to do without."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        plain = name == "pow" and args[1] in (1, 2)
        if not (func.is_view or plain or name in _KNOWN or _has_gaps(args)):
            self.found.add(name)
        return func(*args, **(kwargs or {}))


def _has_gaps(args: Any) -> bool:
    """Whether no two numbers of a tensor are neighbours, as in one of several columns: then each is taken alone."""
    leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.numel() > 1]
    strides = [[step for size, step in zip(leaf.shape, leaf.stride(), strict=True) if size > 1] for leaf in leaves]
    return any(1 not in steps for steps in strides)
