import json
import logging

from bayesemble.apps.serve.logs import JsonLines, logger, set_up, tell


def test_each_record_is_one_line_of_json(untouched, capsys):
    set_up(requests=True)
    tell("request", path="/\n", status=200)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("a batch failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["path"], first["status"], first["level"]) == ("request", "/\n", 200, "info")
    assert "ValueError: no" in second["traceback"]


def test_requests_may_be_left_out(untouched, capsys):
    set_up(requests=False)
    tell("request")
    tell("alarm", logging.WARNING)
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["alarm"]


def test_what_json_does_not_know_becomes_a_text():
    record = logging.LogRecord("x", logging.INFO, "", 0, "event", (), None)
    record.fields = {"path": object}
    assert "object" in json.loads(JsonLines().format(record))["path"]
