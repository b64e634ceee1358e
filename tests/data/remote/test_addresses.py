"""Files at an address: read like those of this machine, and refused when they have changed."""

import io

import numpy as np
import pytest

from bayesemble.apps.compare.source import RunSource, contents_of
from bayesemble.core.errors import CheckpointError, DataError
from bayesemble.data.remote.addresses import exists, is_address, local_copy, local_file
from bayesemble.data.sources import data_fingerprint, data_name, load_data, resolve_data

fsspec = pytest.importorskip("fsspec")


def put(address: str, content: bytes) -> None:
    with fsspec.open(address, "wb") as file:
        file.write(content)


def arrays(offset: float = 0.0) -> bytes:
    kept, rng = io.BytesIO(), np.random.default_rng(0)
    np.savez(kept, x=rng.normal(size=(30, 2)) + offset, y=rng.normal(size=30))
    return kept.getvalue()


def test_paths_and_embedded_sets_are_no_addresses():
    assert [is_address(text) for text in ("digits", "/a/b.csv:price", "C:\\a.csv", "a.npz")] == [False] * 4
    assert is_address("s3://bucket/a.csv:price")
    assert local_file("a.csv") == "a.csv"


def test_rows_at_an_address_are_those_of_the_file(tmp_path):
    (tmp_path / "a.npz").write_bytes(arrays())
    put("memory://place/a.npz", arrays())
    expected = load_data(str(tmp_path / "a.npz"), seed=1)
    for address in ("memory://place/a.npz", f"file://{tmp_path}/a.npz"):
        assert np.array_equal(load_data(address, seed=1).x_train, expected.x_train)
        assert data_fingerprint(address) == data_fingerprint(str(tmp_path / "a.npz"))
        assert resolve_data(address) == address
        assert data_name(address) == "a.npz"


def test_a_table_has_its_column_after_the_address():
    rows = "".join(f"{i},{i * 2 % 7}.5\n" for i in range(20))
    put("memory://place/houses.csv", f"area,price\n{rows}".encode())
    assert load_data("memory://place/houses.csv:price").x_train.shape == (16, 1)


def test_what_is_not_there_is_refused_by_its_address():
    with pytest.raises(DataError, match=r"there is no file at 'memory://nowhere.npz'"):
        load_data("memory://nowhere.npz")
    with pytest.raises(DataError, match=r"nothing://a.npz cannot be read: .*nothing"):
        exists("nothing://a.npz")
    with pytest.raises(DataError, match=r"memory://nowhere.npz cannot be read"):
        local_copy("memory://nowhere.npz")


def test_a_file_that_has_changed_since_is_refused():
    address = "memory://place/changing.npz"
    put(address, arrays())
    source = RunSource(data=address, seed=0, method={}, epochs=1, contents=contents_of(address, None))
    assert len(source.split().x_train) == 24
    put(address, arrays(1.0))
    with pytest.raises(CheckpointError, match="is not what it was when the run was made"):
        source.split()
