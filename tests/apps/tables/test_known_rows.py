import numpy as np
import pytest

from bayesemble.apps.tables.known_rows import ROWS, KnownRows, Splitter, hash_rows, in_test
from bayesemble.core.errors import CheckpointError, DataError
from bayesemble.data.table_files import Chunk, read_rows


def chunk(**columns):
    return Chunk("t.csv", columns, range(2, 2 + len(next(iter(columns.values())))))


def numbered(num, start=0):
    return chunk(a=[str(i) for i in range(start, start + num)], b=["x"] * num)


def test_a_share_of_the_rows_is_held_out_in_whatever_part_and_order_they_come():
    names, num = ["a", "b"], 20_000
    whole = in_test(hash_rows(numbered(num), names, 0), 0.2)
    parts = [in_test(hash_rows(numbered(500, start), names, 0), 0.2) for start in range(0, num, 500)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert abs(whole.mean() - 0.2) < 3 * (0.16 / num) ** 0.5
    other = in_test(hash_rows(numbered(num), names, 1), 0.2)
    assert abs((whole & other).mean() - 0.04) < 0.006
    assert not (in_test(hash_rows(numbered(num), names, 0), 0.1) & ~whole).any()
    assert not in_test(hash_rows(numbered(num), names, 0), 0.0).any()


def test_a_row_is_known_by_its_cells_and_their_columns():
    def one(columns, **cells):
        return int(hash_rows(chunk(**{name: [cell] for name, cell in cells.items()}), columns, 0)[0])

    here = one(["a", "b"], a="1", b="2")
    assert here == one(["b", "a"], b="2", a="1") == one(["a", "b"], b="2", c="3", a="1")
    others = [one(["a", "b"], a="2", b="1"), one(["a", "b"], a="12", b=""), one(["a", "b"], a="1", b="2.0")]
    assert len({here, *others}) == 4


def test_a_table_looks_the_same_under_other_line_endings_quotes_and_delimiters(tmp_path):
    texts = ["a,b\n1,x\n2,y\n", "a,b\r\n1,x\r\n2,y\r\n", '"a";"b"\n"1";"x"\n2;"y"\n', "a,b\n\n1,x\n2,y"]
    found = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_bytes(text.encode())
        (part,) = read_rows(tmp_path / f"{number}.csv")
        found.append(hash_rows(part, ["a", "b"], 0).tolist())
    assert found == found[:1] * 4


def test_equal_rows_fall_on_one_side():
    doubled = chunk(a=[str(i % 50) for i in range(200)])
    train, test = (
        {cell for part in Splitter(0, 0.3).part([doubled], side) for cell in part.columns["a"]}
        for side in (False, True)
    )
    assert len(train) + len(test) == 50
    assert not train & test
    alike = chunk(a=["1"] * 9)
    sides = {bool(in_test(hash_rows(alike, ["a"], seed), 0.2)[0]): seed for seed in range(30)}
    assert sum(len(part.rows) for part in Splitter(sides[False], 0.2).part([alike], test=False)) == 9
    with pytest.raises(DataError, match="equal rows are held out together; take another seed"):
        list(Splitter(sides[True], 0.2).part([alike], test=False))


def known(*parts, share=0.2):
    splitter = Splitter(0, share)
    for _ in splitter.part(parts, test=True):
        pass
    return splitter.seen()


def test_what_is_known_does_not_depend_on_parts_and_order(tmp_path):
    rows = known(numbered(100))
    assert rows.stamp() == known(numbered(60, 40), numbered(40)).stamp() == known(numbered(100), numbered(5)).stamp()
    assert rows.stamp() != known(numbered(100, 1)).stamp()
    rows.write(tmp_path)
    assert (tmp_path / ROWS).stat().st_size == 800
    np.testing.assert_array_equal(KnownRows.read(tmp_path, rows.stamp()).hashes, rows.hashes)


def test_rows_that_were_trained_on_must_be_there(tmp_path):
    rows, share = known(numbered(100)), 0.2
    held_out = in_test(hash_rows(numbered(100), ["a", "b"], 0), share)
    assert rows.compare(known(numbered(100)), share, "t.csv") == []
    num_trained, lost = int((~held_out).sum()), ~held_out[90:]
    with pytest.raises(DataError, match=f"{lost.sum()} of the {num_trained} different rows .* no longer in t.csv"):
        rows.compare(known(numbered(90)), share, "t.csv")
    only = [i for i in range(100) if not held_out[i]]
    kept = known(chunk(a=[str(i) for i in only], b=["x"] * len(only)), numbered(50, 100))
    added = int(in_test(hash_rows(numbered(50, 100), ["a", "b"], 0), share).sum())
    assert rows.compare(kept, share, "t.csv") == [
        f"{added} held-out rows were not there when the run was trained",
        f"{held_out.sum()} rows that were held out then are no longer in t.csv",
    ]


def test_damage_is_refused(tmp_path):
    rows = known(numbered(10))
    rows.write(tmp_path)
    good, stamp = (tmp_path / ROWS).read_bytes(), rows.stamp()
    for content in (b"", good[:-1], good[:-8], good[8:] + good[:7] + b"\x00", b"\xff" * 80):
        (tmp_path / ROWS).write_bytes(content)
        with pytest.raises(CheckpointError, match=ROWS):
            KnownRows.read(tmp_path, stamp)
    (tmp_path / ROWS).write_bytes(good)
    for damage in ({"columns": None}, {"columns": [3]}, {"count": 9}, {"sum": 1}):
        with pytest.raises(CheckpointError, match=ROWS):
            KnownRows.read(tmp_path, stamp | damage)
    (tmp_path / ROWS).unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        KnownRows.read(tmp_path, stamp)
