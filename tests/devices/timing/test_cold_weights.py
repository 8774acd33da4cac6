"""Copies of a kernel's weights, for runs as in a network."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from devices.builds.tensors import array_of
from devices.timing.cold_weights import WeightCopies

MEBIBYTE = 1 << 20


def _tensor(count: int, dtype: str = "float32") -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.arange(count).astype(dtype))


def test_as_much_is_read_between_two_runs_as_the_network_reads() -> None:
    data, weights = _tensor(16), _tensor(MEBIBYTE // 4)
    copies = WeightCopies(32 * MEBIBYTE)
    sets = copies.argument_sets([data, weights], [1], 5 * MEBIBYTE - 1)
    assert len(sets) == 5
    places = {array_of(each[1]).ctypes.data for each in sets}
    assert len(places) == 5, "each is read from another place"
    for each in sets:
        assert each[0].same_as(data)
        np.testing.assert_array_equal(each[1].numpy(), weights.numpy())


def test_copies_are_aligned_as_kernels_expect_it() -> None:
    weights = _tensor(350 * 1050)  # of no multiple of 64 bytes
    sets = WeightCopies(16 * MEBIBYTE).argument_sets([weights, weights], [0, 1], 1 << 30)
    assert len(sets) > 4
    assert all(array_of(each).ctypes.data % 64 == 0 for one in sets for each in one)


def test_no_more_than_empties_the_last_cache() -> None:
    assert len(WeightCopies(4 * MEBIBYTE).argument_sets([_tensor(MEBIBYTE // 4)], [0], 1 << 40)) == 8
    # Weights that fill it alone are cold without copies.
    assert len(WeightCopies(MEBIBYTE).argument_sets([_tensor(MEBIBYTE)], [0], 1 << 40)) == 1


@pytest.mark.parametrize(
    ("count", "weights", "network"), [(1024, [0], 1 << 30), (MEBIBYTE, [], 1 << 30), (MEBIBYTE, [0], 0)]
)
def test_a_kernel_keeps_its_tensors(count: int, weights: list[int], network: int) -> None:
    """With small weights, with none, and where it is in no network."""
    tensors = [_tensor(count)]
    assert WeightCopies(0).argument_sets(tensors, weights, network) == [tensors]


def test_the_memory_serves_one_kernel_after_the_other() -> None:
    copies = WeightCopies(8 * MEBIBYTE)
    (_, first) = copies.argument_sets([_tensor(MEBIBYTE // 4)], [0], 2 * MEBIBYTE)
    (_, second) = copies.argument_sets([_tensor(MEBIBYTE, "int8")], [0], 2 * MEBIBYTE)
    assert array_of(first[0]).ctypes.data == array_of(second[0]).ctypes.data
    np.testing.assert_array_equal(second[0].numpy(), np.arange(MEBIBYTE).astype("int8"))


def test_several_weights_of_a_kernel_are_copied_together() -> None:
    tensors = [_tensor(MEBIBYTE // 4), _tensor(3), _tensor(MEBIBYTE // 4)]
    sets = WeightCopies(32 * MEBIBYTE).argument_sets(tensors, [0, 2], 4 * MEBIBYTE)
    assert len(sets) == 2
    assert not sets[1][0].same_as(tensors[0])
    np.testing.assert_array_equal(sets[1][2].numpy(), tensors[2].numpy())
