"""Arrays of all types in files of the safetensors format."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch

from devices.networks.compiled.tensor_file import contents, digest, file_digest, read
from devices.networks.torch.arrays import array_of, tensor_of

TYPES = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float64", "bool"]
ARRAYS = {
    **{name: np.arange(6).reshape(2, 3).astype(name) for name in TYPES},
    "bfloat16": np.arange(3).astype(ml_dtypes.bfloat16),
    "number": np.asarray(3.5, np.float32),
    "nothing": np.empty((0, 2), np.float32),
}


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    file.write_bytes(b"".join(contents(ARRAYS)))
    back = read(file)
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back[name], array)
    assert digest(contents(ARRAYS)) == file_digest(file)


def test_others_read_the_file(tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    file.write_bytes(b"".join(contents(ARRAYS)))
    theirs = safetensors.torch.load_file(file)
    assert theirs.keys() == ARRAYS.keys()
    assert all(torch.equal(theirs[name], tensor_of(array)) for name, array in ARRAYS.items())


def test_a_file_without_arrays(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"".join(contents({})))
    assert read(tmp_path / "none") == {}


def test_what_cannot_be_stored_or_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="complex64"):
        contents({"x": np.zeros(2, np.complex64)})
    (tmp_path / "other").write_text("something else")
    with pytest.raises(ValueError, match="holds no tensors"):
        read(tmp_path / "other")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_tensors_and_arrays_are_the_same_bytes(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)[:, 1:]
    assert torch.equal(tensor_of(array_of(tensor)), tensor)
    assert array_of(tensor).dtype.name == str(dtype).removeprefix("torch.")
    assert tensor_of(array_of(torch.tensor(1.5, dtype=torch.bfloat16))).shape == ()
