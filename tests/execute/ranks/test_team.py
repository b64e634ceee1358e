"""One process holds everything: it gives back what it is asked about."""

import torch

from bayesemble.core.types import Batch
from bayesemble.execute.ranks.team import ALONE


def test_a_process_that_is_alone_gives_back_the_very_tensors():
    rows = torch.ones(3, 4)
    given = [
        ALONE.everyone(rows),
        ALONE.own(rows),
        ALONE.columns(rows),
        ALONE.from_columns(rows, 4),
        ALONE.summed(rows),
    ]
    assert all(one is rows for one in given)
    assert (ALONE.total(3), ALONE.first, ALONE.largest(7), ALONE.words("so")) == (3, 0, 7, ["so"])


def test_it_sees_all_rows():
    batch, gradients = Batch(torch.ones(5, 2), torch.ones(5)), {"a": torch.ones(3)}
    own, share = ALONE.share(batch)
    assert own is batch
    assert share == 1
    values = torch.ones(3)
    assert ALONE.over_rows(values, gradients, share) == (values, gradients)
