import math
from collections import UserDict
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from bayesemble.core.arrays import as_inputs, as_tensor, check_finite, check_rows, row_weights
from bayesemble.core.errors import DataError

FLOAT = torch.float32
NUMBERS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def read_only(array):
    array.flags.writeable = False
    return array


def spoilt(shape, place, value=math.nan):
    """Zeros, but for one cell."""
    tensor = torch.zeros(shape)
    tensor[place] = value
    return tensor


# --- arrays become tensors ---


FORMS = {
    "list": lambda x: x.tolist(),
    "tensor": torch.from_numpy,
    "list of tensors": lambda x: [torch.from_numpy(row) for row in x],
    "objects": lambda x: x.astype(object),
    "texts of numbers": lambda x: x.astype(str),
    "column-major": np.asfortranarray,
    "every second row": lambda x: x.repeat(2, axis=0)[::2],
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "reversed columns": lambda x: x[:, ::-1].copy()[:, ::-1],
    "read-only": read_only,
    "big-endian": lambda x: x.astype(">f8"),
    "big-endian whole numbers": lambda x: x.astype(">i4"),
    "half precision": lambda x: x.astype(np.float16),
}


@pytest.mark.parametrize("name", FORMS)
def test_numbers_come_through_in_whatever_form_they_are_held(name):
    assert as_tensor(FORMS[name](np.array(NUMBERS)), "inputs", FLOAT).tolist() == NUMBERS


def test_writing_to_a_tensor_leaves_the_read_only_array_it_came_from_alone():
    array = read_only(np.array(NUMBERS, dtype=np.float32))
    as_tensor(array, "inputs", FLOAT).fill_(-1)
    assert array.tolist() == NUMBERS


@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType])
def test_any_mapping_of_arrays_is_a_dict_of_tensors(kind):
    found = as_inputs(kind({"x": np.array(NUMBERS), "mask": [1, 0, 1]}), FLOAT)
    assert type(found) is dict
    assert {key: leaf.tolist() for key, leaf in found.items()} == {"x": NUMBERS, "mask": [1, 0, 1]}


