import pytest

from bayesemble.core import seeds


@pytest.fixture(autouse=True)
def _seeded():
    """Networks that tests make draw from a state of their own."""
    with seeds.scoped(0):
        yield
