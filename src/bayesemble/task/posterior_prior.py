"""Yesterday's posterior as today's prior: a normal with a mean and a variance for every weight, or a covariance."""

from __future__ import annotations

import base64
import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from safetensors.torch import load, save
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.settings import require, setting
from bayesemble.core.types import Leaves
from bayesemble.task.priors import Prior, Scale, Shapes

_MEAN, _STD, _COVARIANCE = "mean/", "std/", "covariance"


@dataclass(frozen=True, repr=False)
class PosteriorPrior(Prior):
    """w ~ Normal(mean, covariance), as `Ensemble.as_prior` makes it of an ensemble; another one refines it.

    log p(w) = -(w - mean)' covariance^-1 (w - mean) / 2 - log det(2 pi covariance) / 2

    The covariance is diagonal, a standard deviation for every weight, unless the whole matrix was asked for. Then all
    weights depend on one another, and methods that look at one leaf alone refuse it.

    Reference: Kirkpatrick et al. (2017), "Overcoming catastrophic forgetting in neural networks", for the diagonal;
    Ritter, Botev & Barber (2018), "Online structured Laplace approximations for overcoming catastrophic forgetting".
    """

    packed: str = setting(dataclasses.MISSING, "all numbers, as safetensors in base64: what is saved with a run")
    scaling = "none"

    @classmethod
    def of(cls, means: Leaves, variances: Leaves, covariance: Tensor | None = None) -> PosteriorPrior:
        """A prior with these means and variances of each leaf; a covariance goes over all leaves in their order."""
        for name, variance in variances.items():
            fits = bool((variance > 0).all() and variance.isfinite().all() and means[name].isfinite().all())
            require(fits, f"a prior needs a mean and a variance above 0 for every weight, which {name!r} has not")
        numbers = {f"{_MEAN}{index}/{name}": leaf for index, (name, leaf) in enumerate(means.items())}
        numbers |= {_STD + name: leaf.sqrt() for name, leaf in variances.items()}
        numbers |= {} if covariance is None else {_COVARIANCE: covariance}
        content = save({name: leaf.detach().cpu().contiguous().clone() for name, leaf in numbers.items()})
        return cls(base64.b64encode(content).decode("ascii"))

    @cached_property
    def means(self) -> Leaves:
        """The mean of every weight, by leaf, in the order of the covariance."""
        numbered = [name.removeprefix(_MEAN).split("/", 1) for name in self._numbers if name.startswith(_MEAN)]
        return {name: self._numbers[f"{_MEAN}{index}/{name}"] for index, name in sorted(numbered, key=_position)}

    @cached_property
    def stds(self) -> Leaves:
        """The standard deviation of every weight, by leaf."""
        return {name: self._numbers[_STD + name] for name in self.means}

    @property
    def covariance(self) -> Tensor | None:
        """The covariance of all weights `(weight, weight)`, leaf after leaf; None if they are independent."""
        return self._numbers.get(_COVARIANCE)

    @property
    def couples_leaves(self) -> bool:
        """Whether leaves depend on one another."""
        return self.covariance is not None

    @cached_property
    def root(self) -> Tensor:
        """L with L L' = covariance, lower triangular, in double precision."""
        assert self.covariance is not None
        lower, failed = torch.linalg.cholesky_ex(self.covariance.double())
        require(not bool(failed), "the covariance is not positive definite; use as_prior() without covariance='full'")
        return lower

    def scales(self, shapes: Shapes) -> dict[str, float]:
        """The root mean square of the standard deviations of each leaf."""
        here = {name: tuple(leaf.shape) for name, leaf in self.means.items()}
        for name in [*shapes, *here]:
            if shapes.get(name) != here.get(name):
                raise SettingError(
                    f"the prior was made of networks whose {name!r} is {here.get(name, 'not there')}; in this one it "
                    f"is {shapes.get(name, 'not there')}"
                )
        return {name: float(leaf.double().square().mean().sqrt()) for name, leaf in self.stds.items()}

    def log_prob(self, params: Leaves, scales: dict[str, float]) -> Tensor:
        """Log density of a normal."""
        if self.couples_leaves:
            away = self._joined(params)
            whitened = torch.linalg.solve_triangular(self.root.to(away.device), away.T, upper=False)
            constant = self.root.diagonal().log().sum() + len(self.root) * math.log(2 * math.pi) / 2
            return (-whitened.square().sum(0) / 2 - constant).to(next(iter(params.values())).dtype)
        terms = []
        for name, leaf in params.items():
            mean, std = self.means[name].to(leaf), self.stds[name].to(leaf)
            log_density = -((leaf - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2
            terms.append(log_density.reshape(len(leaf), -1).sum(1))
        return torch.stack(terms).sum(0)

    def gradient(self, params: Leaves, scales: dict[str, float]) -> Leaves:
        """-covariance^-1 (w - mean)."""
        if not self.couples_leaves:
            variances = {name: self.stds[name].to(leaf).square() for name, leaf in params.items()}
            return {name: (self.means[name].to(leaf) - leaf) / variances[name] for name, leaf in params.items()}
        away = self._joined(params)
        pull = -torch.cholesky_solve(away.T, self.root.to(away.device)).T
        return self._split(pull, params)

    def sample(self, shapes: Shapes, generator: torch.Generator, dtype: torch.dtype) -> Leaves:
        """Draw from the normal."""
        self.scales(shapes)
        if not self.couples_leaves:
            noise = {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}
            return {name: self.means[name].to(dtype) + self.stds[name].to(dtype) * noise[name] for name in shapes}
        drawn = self.root @ torch.randn(len(self.root), generator=generator, dtype=torch.float64)
        away = self._split(drawn.unsqueeze(0), {name: leaf.unsqueeze(0) for name, leaf in self.means.items()})
        return {name: (self.means[name].double() + away[name][0]).to(dtype) for name in shapes}

    def squared_distance(self, params: Leaves) -> float:
        """(w - mean)' covariance^-1 (w - mean) of the leaves of one network, of some of them if all are independent."""
        if self.couples_leaves:
            away = self._joined({name: leaf.unsqueeze(0) for name, leaf in params.items()})
            return float(torch.linalg.solve_triangular(self.root, away.cpu().T, upper=False).square().sum())
        away_by_leaf = [(leaf.cpu() - self.means[name]) / self.stds[name] for name, leaf in params.items()]
        return sum(float(leaf.double().square().sum()) for leaf in away_by_leaf)

    def _joined(self, params: Leaves) -> Tensor:
        """How far networks are from the mean, `(member, weight)`, in double precision."""
        if params.keys() != self.means.keys():
            raise SettingError(
                "a prior with a whole covariance ties all weights together, and was asked about some of them alone; "
                "use as_prior() with independent weights for this method"
            )
        return torch.cat([(params[n] - m.to(params[n])).double().flatten(1) for n, m in self.means.items()], dim=1)

    def _split(self, joined: Tensor, like: Leaves) -> Leaves:
        parts = joined.split([leaf.numel() for leaf in self.means.values()], dim=1)
        return {n: part.reshape(like[n].shape).to(like[n].dtype) for n, part in zip(self.means, parts, strict=True)}

    @cached_property
    def _numbers(self) -> Leaves:
        return load(base64.b64decode(self.packed))

    def _scale(self) -> Scale:
        raise NotImplementedError("it has a standard deviation for every weight")

    def __repr__(self) -> str:
        kind = "a whole covariance" if self.couples_leaves else "independent weights"
        return f"PosteriorPrior({len(self.means)} leaves, {kind})"


def _position(numbered: list[str]) -> int:
    return int(numbered[0])