def test_datasets_and_loaders_are_no_inputs():
    dataset = TensorDataset(torch.tensor(NUMBERS))
    for given in (dataset, Subset(dataset, [0]), DataLoader(dataset)):
        with pytest.raises(DataError, match=rf"got a {type(given).__name__}; take the inputs out of it"):
            as_inputs(given, FLOAT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_numbers_take_the_number_type_of_the_network_and_integers_stay(dtype):
    inputs = as_inputs({"x": np.zeros((2, 1), np.float16), "tokens": np.array([[1], [2]])}, dtype)
    assert inputs["x"].dtype == dtype
    assert inputs["tokens"].dtype == torch.int64
    assert as_tensor([True, False], "targets", dtype).dtype == torch.bool
    assert as_tensor([1 / 3], "targets", dtype).item() == torch.tensor(1 / 3, dtype=dtype).item()


def test_a_list_of_tensors_is_several_inputs_and_a_list_of_numbers_is_one():
    assert len(as_inputs([torch.zeros(3, 1), torch.zeros(3, 2)], FLOAT)) == 2
    assert as_inputs(NUMBERS, FLOAT).shape == (3, 2)


# --- what is no number ---


@pytest.mark.parametrize("kind", [object, str])
def test_a_text_among_numbers_is_named_by_row_and_column_and_shown_plainly(kind):
    x = np.array([["1", "2"], ["3.5", "red"]], dtype=kind)
    with pytest.raises(DataError, match=r"^inputs must be numbers; row 1, column 1 holds 'red'$"):
        as_tensor(x, "inputs", FLOAT)


def test_a_text_of_a_table_column_is_shown_plainly():
    with pytest.raises(DataError, match=r"row 1 holds 'a'$"):
        as_tensor(np.array([1.0, np.str_("a")], dtype=object), "inputs", FLOAT)


def test_a_text_among_targets_is_named_by_row():
    with pytest.raises(DataError, match=r"^targets must be numbers; row 1 holds 'cat'$"):
        as_tensor(["0", "cat"], "targets", FLOAT)


def test_a_text_in_a_named_input_names_the_input():
    with pytest.raises(DataError, match="input 'age' must be numbers; row 0 holds 'old'"):
        as_inputs({"age": ["old", "1"]}, FLOAT)
    with pytest.raises(DataError, match="input 1 must be numbers; row 0 holds 'old'"):
        as_inputs(([[1.0]], ["old"]), FLOAT)


@pytest.mark.parametrize("rows", [[[1.0, 2.0], [3.0]], [np.zeros(2), np.zeros(3)], [1.0, [2.0]]], ids=str)
def test_rows_of_unequal_length_are_refused(rows):
    with pytest.raises(DataError, match="inputs must be an array of numbers with rows of equal length"):
        as_tensor(rows, "inputs", FLOAT)


@pytest.mark.parametrize("kind", ["datetime64[D]", "timedelta64[s]", "complex128"])
def test_arrays_of_what_is_no_real_number_are_refused_by_their_type(kind):
    with pytest.raises(DataError, match=rf"targets must be real numbers, got {kind.split('[')[0]}"):
        as_tensor(np.zeros(3, dtype=kind), "targets", FLOAT)


@pytest.mark.parametrize("value", [3, np.float64(3), torch.tensor(3)], ids=repr)
def test_a_single_value_is_no_array(value):
    with pytest.raises(DataError, match="targets must be an array with rows, got the single value 3"):
        as_tensor(value, "targets", FLOAT)


# --- cells that are not finite ---


@pytest.mark.parametrize(("bad", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_cell_that_is_not_finite_is_named_by_row_and_column(bad, word):
    with pytest.raises(DataError, match=rf"inputs must be finite numbers; row 3, column 1 holds {word}:"):
        check_finite(spoilt((5, 3), (3, 1), bad), "inputs")


def test_the_first_cell_that_is_not_finite_is_named():
    cells = spoilt((5, 3), (slice(2, 4), slice(1, 3)))
    with pytest.raises(DataError, match="row 2, column 1 holds nan"):
        check_finite(cells, "inputs")


def test_a_target_that_is_not_finite_is_named_by_row():
    with pytest.raises(DataError, match="targets must be finite numbers; row 4 holds nan"):
        check_rows(torch.zeros(5, 2), spoilt((5,), 4))


def test_a_missing_cell_of_a_mixed_table_is_named():
    x = as_tensor(np.array([[1, 2.5], [None, 3]], dtype=object), "inputs", FLOAT)
    with pytest.raises(DataError, match="row 1, column 0 holds nan: remove or fill such cells"):
        check_rows(x, None)


def test_a_pixel_that_is_not_finite_is_named_by_row():
    with pytest.raises(DataError, match="inputs must be finite numbers; row 2 holds nan"):
        check_rows(spoilt((4, 1, 2, 2), (2, 0, 1, 1)), None)


@pytest.mark.parametrize(
    ("shape", "place", "words"),
    [
        ((2, 3, 2), (1, 2, 0), "member 1, row 2, column 0"),
        ((2, 3), (1, 2), "member 1, row 2"),
        ((2, 3, 1, 4, 4), (1, 2, 0, 3, 3), "member 1, row 2"),
    ],
    ids=["table", "one column", "images"],
)
def test_a_cell_of_data_per_member_is_named_by_member_row_and_column(shape, place, words):
    with pytest.raises(DataError, match=f"inputs must be finite numbers; {words} holds nan:"):
        check_rows(spoilt(shape, place), torch.zeros(2, 3), per_member=True)
    with pytest.raises(DataError, match=f"targets must be finite numbers; {words} holds nan:"):
        check_rows(torch.zeros(2, 3, 1), spoilt(shape, place), per_member=True)


def test_whole_numbers_are_always_finite():
    check_rows(torch.arange(6).reshape(3, 2), torch.tensor([True, False, True]))


# --- how many rows and members ---


def test_unequal_lengths_are_listed():
    with pytest.raises(DataError, match="the same number of rows, got inputs 3, targets 4"):
        check_rows(torch.zeros(3, 2), torch.zeros(4))
    with pytest.raises(DataError, match="the same number of rows, got input 0 3, input 1 2, targets 3"):
        check_rows((torch.zeros(3, 2), torch.zeros(2, 2)), torch.zeros(3))
    with pytest.raises(DataError, match="the same number of rows, got inputs 3, targets 4"):
        check_rows(torch.zeros(2, 3, 1), torch.zeros(2, 4), per_member=True)


def test_unequal_member_counts_are_listed():
    with pytest.raises(DataError, match="the same number of members, got inputs 2, targets 5"):
        check_rows(torch.zeros(2, 3, 1), torch.zeros(5, 3), per_member=True)
    with pytest.raises(DataError, match="the same number of members, got input 0 2, input 1 1, targets 2"):
        check_rows((torch.zeros(2, 3, 1), torch.zeros(1, 3, 1)), torch.zeros(2, 3), per_member=True)


def test_data_without_rows_members_or_inputs_is_refused():
    with pytest.raises(DataError, match="the data has no rows; at least one is needed"):
        check_rows(torch.zeros(0, 2), torch.zeros(0))
    with pytest.raises(DataError, match="the data has no members; at least one is needed"):
        check_rows(torch.zeros(0, 3, 2), torch.zeros(0, 3), per_member=True)
    with pytest.raises(DataError, match="there are no inputs"):
        check_rows((), torch.zeros(3))


def test_data_per_member_without_a_row_axis_is_refused():
    with pytest.raises(DataError, match=r"targets of data per member must be \(member, row, ...\), got \(2,\)"):
        check_rows(torch.zeros(2, 3, 1), torch.zeros(2), per_member=True)


def test_inputs_alone_can_be_checked_for_prediction():
    check_rows(torch.zeros(3, 1), None)
    with pytest.raises(DataError, match="row 1, column 0 holds nan"):
        check_rows(spoilt((2, 1), (1, 0)), None)


def test_a_cell_of_a_named_input_is_found_by_its_name():
    with pytest.raises(DataError, match="input 'age' must be finite numbers; row 1, column 0 holds nan"):
        check_rows({"size": torch.zeros(2, 1), "age": torch.tensor([[0.0], [torch.nan]])}, None)


def test_masked_cells_are_refused_and_a_mask_of_nothing_is_not():
    with pytest.raises(DataError, match="some cells are masked"):
        as_tensor(np.ma.array([1.0, 2.0], mask=[False, True]), "inputs", FLOAT)
    assert as_tensor(np.ma.array([1.0, 2.0], mask=[False, False]), "inputs", FLOAT).tolist() == [1.0, 2.0]


def test_complex_tensors_are_refused():
    with pytest.raises(DataError, match=r"real numbers, got torch.complex64"):
        as_tensor(torch.zeros(2, dtype=torch.complex64), "inputs", FLOAT)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_wide_unsigned_labels_become_signed(kind):
    tensor = as_tensor(np.array([0, 3], dtype=kind), "targets", FLOAT)
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == [0, 3]
    assert as_tensor(np.array([0, 3], dtype=np.uint8), "targets", FLOAT).dtype == torch.uint8


def test_long_doubles_and_lists_of_tensors_are_numbers_too():
    assert as_tensor(np.array([0.5], dtype=np.longdouble), "inputs", FLOAT).tolist() == [0.5]
    with pytest.raises(DataError, match="must be an array of numbers"):
        as_tensor([[torch.ones(2, requires_grad=True)]], "inputs", FLOAT)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_file_mapped_into_memory_is_not_copied(tmp_path, mode, recwarn):
    np.save(tmp_path / "x.npy", np.array(NUMBERS, dtype=np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    tensor = as_tensor(mapped, "inputs", FLOAT)
    assert tensor.data_ptr() == mapped.ctypes.data
    assert as_tensor(np.asarray(mapped)[1:], "inputs", FLOAT).data_ptr() == mapped[1:].ctypes.data, "a view of it too"
    del mapped
    assert tensor.tolist() == NUMBERS, "it lives as long as the tensor does"
    assert not recwarn.list
    part = as_tensor(np.load(tmp_path / "x.npy", mmap_mode=mode)[1:, ::-1], "inputs", FLOAT)
    assert part.tolist() == [[3.0, 2.0], [5.0, 4.0]]


def test_weights_are_numbers_from_zero_one_for_each_row():
    assert row_weights([[1], [0], [2]], 3, FLOAT).tolist() == [1, 0, 2]
    with pytest.raises(DataError, match="that of row 1 is -1"):
        row_weights([1.0, -1.0, 0.0], 3, FLOAT)
    with pytest.raises(DataError, match="3 rows need as many weights"):
        row_weights([1.0, 2.0], 3, FLOAT)
