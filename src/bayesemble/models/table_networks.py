"""Networks for tables: numbers and categories are embedded column by column, then go through a residual network.

    h = W [x, embedding of each number, embedding of each category] + b
    h <- h + B relu(A norm(h)),     once for each block
    outputs = C relu(norm(h)) + c

The norm is that of a layer, so rows do not act on one another, and any number of them may be predicted together.

Reference: Gorishniy et al. (2021), "Revisiting deep learning models for tabular data", for the residual network;
Gorishniy et al. (2022), "On embeddings for numerical features in tabular deep learning".
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesemble.core.arrays import numbers as as_numbers
from bayesemble.core.settings import require

EMBEDDINGS = ("periodic", "piecewise", "none")
_FREQUENCIES = 8  # of each number
_SIZE = 8  # coordinates that the embedding of a number has
_FREQUENCY_STD = 0.2  # standard deviation of the first frequencies, for numbers of standard deviation 1
_LARGEST = 32  # coordinates that the embedding of a category has, at most


class ColumnLinear(nn.Module):
    """A linear layer with a ReLU for each column by itself: `(row, column, in)` to `(row, column, out)`."""

    def __init__(self, num_columns: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_columns, num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.empty(num_columns, num_outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform numbers within 1 / sqrt(inputs), as `nn.Linear` has them."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Each column has weights of its own."""
        return (torch.einsum("rci,cio->rco", x, self.weight) + self.bias).relu()


class Periodic(nn.Module):
    """Waves of learned frequencies: `(row, column)` to `(row, column, 2 * frequencies)`.

    sin(2 pi f x), cos(2 pi f x)
    """

    def __init__(self, num_columns: int, num_frequencies: int, frequency_std: float) -> None:
        super().__init__()
        self.frequency_std = frequency_std
        self.frequencies = nn.Parameter(torch.empty(num_columns, num_frequencies))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal frequencies."""
        nn.init.normal_(self.frequencies, std=self.frequency_std)

    def forward(self, x: Tensor) -> Tensor:
        """Sines, then cosines."""
        angles = 2 * math.pi * self.frequencies * x.unsqueeze(-1)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Piecewise(nn.Module):
    """How far a number has come through each bin, from 0 to 1: `(row, column)` to `(row, column, bin)`.

    clip( (x - left) / (right - left), 0, 1 ); a bin without width is a step.
    """

    left: Tensor
    width: Tensor

    def __init__(self, edges: Tensor) -> None:
        super().__init__()
        self.register_buffer("left", edges[:, :-1].clone())
        self.register_buffer("width", edges.diff(dim=1).clamp_min(1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """The bins below are 1, those above 0."""
        return ((x.unsqueeze(-1) - self.left) / self.width).clamp(0, 1)


class Block(nn.Module):
    """h + B relu(A norm(h)), with dropout before B."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The branch beside the identity."""
        return h + self.second(self.dropout(self.first(self.norm(h)).relu()))


class Tabular(nn.Module):
    """The network that `tabular` makes."""

    def __init__(
        self,
        embedding: nn.Module | None,
        categories: Sequence[nn.Module],
        num_inputs: int,
        num_outputs: int,
        width: int,
        depth: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.categories = nn.ModuleList(categories)
        self.input = nn.Linear(num_inputs, width)
        self.blocks = nn.Sequential(*(Block(width, dropout) for _ in range(depth)))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.output = nn.Linear(width, num_outputs)

    def forward(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        """Outputs of each row."""
        parts = [numbers]
        if self.embedding is not None:
            parts.append(self.embedding(numbers).flatten(1))
        if categories is not None:
            parts += [table(categories[:, column]) for column, table in enumerate(self.categories)]
        h = self.blocks(self.input(torch.cat(parts, dim=1)))
        return self.output(self.dropout(self.norm(h).relu()))


def tabular(
    num_numbers: int,
    category_sizes: Sequence[int],
    num_outputs: int,
    *,
    width: int = 128,
    depth: int = 2,
    embedding: str = "periodic",
    edges: Any = None,
    dropout: float = 0.0,
) -> Tabular:
    """A network for a table with columns of numbers, of categories, or of both.

    Args:
        num_numbers: How many columns hold numbers; they are taken to be standardised.
        category_sizes: How many categories each of the other columns has. They are numbered from 1; 0 is unknown.
        num_outputs: Outputs of each row.
        width: Units of each layer.
        depth: Number of residual blocks, each of two layers; 0 leaves one hidden layer.
        embedding: What a number becomes, beside itself: "periodic" (sines and cosines of learned frequencies),
            "piecewise" (its place in the bins between `edges`), or "none".
        edges: Edges of the bins `(num_numbers, bins + 1)`, ascending, as `quantile_edges` gives them.
        dropout: Rate of the dropout layers, one in each block and one before the outputs.

    Shape: in `(row, num_numbers)`, or with categories a tuple of that and whole numbers `(row, num_categories)`;
    out `(row, num_outputs)`.
    """
    require(num_numbers >= 0 and num_numbers + len(category_sizes) >= 1, "a table needs at least one column")
    require(embedding in EMBEDDINGS, f"embedding is one of {', '.join(EMBEDDINGS)}, not {embedding!r}")
    require((edges is not None) == (embedding == "piecewise"), "edges are needed for piecewise, and for nothing else")
    require(width >= 1 and depth >= 0, f"width is at least 1 and depth at least 0, got {width} and {depth}")
    for size in category_sizes:
        require(size >= 1, f"every column of categories has at least one, got sizes {list(category_sizes)}")
    sizes = [min(_LARGEST, 1 + math.isqrt(size)) for size in category_sizes]
    categories = [nn.Embedding(1 + num, size) for num, size in zip(category_sizes, sizes, strict=True)]
    numbers = _number_embedding(num_numbers, embedding, edges) if num_numbers else None
    num_inputs = num_numbers + (0 if numbers is None else num_numbers * _SIZE) + sum(sizes)
    return Tabular(numbers, categories, num_inputs, num_outputs, width, depth, dropout)


def quantile_edges(numbers: Any, bins: int = 16) -> Tensor:
    """Edges of bins that hold equally many rows each: `(row, column)` to `(column, bins + 1)`."""
    require(bins >= 1, f"bins is a number from 1, got {bins}")
    values = as_numbers(numbers, "numbers").double().numpy()  # torch takes quantiles of small tensors only
    return torch.from_numpy(np.quantile(values, np.linspace(0, 1, bins + 1), axis=0).T).float()


def _number_embedding(num_numbers: int, embedding: str, edges: Any) -> nn.Module | None:
    if embedding == "none":
        return None
    if embedding == "periodic":
        waves = Periodic(num_numbers, _FREQUENCIES, _FREQUENCY_STD)
        return nn.Sequential(waves, ColumnLinear(num_numbers, 2 * _FREQUENCIES, _SIZE))
    given = as_numbers(edges, "edges").float()
    fits = given.dim() == 2 and len(given) == num_numbers and given.shape[1] >= 2
    require(fits, f"edges must be ({num_numbers}, bins + 1), got {tuple(given.shape)}")
    require(bool((given.diff(dim=1) >= 0).all()), "the edges of a column must ascend")
    return nn.Sequential(Piecewise(given), ColumnLinear(num_numbers, given.shape[1] - 1, _SIZE))
