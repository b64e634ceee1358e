import json

from apps.cli.test_tables import QUICK
from served_tables import draw_rows, write_csv


def test_a_run_is_calibrated_and_says_so(call, tmp_path):
    run, later = tmp_path / "run", write_csv(tmp_path / "later.csv", draw_rows(120, 2), "kind")
    table = write_csv(tmp_path / "first.csv", draw_rows(120, 1), "kind")
    assert call("fit", table, "--target", "kind", "--out", run, "--num-members", "2", *QUICK)[0] == 0
    code, out, err = call("calibrate", run, later, "--level", "0.8")
    assert code == 0, err
    assert "Calibrated: temperature" in out
    assert "sets at level 0.8, from 120 rows" in out
    code, out, err = call("calibrate", run, later, "--json")
    assert code == 0, err
    assert json.loads(out)["calibration"]["level"] == 0.9
    code, _, err = call("calibrate", run, table)
    assert code == 1
    assert "rows that were not trained on" in err
