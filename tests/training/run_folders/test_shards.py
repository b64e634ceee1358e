"""Checkpoints that several processes wrote together."""

from pathlib import Path

import pytest
import torch

from bayesemble.core.errors import CheckpointError
from bayesemble.training.run_folders import shards
from ranks_job import FAULTS, found


@pytest.mark.parametrize("who", ["ranks", "alone"])
def test_ranks_and_one_process_go_on_from_what_ranks_wrote(who):
    assert found()["checkpoints"][who] <= 1e-12


def test_one_process_loads_what_ranks_wrote():
    assert found()["checkpoints"]["loaded"] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_damaged_is_named_and_ranks_go_on_from_the_checkpoint_before_to_the_very_bits(fault):
    came = found()["faults"][fault]
    assert came["named"]
    assert came["difference"] == 0
    assert came["left"] == []


def test_any_members_are_put_together_from_any_files():
    whole = {"state/weights": torch.arange(5.0), "told/loss": torch.arange(10.0).reshape(2, 5)}
    spans = [range(2), range(2, 3), range(3, 5)]
    parts = [
        (span, {"state/weights": whole["state/weights"][list(span)], "told/loss": whole["told/loss"][:, list(span)]})
        for span in spans
    ]
    for wanted in (range(5), range(1, 4), range(2, 3), range(4, 5)):
        cut = shards.joined(parts, wanted)
        assert torch.equal(cut["state/weights"], whole["state/weights"][list(wanted)])
        assert torch.equal(cut["told/loss"], whole["told/loss"][:, list(wanted)])


def test_members_that_are_missing_between_files_are_noticed():
    names = ["members-000000-000002.safetensors", "members-000003-000005.safetensors", "run.json"]
    with pytest.raises(CheckpointError, match="lacks the members from 2 up to 3"):
        shards.in_order(names, Path("run"))
    assert shards.in_order(names[:1], Path("run")) == names[:1]
