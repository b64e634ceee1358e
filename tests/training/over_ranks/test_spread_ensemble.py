"""Members that stay on their ranks, and predictions of them all."""

import pytest

from ranks_job import found


@pytest.mark.parametrize("kind", ["DeepEnsemble", "Repulsive", "Snapshot", "scores in closed form"])
def test_members_that_stay_on_two_ranks_predict_what_one_process_does(kind):
    assert found()["predicted"][kind] <= 1e-12


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("draws", "leave num_draws out"),
        ("drawn", "EMP draws networks from all members"),
        ("saved", "save needs all members in one place"),
    ],
)
def test_what_needs_all_members_is_refused(asked, said):
    assert said in found()["predicted"][asked]
