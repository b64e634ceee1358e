import math

import pytest

from bayesemble.apps.serve.labels import Label, read_label
from bayesemble.apps.serve.rows import RowError


def test_labels_of_numbers_and_classes(runs):
    price, kind = runs["price"].schema, runs["kind"].schema
    assert read_label({"id": "a-1", "label": 3.5}, 0, price) == Label("a-1", 3.5)
    assert read_label({"id": "a-1", "label": "3.5"}, 0, price) == Label("a-1", 3.5)
    assert read_label({"id": "a-1", "label": " dear"}, 0, kind) == Label("a-1", kind.target.categories.index("dear"))
    assert read_label({"id": "a-1", "label": "priceless"}, 0, kind) == Label("a-1", None)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {},
        {"id": 3, "label": 1},
        {"id": "a-1"},
        *({"id": "a-1", "label": one} for one in (None, "", "nan", math.nan, math.inf, "dear", [], True)),
    ],
)
def test_what_is_no_label_is_refused_by_its_number(runs, value):
    with pytest.raises(RowError) as refused:
        read_label(value, 4, runs["price"].schema)
    assert refused.value.row == 4
