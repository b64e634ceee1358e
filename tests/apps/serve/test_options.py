import pytest

from bayesemble.apps.serve.options import Options
from bayesemble.core.errors import SettingError


def test_it_listens_to_this_machine_alone_unless_told_otherwise():
    assert Options().host == "127.0.0.1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"level": 1.0},
        {"max_risk": 0.0},
        {"max_risk": 1.5},
        {"tolerance": -1.0, "max_risk": 0.1},
        {"tolerance": 1.0},
        {"token": " "},
        {"token": "ü"},
        {"token": "two words"},
        {"max_rows": 0},
        {"queue_rows": 10, "max_rows": 11},
        {"seconds": 0.0},
    ],
)
def test_what_cannot_be_honoured_is_refused(wrong):
    with pytest.raises(SettingError):
        Options(**wrong)
