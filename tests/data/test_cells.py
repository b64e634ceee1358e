import datetime

import pytest

from bayesemble.data.cells import FORMATS, is_number, read


def test_what_cells_can_mean():
    assert read(["1", "-2.5", "1e3", ".5", "+3."], "1.5").tolist() == [1, -2.5, 1000, 0.5, 3]
    assert read(["1,5", "2"], "1,5").tolist() == [1.5, 2]
    assert read(["1,234.5", "12", "1,234,567"], "1,000.5").tolist() == [1234.5, 12, 1234567]
    assert read(["1.234,5", "12", "1.234.567"], "1.000,5").tolist() == [1234.5, 12, 1234567]
    for cell in ["1_000", "0x1f", "१", "1 2", "1,5", "e5", ".", "", "nan", "1,2345"]:
        assert read([cell], "1.5") is None, cell
        assert read([cell], "1,000.5") is None, cell
    assert read(["Yes", "no", "TRUE", "f"], "yes").tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("cell", "way"),
    [
        ("2024-02-29", "year-month-day"),
        ("2024/2/29", "year-month-day"),
        ("29.2.2024", "day.month.year"),
        ("29/02/2024", "day/month/year"),
        ("02-29-2024", "month/day/year"),
    ],
)
def test_dates_are_days_since_1970(cell, way):
    days = (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days
    assert read([cell], way).tolist() == [days]
    assert read([f"{cell} 18:00"], way).tolist() == [days + 0.75]
    assert read([f"{cell}T18:00:00+06:00"], way).tolist() == [days + 0.5]
    assert read([cell.replace("2024", "2023")], way) is None  # no leap year


def test_a_format_of_numbers_is_read_by_its_own_signs():
    """Its name is an example of it, and of no other with the same decimal sign but its plain twin."""
    numbers = {name: one for name, one in FORMATS.items() if one.kind == "number"}
    assert list(numbers) == ["1.5", "1,5", "1,000.5", "1.000,5"]
    for name, one in numbers.items():
        assert read([name], name).tolist() == [1000.5 if one.thousands else 1.5]
        assert is_number(name)
        assert [other for other in numbers if read([name], other) is not None] == [
            other for other in numbers if other == name or (name, other) in {("1.5", "1,000.5"), ("1,5", "1.000,5")}
        ]
    assert not is_number("2024-02-29")
