"""A device that is not the CPU and has no float64, as MPS is, for machines that have none.

Its tensors say that they are on the device "meta", but hold their numbers in main memory. As on a real device, operands
on two devices are refused, but for copies, indices and single numbers; so is float64.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesemble.core import seeds, types

NAME = "meta"
_MAY_MIX = ("copy_", "_foreach_copy", "index", "_index_put", "_to_copy")


class _Away(Tensor):
    """A tensor that is on the device by its own account."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "_Away":
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = Tensor._make_wrapper_subclass(cls, inner.size(), device=torch.device(NAME), **layout)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carried_out(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __getitem__(self, key: Any) -> Any:
        """A list of numbers would become an index on the device "meta", behind the back of this class."""
        keys = key if isinstance(key, tuple) else (key,)
        keys = tuple(torch.tensor(one) if isinstance(one, list) else one for one in keys)
        return super().__getitem__(keys if isinstance(key, tuple) else keys[0])


class OtherDevice(seeds.EagerMode):
    """Inside, tensors can be made on the device, and be brought there and back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carried_out(func, args, kwargs or {})


def _carried_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given, structure = pytree.tree_flatten((args, kwargs))
    away = [one for one in given if isinstance(one, _Away)]
    here = [one for one in given if isinstance(one, Tensor) and not isinstance(one, _Away)]
    name, wished = func.overloadpacket.__name__, kwargs.get("device")
    assert all(one.device.type == "cpu" for one in here), f"{func} met a tensor without numbers"
    if away and any(one.dim() for one in here) and not name.startswith(_MAY_MIX):
        raise RuntimeError(f"{func}: operands on two devices")
    plain_args, plain_kwargs = pytree.tree_unflatten([_plain(one) for one in given], structure)
    found = func(*plain_args, **plain_kwargs)
    stays = bool(away) if wished is None else torch.device(wished).type == NAME
    if name.startswith("copy_"):
        stays = isinstance(args[0], _Away)
    owners = {id(one.inner): one for one in away}
    return pytree.tree_map(lambda one: _placed(one, owners, stays, func) if isinstance(one, Tensor) else one, found)


def _plain(one: Any) -> Any:
    if isinstance(one, torch.device):
        return torch.device("cpu")
    return one.inner if isinstance(one, _Away) else one


def _placed(found: Tensor, owners: dict[int, _Away], stays: bool, func: Any) -> Tensor:
    if id(found) in owners:  # changed in place
        return owners[id(found)]
    if stays and found.dtype == torch.float64:
        raise TypeError(f"{func}: the device has no float64")
    return _Away(found) if stays else found


@pytest.fixture
def other_device(monkeypatch: pytest.MonkeyPatch) -> OtherDevice:
    """The device, known to the library as one without float64; what is random is drawn on the CPU."""
    monkeypatch.setattr(types, "_WITHOUT_FLOAT64", {NAME})
    on = seeds.Generators.on
    cpu = torch.device("cpu")
    monkeypatch.setattr(seeds.Generators, "on", lambda own, device: on(own, cpu if device.type == NAME else device))
    return OtherDevice()
