import logging

import pytest


@pytest.fixture
def untouched():
    """Loggers as they were, afterwards."""
    names = ("bayesemble", "bayesemble.serve", "uvicorn", "uvicorn.error")
    before = {name: (one.handlers, one.propagate, one.level) for name in names if (one := logging.getLogger(name))}
    yield
    for name, (handlers, propagate, level) in before.items():
        one = logging.getLogger(name)
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)
