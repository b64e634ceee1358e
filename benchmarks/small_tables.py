"""Rules for the strength of the repulsion on small tables, where it was seen to harm: ten splits at once.

    python benchmarks/small_tables.py --folder DATA                            # all of it: ten minutes of one core
    python benchmarks/small_tables.py --folder DATA --rules "default;cooled" --problems concrete,yacht
    python benchmarks/small_tables.py --write docs/repulsion.md                # the table, from the runs that are there

Data, networks, members and steps are those of `never_harms.py`, on splits 10 to 19, which no other table has. All
splits and members of a problem are trained in one batched loop that writes the method out: with fewer members than
weights, calibrated repulsion is T (effective dimension / rank) M B^+ x, where B are the products of centred members.

One line per run goes to the output file; a run that is there already is not repeated. The table has the mean over
splits of NLL on held-out and test rows less that of a deep ensemble under the vague prior, and its standard error.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results
import torch
from never_harms import FRESH, PROBLEMS, Problem, Split
from torch import Tensor
from torch.nn import functional as F

SPLITS = range(10, 20)
NAMES = ("concrete", "boston", "yacht", "energy", "breast cancer", "wine quality")
HIDDEN = {"breast cancer": (64, 64)}
LEAST_VARIANCE = 1e-6  # as the likelihood has it
FORGOTTEN = 0.02  # of the squared gradients before, at each step
WARM_UP, EVERY = 0.1, 5  # share of training before scales are learned, and steps between
HELD_TO_THE_START = 0.1  # what the scale of the vague prior counts for, in shares of a leaf

Leaves = list[Tensor]


def constant(_: float) -> float:
    return 1.0


def cooled(progress: float) -> float:
    return 1 - progress


def cooled_by_half(progress: float) -> float:
    return max(0.0, 1 - 2 * progress)


@dataclass(frozen=True)
class Rule:
    """A prior and a strength: the vague prior unless a std is stated."""

    strength: float = 0.0
    """At most; under the vague prior not above rows / weights either."""
    course: Callable[[float], float] = constant
    """What the strength is multiplied by, from the share of training that is done."""
    prior_counts: float = 0.1
    """At most, of the vague prior."""
    std: float = 2.0
    """Of weights under the vague prior, times sqrt(fan-in)."""
    bias: float = 1.0
    normal: float | None = None
    fan_in: float | None = None
    speaking: bool = False
    """Whether the push on each weight counts for the share of it that data determine, F / (F + 1 / scale^2)."""
    learned: bool = False
    """Whether each leaf has the scale that the evidence of a diagonal Laplace approximation gives it."""

    @property
    def stated(self) -> bool:
        return self.normal is not None or self.fan_in is not None

    def scale(self, inputs: int, is_bias: bool) -> float:
        if self.normal is not None:
            return self.normal
        wide, bias = (self.std, self.bias) if self.fan_in is None else (self.fan_in, self.fan_in)
        return bias if is_bias else wide / math.sqrt(inputs)

    def weight(self, ratio: float) -> float:
        """What the log density of the prior counts for."""
        return 1.0 if self.stated else min(self.prior_counts, ratio)

    def heat(self, progress: float, ratio: float) -> float:
        """The temperature of the members."""
        return (self.strength if self.stated else min(self.strength, ratio)) * self.course(progress)


CALM = "no repulsion"
RULES = {
    CALM: Rule(),
    "default": Rule(0.1),
    "cooled": Rule(0.1, cooled),
    "cooled by half": Rule(0.1, cooled_by_half),
    "0.03": Rule(0.03),
    "prior counts in full": Rule(0.1, prior_counts=1.0),
    "in full, no repulsion": Rule(prior_counts=1.0),
    "half as wide": Rule(0.1, std=1.0),
    "biases 0.3": Rule(0.1, bias=0.3),
    "N(0.3), strength 1": Rule(1.0, normal=0.3),
    "deep ensemble, N(1)": Rule(normal=1.0),
    "deep ensemble, N(0.3)": Rule(normal=0.3),
    "deep ensemble, fan-in 3": Rule(fan_in=3.0),
    "where data speak": Rule(0.1, speaking=True),
    "where data speak, 0.3": Rule(0.3, speaking=True),
    "learned scales": Rule(0.1, prior_counts=1.0, learned=True),
    "learned scales, no repulsion": Rule(prior_counts=1.0, learned=True),
}


def forward(leaves: Leaves, x: Tensor) -> Tensor:
    """Outputs `(split, member, row, output)` of rows `(split, row, input)`."""
    rows = x.unsqueeze(1)
    for weight, bias in zip(leaves[::2], leaves[1::2], strict=True):
        rows = torch.matmul(rows if weight is leaves[0] else F.relu(rows), weight.mT) + bias.unsqueeze(2)
    return rows


def log_likelihood(outputs: Tensor, y: Tensor, classes: int) -> Tensor:
    """Of each row `(split, member, row)`."""
    if classes:
        own = y[:, None, :, None].expand(*outputs.shape[:3], 1)
        return torch.log_softmax(outputs, -1).gather(-1, own)[..., 0]
    variance = F.softplus(outputs[..., 1]) + LEAST_VARIANCE
    return -((y[:, None] - outputs[..., 0]).square() / variance + variance.log() + math.log(2 * math.pi)) / 2


def away(leaf: Tensor) -> Tensor:
    """Weights of each member less those of the first `(split, member, weight)`."""
    rows = leaf.flatten(2)
    return (rows - rows[:, :1]).double()


def repulsion(leaves: Leaves) -> Tensor:
    """The matrix `(split, member, member)` that members are pushed by."""
    far = torch.cat([away(leaf) for leaf in leaves], 2)
    count, weights = far.shape[1:]
    gram = far @ far.mT
    gram = gram - gram.mean(1, keepdim=True) - gram.mean(2, keepdim=True) + gram.mean((1, 2), keepdim=True)
    beyond = 4 * gram.diagonal(dim1=1, dim2=2).sum(1)  # moves the vector of ones, which B sends to zero, to the end
    values, vectors = torch.linalg.eigh(gram + beyond[:, None, None] / count)
    values, vectors, rank = values[:, :-1], vectors[..., :-1], count - 1
    effective = rank * (1 + (weights - rank) * values[:, 0] / values.sum(1) / 2)
    inverse = (vectors / values[:, None]) @ vectors.mT
    return (effective * count / rank)[:, None, None] * inverse


class Fisher:
    """A running estimate of the diagonal of the empirical Fisher information of all rows, mean over members."""

    def __init__(self) -> None:
        self.found: Leaves = []

    def see(self, gradients: Leaves, rows: int, all_rows: int) -> None:
        """Take in the gradients of the mean log likelihood of a batch, `(split, member, ...)` each."""
        squares = [all_rows * rows * gradient.square().mean(1, keepdim=True) for gradient in gradients]
        self.found = [old.lerp(new, FORGOTTEN) for old, new in zip(self.found or squares, squares, strict=True)]

    def shares(self, scales: Leaves) -> Leaves:
        """The share of each weight that is determined by data, F / (F + 1 / scale^2)."""
        return [found / (found + scale**-2) for found, scale in zip(self.found, scales, strict=True)]


def learned(leaves: Leaves, shares: Leaves, start: Leaves) -> Leaves:
    """Scales by MacKay's rule: the mean square of the weights of a leaf over the share of it that is determined."""
    scales = []
    for leaf, share, before in zip(leaves, shares, start, strict=True):
        axes = tuple(range(1, leaf.dim()))
        square, known = (values.mean(axes, keepdim=True) for values in (leaf.square(), share))
        scales.append(((square + HELD_TO_THE_START * before**2) / (known + HELD_TO_THE_START)).sqrt())
    return scales


