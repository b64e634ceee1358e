import sys
from collections.abc import Callable

import pytest

from bayesemble.apps.cli import main


@pytest.fixture
def call(capsys, monkeypatch, untouched) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process, which has torch already: its exit code, and what it printed and complained of."""

    def run(*arguments: object, columns: int = 300) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["bayesemble", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main.main()
        captured = capsys.readouterr()
        assert "\x1b" not in captured.out + captured.err, "no colours and no bar where there is no terminal"
        assert "Traceback" not in captured.err
        return end.value.code or 0, captured.out, captured.err

    return run
