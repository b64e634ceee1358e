import collections
import os
import pickle

import numpy as np
import pytest

from bayesemble.core.errors import DataError
from bayesemble.data.image_sets.plain_pickle import read_plain_pickle


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", ["u1", "i8", ">i4", "f4"])
def test_data_come_back_as_the_real_reader_gives_them(tmp_path, protocol, kind):
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    held = {"data": array, "turned": np.asfortranarray(array), b"labels": [1, 2, 3], "n": (None, True, 0.5, b"\xff")}
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(held, protocol=protocol))
    found = read_plain_pickle(path)
    for name in ("data", "turned"):
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert (found[b"labels"], found["n"]) == ([1, 2, 3], (None, True, 0.5, b"\xff"))


def test_a_batch_as_python_2_wrote_it(tmp_path):
    """Texts are bytes there, of an array too; written out by hand, opcode by opcode."""
    pixels = bytes(range(6))
    dtype = b"cnumpy\ndtype\nq\x01(U\x02u1K\x00K\x01tRq\x02(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x02K\x03t"
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"\x80\x02}(U\x04data" + array + dtype + b"\x89U\x06" + pixels + b"tbu.")
    np.testing.assert_array_equal(read_plain_pickle(path)[b"data"], np.arange(6, dtype=np.uint8).reshape(2, 3))


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize(
    ("held", "name"),
    [
        (Evil(), r"(posix|nt)\.system"),
        ({"data": Evil()}, r"(posix|nt)\.system"),
        (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (np.float64(1.0), r"multiarray\.scalar"),
        (np.array([None, "a"], dtype=object), "'O8'"),
        (np.array(["text"]), "'U4'"),
        (eval, r"builtins\.eval"),
    ],
)
def test_anything_else_is_refused_by_its_name_and_nothing_is_run(tmp_path, held, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(pickle.dumps(held, protocol=4))
    with pytest.raises(DataError, match=f"cannot be read as a pickle of plain data: .*{name}"):
        read_plain_pickle(tmp_path / "batch")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps({"data": np.zeros(9)}, protocol=4)[:-30],
        b"\x80\x02cnumpy\nndarray\n.",  # a name, not an array
        b"\x80\x02c_codecs\nencode\n(N}U\x01aK\x01stb.",  # a function that is changed
        b"\x80\x02cnumpy\nndarray\n(N}U\x01aK\x01stb.",  # a class that is changed
        b"\x80\x02U\x01aQ.",  # a reference to something outside
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x02tcnumpy\ndtype\n(U\x02u1tR\x89U\x01atb.",
    ],
)
def test_damaged_files_are_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as a pickle of plain data"):
        read_plain_pickle(tmp_path / "batch")