def begun(
    problem: Problem, sizes: list[int], splits: int, rule: Rule, generator: torch.Generator
) -> tuple[Leaves, Leaves]:
    """Members of all splits as torch starts them, and the scales of their prior `(split, 1, ...)`."""
    leaves, scales = [], []
    for before, after in itertools.pairwise(sizes):
        for shape in ((after, before), (after,)):
            start = torch.rand(splits, problem.members, *shape, generator=generator) * 2 - 1
            leaves.append((start / math.sqrt(before)).requires_grad_())
            scale = rule.scale(before, is_bias=len(shape) == 1)
            scales.append(torch.full((splits, 1, *[1] * len(shape)), scale))
    return leaves, scales


def trained(problem: Problem, hidden: tuple[int, ...], rows: Tensor, y: Tensor, classes: int, rule: Rule) -> Leaves:
    """Members of all splits after training with Adam and cosine decay."""
    splits, count, width = rows.shape
    generator, fisher = torch.Generator().manual_seed(1404), Fisher()
    leaves, start = begun(problem, [width, *hidden, classes or 2], splits, rule, generator)
    ratio, scales = count / sum(leaf[0, 0].numel() for leaf in leaves), start
    optimizer = torch.optim.Adam(leaves, lr=problem.rate)
    steps, done = math.ceil(count / problem.batch), 0
    for _ in range(problem.epochs):
        order = torch.stack([torch.randperm(count, generator=generator) for _ in range(splits)])
        for chosen in order.split(problem.batch, dim=1):
            progress = done / (problem.epochs * steps)
            batch = rows.gather(1, chosen[..., None].expand(-1, -1, width))
            fit = log_likelihood(forward(leaves, batch), y.gather(1, chosen), classes).mean(2).sum()
            gradients, now = list(torch.autograd.grad(fit, leaves)), [leaf.detach() for leaf in leaves]
            if rule.speaking or rule.learned:
                fisher.see(gradients, chosen.shape[1], count)
            if rule.learned and progress > WARM_UP and done % EVERY == 0:
                scales = learned(now, fisher.shares(scales), start)
            for leaf, gradient, scale in zip(leaves, gradients, scales, strict=True):
                leaf.grad = leaf.detach() * (rule.weight(ratio) / (count * scale**2)) - gradient
            heat = rule.heat(progress, ratio)
            if heat:
                counts = fisher.shares(scales) if rule.speaking else [1.0] * len(leaves)
                push = heat / count * repulsion(now)
                for leaf, own, share in zip(leaves, now, counts, strict=True):
                    leaf.grad -= share * (push @ away(own)).view_as(leaf).float()
            optimizer.param_groups[0]["lr"] = problem.rate * (1 + math.cos(math.pi * progress)) / 2
            optimizer.step()
            done += 1
    return [leaf.detach() for leaf in leaves]


