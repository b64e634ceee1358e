"""Whether a network can be trained in a coarser number type here; found out before a run, not by its end."""

import signal
import subprocess
import sys
from functools import cache

import torch

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require
from bayesemble.task.running import PRECISIONS

_TRY = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a; torch.stack([a, a]) @ a"


def check_precision(precision: str | None, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a number type that there is not, a network that it does not suit, or a machine that cannot have it."""
    if precision is None:
        return
    require(precision in PRECISIONS, f"precision is {', '.join(map(repr, PRECISIONS))} or None, got {precision!r}")
    require(
        dtype == torch.float32,
        f"precision={precision!r} keeps weights in single precision, but the network has {dtype}; leave it out",
    )
    if device.type == "cpu" and torch._C._get_mkldnn_enabled() and (ended := _ends_by()) is not None:
        raise SettingError(
            f"products of bfloat16 matrices end the process here ({ended}, seen in another process): torch hands them "
            "to oneDNN, which takes this processor for one that has more than it has. Set the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, or train inside `with torch.backends.mkldnn.flags(enabled=False):`"
        )


@cache
def _ends_by() -> str | None:
    """The signal that ends a process which multiplies such matrices, tried once in one of its own; None if it lives."""
    code = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, check=False).returncode
    return signal.Signals(-code).name if code < 0 else None
