import json
import threading

import pytest

from served_tables import draw_rows, make_run, write_csv


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("serving"), "price").folder


def test_watch_says_in_words_and_by_its_exit_code_what_has_changed(call, run, tmp_path):
    same = write_csv(tmp_path / "same.csv", draw_rows(300, 60), "price")
    code, out, _ = call("watch", run, same)
    assert code == 0
    assert "The model still knows its world" in out
    assert "On 300 rows: RMSE" in out
    odd = draw_rows(300, 61, shift=2.0)
    odd[0]["city"] = "Atlantis"
    moved = write_csv(tmp_path / "moved.csv", odd, None)
    code, out, _ = call("watch", run, moved)
    assert code == 3
    assert "- column 'width' is higher than in training" in out
    assert "rows are unlike the training data: " in out
    code, out, _ = call("watch", run, moved, "--json")
    found = json.loads(out)
    assert (code, found["rows"], found["first_alarm"]) == (3, 300, 250)
    assert found["unlike_by_column"]["city"] == 1


def test_watch_of_what_is_no_run_is_an_error(call, run, tmp_path):
    assert call("watch", tmp_path, tmp_path)[0] == 1
    assert call("watch", run, tmp_path / "none.csv")[0] == 1


def test_serve_says_where_it_listens(call, run, monkeypatch):
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    from bayesemble.apps.serve import logs
    from bayesemble.apps.serve.web import server

    servers = []
    monkeypatch.setattr(logs.logging.StreamHandler, "emit", lambda *_: None)
    monkeypatch.setattr(server, "set_up", lambda requests: None)
    begin = uvicorn.Server.run

    def brief(self):
        servers.append(self)
        threading.Timer(0.3, lambda: setattr(self, "should_exit", True)).start()
        begin(self)

    monkeypatch.setattr(uvicorn.Server, "run", brief)
    code, out, _ = call("serve", f"houses={run}", "--port", 0, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["models"] == ["houses"]
    assert found["address"].startswith("http://127.0.0.1:")
    code, out, _ = call("serve", f"houses={run}", "--port", 0)
    assert "Serving houses at http://127.0.0.1:" in out


@pytest.mark.parametrize(
    "wrong", [("--max-risk", 2), ("--max-risk", 0.1), ("--queue-rows", 1), ("--level", 0), ("--token", "")]
)
def test_serve_refuses_what_it_cannot_honour(call, run, wrong):
    pytest.importorskip("fastapi")
    code, _, err = call("serve", run, *wrong)
    assert code != 0
    assert "error" in err.lower()
