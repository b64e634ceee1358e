"""Steps are the same to the bit, or up to rounding and what comes of it."""

import torch

from bayesemble.core.members import Members, State
from bayesemble.execute.optimizers.fused import FIRST_MOMENT
from bayesemble.training.stepping.comparing import same_step


def test_whole_steps_that_adam_makes_of_rounding_do_not_count():
    """The gradient of a bias in front of batch norm is rounding, of another sign in compiled steps."""

    def state(weight: float, bias: float, rounding: float) -> State:
        leaves = {"weight": torch.full((2, 3), weight), "bias": torch.full((2, 1), bias)}
        moments = {"weight": torch.full((2, 3), 0.3), "bias": torch.full((2, 1), rounding)}
        return State(Members(leaves, {}, torch.ones(2)), {FIRST_MOMENT: moments, "mean": dict(leaves)})

    told = {"loss": torch.ones(2)}
    for rounded in (True, False):

        def alike(one: State, other: State, rounded: bool = rounded) -> bool:
            return same_step(one, told, other, told, rounded)

        assert alike(state(1.0, 0.1, 1e-9), state(1.0, -0.1, -1e-9)) == rounded
        assert not alike(state(1.0, 0.1, 1e-9), state(1.2, -0.1, -1e-9))
        assert not alike(state(1.0, 0.1, 0.2), state(1.0, -0.1, 0.2))
        assert not alike(state(1.0, 0.1, 1e-9), state(1.0, -0.1, 0.2))
