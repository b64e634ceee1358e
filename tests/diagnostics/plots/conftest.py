"""Figures of a test are gone after it."""

import pytest


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close("all")
    assert not plt.get_fignums()
