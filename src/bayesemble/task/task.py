"""What is inferred: a network, how its outputs are read, and what is believed of its parameters beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from bayesemble.core import seeds
from bayesemble.core.errors import ModelError, SettingError
from bayesemble.core.members import Members
from bayesemble.core.offload import MEMORY, Allocator
from bayesemble.core.types import Inputs, Leaves, Targets, in_parts
from bayesemble.predictive import Predictive
from bayesemble.task.adapters.leaves import in_common, leaves_of, stands_still
from bayesemble.task.adapters.still import hold_still
from bayesemble.task.first_look import Seen, look, together, warn_of_end
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.network_ends import Ends, find_ends
from bayesemble.task.networks import ModelSource, called, check_another, check_trainable, checked_source, new_module
from bayesemble.task.per_thread import PerThread
from bayesemble.task.prior_gradient import Factor, add_gradient
from bayesemble.task.priors import Prior, Shapes, VaguePrior, check_prior
from bayesemble.task.running import OF_LIKELIHOOD, OF_METHOD, check_reading, network_leaves, outputs_of
from bayesemble.task.select import Wish, select
from bayesemble.task.sizes import without_size
from bayesemble.task.starts.center import around_start
from bayesemble.task.starts.weights import as_patterns, begun, check_start, shake


@dataclass(frozen=True, eq=False)
class Task:
    """A network, a likelihood and a prior: together the posterior that a method places members in.

    log p(w | data) = ( N * mean log p(y|f(x; w)) + log p(w) ) / temperature + constant
    """

    model: ModelSource
    """A factory of networks, or a network (see `start`); or a list of such, one for each architecture, which members
    take in turn. Then a leaf is called `1.head.weight` by the number of its architecture, also in the name patterns of
    a prior, and every member takes the memory of all: see `Alternatives`."""
    likelihood: Likelihood
    prior: Prior | None = VaguePrior()
    """What is believed of the weights; if nothing is stated, a vague prior. None is a flat one: maximum likelihood."""
    temperature: float = 1.0
    """Below 1: a cold posterior, sharper than Bayes' rule gives."""
    output: str | Callable[[Any], Tensor] | None = None
    """How to pick the tensor out of what the network returns: the name of an attribute or key, or a function."""
    num_data: float | None = None
    """Number of rows that the likelihood stands for; by default those of the training data, or their weights' sum."""
    start: str | None = None
    """How members begin if the model is a network, not a factory: "fresh" re-initialises it for each of them, "given"
    takes its weights. None re-initialises it too, but training refuses to do that to a network that looks trained."""
    jitter: float = 0.0
    """Standard deviation of the noise on the weights that members begin with, as a share of the root mean square of
    each leaf. It tells members apart that would begin equal; a leaf of zeros stays zero."""
    train_frozen: bool = False
    """Whether batch norm and dropout act in training in parts of the network that are wholly frozen too, as in plain
    torch. Otherwise such parts stand still: they run as in prediction."""
    fresh: str | tuple[str, ...] = ()
    """Names or patterns, such as "head.*", of leaves of a given network that each member draws anew."""
    targets: str | None = None
    """The key of the targets in data that come as mappings, such as "labels" in the batches of a tokenizer."""
    unpack: Callable[[Any], Any] | None = None
    """A function that makes `(inputs, targets)` of each batch that a loader, stream or data set yields, in any form; or
    `(inputs, targets, weights)`, for `fit(weights=True)`. What is handed over whole, as arrays, is not unpacked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", checked_source(self.model))
        if not isinstance(self.likelihood, Likelihood):
            raise SettingError(f"likelihood must be one such as be.Categorical(), got {self.likelihood!r}")
        check_prior(self.prior)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise SettingError(f"temperature must be a positive number, got {self.temperature}")
        check_start(self.start, self.jitter, as_patterns(self.fresh), self.networks_given, self.mixed)
        check_reading(self.output, self.targets, self.unpack)

    @property
    def module(self) -> nn.Module:
        """The network whose code is run, in each thread its own; leaves of members are put into it for each call."""
        return self.network.here()

    @cached_property
    def network(self) -> PerThread:
        """The network of every thread."""
        with seeds.scoped(0):
            module = self._new_module()
        for kept in (OF_LIKELIHOOD, OF_METHOD):
            if any(name.startswith(kept) for name in module.state_dict()):
                raise ModelError(f"the network has a part called {kept[:-1]!r}, a name kept for it; rename it")
        check_trainable(module)
        if not self.train_frozen:
            hold_still(module)
        return PerThread(module)

    @cached_property
    def said_num_data(self) -> float | None:
        """What was said of the number of rows, rather than counted."""
        return self.num_data

    @cached_property
    def allocator(self) -> Allocator:
        """Where new members are made."""
        return MEMORY

    @cached_property
    def recomputes(self) -> bool:
        """Whether the network runs parts of itself again in the backward pass, as far as that is known."""
        return False

    @cached_property
    def precision(self) -> str | None:
        """The number type that training computes in; None is that of the network."""
        return None

    @property
    def networks_given(self) -> list[nn.Module]:
        """The networks among the model and its alternatives that are no factories."""
        sources = self.model if isinstance(self.model, tuple) else (self.model,)
        return [source for source in sources if isinstance(source, nn.Module)]

    @property
    def num_architectures(self) -> int:
        """How many different networks members have."""
        return len(self.model) if isinstance(self.model, tuple) else 1

    @property
    def mixed(self) -> bool:
        """Whether members have different architectures."""
        return self.num_architectures > 1

    @cached_property
    def dtype(self) -> torch.dtype:
        """The number type of the network, which inputs are converted to."""
        return next(p.dtype for p in self.module.parameters() if p.is_floating_point())

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of the parameters that the prior speaks of."""
        return {name: tuple(p.shape) for name, p in self.module.named_parameters() if p.requires_grad}

    def select(self, wish: Wish) -> list[str]:
        """Names of the trained parameters that are meant: see `select`. Its ends are known only once it is bound."""
        return select(self.module, wish, None)

    @cached_property
    def num_parameters(self) -> int:
        """How many numbers of one network are trained."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @cached_property
    def scales(self) -> dict[str, float]:
        """The prior's scale of each parameter, for what it counts; a prior that differs by member is refused."""
        own = {} if self.prior is None else self.prior.shared_scales(self.shapes)
        return {name: scale / math.sqrt(self.prior_weight) for name, scale in own.items()}

    @cached_property
    def prior_weight(self) -> float:
        """What the log density of the prior counts for: 1, or less if nobody has stated it; see `VaguePrior`."""
        if self.prior is None or self.num_data is None:
            return 1.0
        return self.prior.weight(self.num_data, self.num_parameters)

    def bind(self, num_rows: int, inputs: Inputs, weight: float | None = None) -> BoundTask:
        """Learn from a few rows what the network gives and whether it is random; refuse rows it cannot run on.

        `num_rows` is how many rows there are in all, `weight` the sum of their weights, if they have any.
        """
        numbers = range(self.num_architectures)
        seen = together([self._look(index, inputs) for index in numbers], [called(self.module, i) for i in numbers])
        warn_of_end(seen, self.module, called(self.module, 0), self.likelihood, as_it_is=self.output is None)
        counted = num_rows if weight is None else weight
        return self._bound(counted if self.said_num_data is None else self.said_num_data, num_rows, seen, inputs)

    def rebind(self, saved: Mapping[str, Any], example: Inputs | None = None) -> BoundTask:
        """The task as it was bound before, from the facts that were saved of it; an example has made-up rows."""
        shape = saved["output_shape"]
        bound = self._bound(saved["num_data"], saved["num_rows"], Seen((), saved["stochastic"], False), example)
        return replace(bound, output_shape=None if shape is None else tuple(shape))

    def _bound(self, num_data: float, num_rows: int, seen: Seen, example: Inputs | None) -> BoundTask:
        given = self.networks_given[0] if self.start == "given" and self.networks_given and not self.mixed else None
        own: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(Task)}
        own |= {"prior": around_start(self.prior, given, as_patterns(self.fresh)), "num_data": num_data}
        return BoundTask(
            **own,
            said_num_data=self.said_num_data,
            num_rows=num_rows,
            output_shape=seen.output_shape,
            stochastic=seen.stochastic,
            recomputes=seen.recomputes,
            example=example,
            network=self.network,
        )

    def new_member(self, seed: int, index: int = 0) -> tuple[Leaves, Leaves]:
        """Start one network: its parameters, and its buffers with the frozen parameters among them.

        `index` is the number of the member, which its architecture depends on if there are several.
        """
        with seeds.scoped(seed):
            module = self._new_module(index, share_frozen=True)
        check_another(module, self.network.first)
        params, buffers = leaves_of(module, self.module)
        shake(params, self.shapes, self.jitter, seed)
        return params, buffers

    def _new_module(self, index: int = 0, share_frozen: bool = False) -> nn.Module:
        return new_module(self.model, self.start, index, as_patterns(self.fresh), share_frozen)

    def new_members(self, num_members: int, seed: int) -> Members:
        """Initialise networks independently, each from its own seed; frozen leaves that are equal are shared.

        Of several architectures each must get a member; a single member is fine too, and has the first.
        """
        numbers, whole = seeds.members_of(seed, num_members)
        if 1 < whole < self.num_architectures:
            num = f"{whole} members for {self.num_architectures} architectures"
            raise SettingError(f"{num} leave some without one; raise num_members, or give fewer models")

        def draw(index: int) -> tuple[Leaves, Leaves]:
            return self.new_member(seeds.child(seed, "member", index, "start"), numbers[index])

        # All networks are there at once only where they are compared before they are stacked, and do not go to disk.
        still = stands_still(self.module)
        drawn = lru_cache(maxsize=None if still and not self.allocator.on_disk else 1)(draw)
        others = (drawn(index)[1] for index in range(1, num_members if still else 0))
        return Members.gather(drawn, num_members, in_common(still, drawn(0)[1], others), self.allocator)

    def forward(
        self, params: Leaves, buffers: Leaves, inputs: Inputs, training: bool = False, dropout: bool = False
    ) -> Tensor:
        """Outputs of one member, `(batch, ...)`; in training, its buffers are updated in place.

        With `dropout`, dropout layers act outside of training too.
        """
        return outputs_of(
            self.module,
            params,
            buffers,
            inputs,
            training=training,
            dropout=dropout,
            output=self.output,
            recomputes=self.recomputes,
            precision=self.precision,
        )

    def _look(self, index: int, inputs: Inputs) -> Seen:
        """Run one architecture on a few rows."""
        # For the first, the network that is there is one like it.
        leaves = self.new_member(0, index) if index else leaves_of(self.module, self.module)
        return look(called(self.module, index), inputs, lambda rows, training: self.forward(*leaves, rows, training))


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundTask(Task):
    """A task that has met its data: how many rows there are, and what the network gives for one of them."""

    num_data: float
    """Number of rows that the likelihood stands for, or the sum of their weights; 0 if it is not known."""
    said_num_data: float | None
    """What the task said of the former before it met its data: what counts where it meets other data."""
    num_rows: int
    """Number of rows of the training data; 0 if it is not known."""
    output_shape: tuple[int, ...] | None
    """Shape of the outputs of one row; None of networks that came without data (`Ensemble.from_modules`)."""
    stochastic: bool
    """Whether training draws random numbers inside the network, as dropout does."""
    recomputes: bool
    """Whether the network runs parts of itself again in the backward pass, as activation checkpointing does."""
    example: Inputs | None = field(repr=False)
    """A few rows of the training inputs; a loaded ensemble has made-up ones of their shape, or none."""
    network: PerThread = field(repr=False)
    """The network whose code is run, one for each thread."""
    allocator: Allocator = field(default=MEMORY, repr=False)
    """Where new members, what methods keep beside them and gradients are made."""
    prior_block: int = field(default=1 << 18, repr=False)
    """Numbers that the gradient of the prior is worked out for at a time."""
    precision: str | None = None
    """The number type that training computes in, such as "bf16"; None is that of the network."""
    max_batch: int | None = None
    """Rows that go through a member at a time in training; None takes those of a batch at once."""
    starts: Sequence[tuple[Leaves, Leaves]] = field(default=(), repr=False)
    """Parameters and buffers that members begin with, in place of those of the model; any further ones in turn."""

    @cached_property
    def ends(self) -> Ends | None:
        """The input and output layers, seen on the rows that `bind` kept; None of several architectures."""
        if self.example is None or self.mixed:
            return None
        buffers = self.new_member(seed=0)[1]
        return find_ends(self.module, self.example, lambda leaves: self.forward(leaves, buffers | leaves, self.example))

    @cached_property
    def sized(self) -> list[str]:
        """Names of the trained parameters whose size matters, seen on the rows that `bind` kept; see `without_size`."""
        names, inputs = select(self.module, "all"), self.example
        if inputs is None or self.mixed:
            return names
        free = without_size(
            lambda: Task.new_member(self, seed=0),
            lambda leaves, buffers: self.forward(leaves, buffers, inputs, training=True),
        )
        return [name for name in names if name not in free]

    def select(self, wish: Wish) -> list[str]:
        """Names of the trained parameters that are meant: see `select`. The network is run if that takes its ends.

        "sized" are all whose size matters, which is found by a run too.
        """
        if wish == "sized":
            return self.sized
        named = isinstance(wish, str) and any(word in wish for word in ("output", "input"))
        return select(self.module, wish, self.ends if named else None)

    def new_member(self, seed: int, index: int = 0) -> tuple[Leaves, Leaves]:
        """Initialise one network, and what the likelihood learns with it."""
        if self.starts:
            params, buffers = begun(*self.starts[index % len(self.starts)], stands_still(self.module))
            shake(params, self.shapes, self.jitter, seed)
            return params, buffers
        params, buffers = super().new_member(seed, index)
        own = {} if self.output_shape is None else self.likelihood.leaves(self.output_shape)
        return params | {OF_LIKELIHOOD + name: leaf.to(self.dtype) for name, leaf in own.items()}, buffers

    def shape_of(self, inputs: Inputs) -> tuple[int, ...]:
        """Shape of the outputs of one row, found by a run on these inputs if it is not known."""
        return self._look(0, inputs).output_shape if self.output_shape is None else self.output_shape

    def mean_log_likelihood(self, params: Leaves, buffers: Leaves, inputs: Inputs, targets: Targets) -> Tensor:
        """The data term of one member in training: the mean over the batch of log p(y|f)."""
        return self.log_likelihood(self.forward(params, buffers, inputs, training=True), targets, params)

    def log_likelihood(self, outputs: Tensor, targets: Targets, params: Leaves) -> Tensor:
        """The mean over the batch of log p(y|f); of rows with weights, sum(w log p(y|f)) / sum(w)."""
        values, weights = in_parts(targets)
        log_prob = self.likelihood.log_prob(outputs, values, self.likelihood_leaves(params))
        return log_prob.mean() if weights is None else (weights * log_prob).sum() / weights.sum()

    def log_joint(self, mean_log_likelihood: Tensor, params: Leaves) -> Tensor:
        """Unnormalised log posterior of each member, `(member,)`.

        log_joint = ( N * mean log p(y|f) + log p(w) ) / temperature
        """
        log_prior = self.prior.log_prob(network_leaves(params), self.scales) if self.prior is not None else 0.0
        return self.data_factor * mean_log_likelihood + log_prior / self.temperature

    def log_joint_gradient(
        self, mean_log_likelihood: Leaves, params: Leaves, center: Leaves | None = None, factor: Factor = None
    ) -> Leaves:
        """Gradient of `log_joint`, from the gradient of the mean log likelihood, which it overwrites.

        With `center`, the prior is centred there instead of at 0, as anchored ensembles have it.
        """
        gradients = self.data_gradient(mean_log_likelihood)
        self.add_prior_gradient(gradients, params, center, factor)
        return gradients

    def add_prior_gradient(
        self, gradients: Leaves, params: Leaves, center: Leaves | None = None, factor: Factor = None
    ) -> None:
        """Add the part of `log_joint_gradient` that comes from the prior, in place: times a factor, or one a member."""
        if self.prior is not None:
            by_member = isinstance(factor, Tensor) and factor.dim() == 1
            scales = self.prior.scales(self.shapes) if by_member else self.scales
            own = network_leaves(params)
            add_gradient(self.prior, scales, gradients, own, center, factor, self.temperature, self.prior_block)

    def data_gradient(self, mean_log_likelihood: Leaves) -> Leaves:
        """The part of `log_joint_gradient` that comes from the data: N / temperature times the gradient, in place."""
        torch._foreach_mul_(list(mean_log_likelihood.values()), self.data_factor)
        return mean_log_likelihood

    @property
    def data_factor(self) -> float:
        """What the mean log likelihood counts for in the log joint: N / temperature."""
        if not self.num_data:
            raise SettingError("the number of training rows is not known; say Ensemble.from_modules(..., data=...)")
        return self.num_data / self.temperature

    def predictive(self, outputs: Tensor, members: Members) -> Predictive:
        """Read the outputs of all members `(member, row, ...)` as a predictive distribution."""
        return self.likelihood.predictive(outputs, self.likelihood_leaves(members.params), members.weights)

    def predictive_of_normals(self, means: Tensor, variances: Tensor, members: Members) -> Predictive:
        """Read outputs that are normal around each member, with means and variances `(member, row, ...)`."""
        leaves = self.likelihood_leaves(members.params)
        return self.likelihood.predictive_of_normals(means, variances, leaves, members.weights)

    @staticmethod
    def likelihood_leaves(params: Leaves) -> Leaves:
        """The leaves that belong to the likelihood, not the network, by their own names."""
        names = [name for name in params if name.startswith(OF_LIKELIHOOD)]
        return {name.removeprefix(OF_LIKELIHOOD): params[name] for name in names}
