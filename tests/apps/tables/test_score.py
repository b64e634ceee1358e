"""The scorer's cells are those of `bayesemble predict`, from arrays alone."""

import numpy as np
import torch

from bayesemble.apps.tables.score import cells_of
from bayesemble.apps.tables.targets import columns_of, in_units, values_of
from bayesemble.data.schema import Column, Schema
from bayesemble.predictive import ClassPredictive, NormalPredictive
from bayesemble.training.outgoing.readings import USUAL, Rules, read
from helpers import poissons

SIZE = Column("size", "1.5")
MEMBERS, ROWS = 3, 7


def answers(predictive) -> dict[str, np.ndarray]:
    found = read(predictive, torch.empty(0), USUAL[predictive.kind], Rules(0.8))
    return {name: value.numpy() for name, value in found.items()}


def compare(schema, predictive, columns) -> None:
    expected = dict(zip(columns_of(schema), values_of(schema, in_units(schema, predictive), Rules(0.8)), strict=True))
    cells = cells_of(schema, answers(predictive))
    for name in columns:
        if name == "prediction":
            assert cells[name] == expected[name]
        else:
            np.testing.assert_allclose(cells[name], expected[name], rtol=1e-5, atol=1e-5)


def test_classes(generator):
    schema = Schema((SIZE,), Column("kind", "text", categories=("a", "b", "c")), "classification", 10)
    logs = torch.randn(MEMBERS, ROWS, 3, generator=generator).log_softmax(-1)
    compare(schema, ClassPredictive(torch.full((MEMBERS,), 1 / MEMBERS), logs), columns_of(schema))


def test_numbers_in_their_units(generator):
    schema = Schema((SIZE,), Column("price", "1.5", mean=300.0, scale=20.0, low=0.0, high=600.0), "regression", 10)
    means, stds = torch.randn(2, MEMBERS, ROWS, generator=generator)
    predictive = NormalPredictive(torch.full((MEMBERS,), 1 / MEMBERS), means, stds.exp())
    compare(schema, predictive, columns_of(schema))


def test_counts_are_in_their_units_already(generator):
    schema = Schema((SIZE,), Column("visits", "1.5", mean=5.0, scale=2.0, low=0.0, high=9.0), "count", 10)
    rates = torch.randn(MEMBERS, ROWS, generator=generator).exp()
    columns = [name for name in columns_of(schema) if name not in ("low", "high")]
    compare(schema, poissons(rates), columns)