def nll(leaves: Leaves, x: Tensor, y: Tensor, classes: int) -> list[float]:
    """Of the average prediction, by split."""
    each = log_likelihood(forward(leaves, x), y, classes).double()
    return (math.log(each.shape[1]) - each.logsumexp(1)).mean(1).tolist()


def measure(folder: Path, name: str, rule: Rule) -> dict[str, list[float]]:
    problem = (PROBLEMS | FRESH)[name]
    splits: list[Split] = [problem.load(folder, number) for number in SPLITS]

    def stacked(part: str) -> tuple[Tensor, Tensor]:
        pairs = [getattr(one, part) for one in splits]
        return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])

    classes = splits[0].classes
    leaves = trained(problem, HIDDEN.get(name, (50,)), *stacked("train"), classes, rule)
    return {f"{part}_nll": nll(leaves, *stacked(part), classes) for part in ("held_out", "test")}


def lines(done: list[dict[str, Any]]) -> list[str]:
    """Rules by problems: what each costs against no repulsion."""
    runs = {(row["problem"], row["rule"]): row for row in done}
    names = [name for name in NAMES if (name, CALM) in runs]
    rows = ["| rule | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for label in RULES:
        cells = [cost(runs[name, label], runs[name, CALM]) if (name, label) in runs else "-" for name in names]
        if label != CALM and set(cells) != {"-"}:
            rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return rows


def cost(own: dict[str, Any], calm: dict[str, Any]) -> str:
    """Of a rule on a problem: mean and standard error over splits, held-out and test rows alike."""
    parts = [[a - b for a, b in zip(own[part], calm[part], strict=True)] for part in ("held_out_nll", "test_nll")]
    return results.mean_and_error([statistics.fmean(pair) for pair in zip(*parts, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="data sets; without it nothing is trained")
    parser.add_argument("--problems", default=",".join(NAMES))
    parser.add_argument("--rules", help="separated by semicolons, since names have commas; all unless given")
    parser.add_argument("--out", type=Path, default=Path("small_tables.jsonl"))
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    arguments = parser.parse_args()
    done = results.read(arguments.out)
    wanted = arguments.rules.split(";") if arguments.rules else list(RULES)
    for label in wanted if arguments.folder is not None else ():
        for name in arguments.problems.split(","):
            if not any((row["problem"], row["rule"]) == (name, label) for row in done):
                found = measure(arguments.folder, name, RULES[label])
                done.append(results.append(arguments.out, {"problem": name, "rule": label} | found))
    rows = lines(done)
    print("\n".join(rows))
    if arguments.write is not None:
        results.renew(arguments.write, "small_tables", lambda _: rows)


if __name__ == "__main__":
    main()
