"""Saved cost models: kinds are checked, and models in models keep their arrays apart."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_tune.base import array_codec
from policies.cost_models.model_bytes import SavedState, inner, opaque, pack, prefixed, unpack, with_inner

ONE = SavedState("one", {"noise": 0.5}, {"weights": np.arange(3.0)})


def test_a_saved_model_is_read() -> None:
    read = unpack(pack(ONE), "one")
    assert (read.kind, read.header) == ("one", {"noise": 0.5})
    assert read.arrays["weights"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="of the kind 'two' but of 'one'"):
        unpack(pack(ONE), "two")


def test_bytes_that_are_no_model_are_refused() -> None:
    for other in (b"", b"FTMODEL1 an early version's", pack(ONE)[:-1], array_codec.encode({"other": 1}, {})):
        with pytest.raises(ValueError, match="not a cost model"):
            unpack(other)
    whole = pack(ONE)
    with pytest.raises(ValueError, match="checksum"):
        unpack(whole[:-1] + b"\x7f")


def test_models_in_models_come_out_as_they_went_in() -> None:
    two = with_inner(
        SavedState("two", {"shift": 1.0}, {"weights": np.zeros(2)}), {"general": pack(ONE), "local": pack(ONE)}
    )
    three = with_inner(SavedState("three", {}, {}), {"target": pack(two)})
    (middle,) = inner(unpack(pack(three))).values()
    read = unpack(middle, "two")
    assert read.header["shift"] == 1.0
    assert read.arrays["weights"].tolist() == [0.0, 0.0]
    assert inner(read) == {"general": pack(ONE), "local": pack(ONE)}


def test_prefixes_and_opaque_bytes() -> None:
    assert list(prefixed({"b/2": np.zeros(1), "b/1": np.ones(1), "c": np.ones(1)}, "b/")) == ["1", "2"]
    assert opaque(b"abc").tobytes() == b"abc"
