"""Networks for benchmarks and tables; the library itself takes any `nn.Module`."""

from bayesemble.models.cnns import cnn as cnn
from bayesemble.models.cnns import medium_cnn as medium_cnn
from bayesemble.models.cnns import small_cnn as small_cnn
from bayesemble.models.mlps import mlp as mlp
from bayesemble.models.pyramidnets import pyramidnet as pyramidnet
from bayesemble.models.pyramidnets import pyramidnet110 as pyramidnet110
from bayesemble.models.resnets import resnet as resnet
from bayesemble.models.resnets import resnet18 as resnet18
from bayesemble.models.resnets import resnet20 as resnet20
from bayesemble.models.resnets import resnet32 as resnet32
from bayesemble.models.table_networks import tabular as tabular
