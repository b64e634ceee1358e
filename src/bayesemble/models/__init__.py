"""Networks for benchmarks and the command line; the library itself takes any `nn.Module`."""

from bayesemble.models.mlp import mlp
from bayesemble.models.resnet import resnet

__all__ = ["mlp", "resnet"]
