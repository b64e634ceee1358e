import json

import pytest
import typer

from bayesemble.apps.cli.printing import note, resumable, say, say_json, say_notes, show


def test_results_go_to_standard_output_and_notes_to_standard_error(capsys):
    say("a [b] " + "c" * 200)
    note("d [e]")
    say_notes(["f", "g"])
    captured = capsys.readouterr()
    assert captured.out == f"a [b] {'c' * 200}\n", "brackets are text and lines are not broken"
    assert captured.err == "d [e]\nnote: f\nnote: g\n"


def test_json_can_be_read_back(capsys):
    say_json({"é": [1, None]})
    assert json.loads(capsys.readouterr().out) == {"é": [1, None]}


def test_rows_as_a_table_and_as_json(capsys):
    rows = [{"name": "one", "idea": "first"}, {"name": "two", "idea": "second"}]
    show(rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == rows
    show(rows, as_json=False)
    shown = capsys.readouterr().out
    assert all(word in shown for row in rows for word in (*row, *row.values()))


def test_control_c_is_an_exit_code_and_a_sentence(capsys):
    with pytest.raises(typer.Exit) as end, resumable():
        raise KeyboardInterrupt
    assert end.value.exit_code == 130
    assert "the same command goes on" in capsys.readouterr().err
