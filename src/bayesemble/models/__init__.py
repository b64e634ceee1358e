"""Networks for benchmarks and tables; the library itself takes any `nn.Module`."""

from bayesemble.models.mlp import mlp
from bayesemble.models.pyramidnet import pyramidnet, pyramidnet110
from bayesemble.models.resnet import resnet, resnet18, resnet20, resnet32
from bayesemble.models.tabular import tabular

__all__ = ["mlp", "pyramidnet", "pyramidnet110", "resnet", "resnet18", "resnet20", "resnet32", "tabular"]
