"""The bytes of cost models: what is written is read, anything else is refused, and version 1 can still be read."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save

from fleet_tune.base.array_codec import (
    FORMAT_VERSION,
    DamagedError,
    NewerFormatError,
    decode,
    encode,
)

FIELDS = {"model": "mlp", "header": {"noise": 0.1, "slope": None, "columns": 3}}
ARRAYS = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    "at": np.array([0.5, 1.5]),
    "left": np.array([1, 2], dtype=np.int32),
    "order": np.array([[3]], dtype=np.int64),
    "trees": np.frombuffer(b"bytes", dtype=np.uint8),
    "none": np.empty((0, 4), dtype=np.float32),
}


def test_arrays_and_values_survive() -> None:
    fields, arrays = decode(encode(FIELDS, ARRAYS))
    assert fields == FIELDS
    assert arrays.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        assert arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays[name], values)
    assert encode(*decode(encode(FIELDS, ARRAYS))) == encode(FIELDS, ARRAYS)


def forged(text: str) -> bytes:
    return save({name: np.ascontiguousarray(values) for name, values in ARRAYS.items()}, {"fleet_tune.manifest": text})


def manifest(content: bytes) -> str:
    length = int.from_bytes(content[:8], "little")
    text: str = json.loads(content[8 : 8 + length])["__metadata__"]["fleet_tune.manifest"]
    return text


def test_damaged_and_other_bytes_are_refused() -> None:
    whole = encode(FIELDS, ARRAYS)
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        with pytest.raises(ValueError, match="no whole safetensors"):
            decode(whole[:length])
    with pytest.raises(DamagedError, match="altered"):
        decode(whole[:-1] + bytes([whole[-1] ^ 1]))
    text = manifest(whole)
    with pytest.raises(DamagedError, match="altered"):
        decode(forged(text.replace("0.1", "0.2")))
    with pytest.raises(NewerFormatError, match=f"reads up to {FORMAT_VERSION}"):
        decode(forged(text.replace(f'"format": {FORMAT_VERSION}', '"format": 99')))
    for wrong in ("{}", "[]", "3", '{"format": "x", "digest": ""}', "no json"):
        with pytest.raises(ValueError, match=r"manifest is missing|no whole|altered"):
            decode(forged(wrong))
    with pytest.raises(ValueError, match="manifest is missing"):
        decode(save({"a": np.zeros(3)}))


def test_version_1_is_read_under_todays_names() -> None:
    """Bytes as version 1 wrote them: the trees of a model were a part each, by number."""
    fields = {"format": 1, "header": {"trees": 2}, "model": "boosted-invariant"}
    arrays = {"0/bytes": np.frombuffer(b"first", dtype=np.uint8), "1/bytes": np.frombuffer(b"second", dtype=np.uint8)}
    digest = hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16)
    digest.update(b"\n0/bytes |u1 (5,)\nfirst\n1/bytes |u1 (6,)\nsecond")
    text = json.dumps({**fields, "digest": digest.hexdigest()})
    stored, read = decode(save(arrays, {"fleet_tune.manifest": text}))
    assert stored == {"header": {"trees": 2}, "model": "boosted-invariant"}
    assert {name: values.tobytes() for name, values in read.items()} == {"trees.0": b"first", "trees.1": b"second"}
    assert decode(encode(stored, read))[0] == stored
    with pytest.raises(DamagedError):
        decode(save({**arrays, "1/bytes": arrays["0/bytes"]}, {"fleet_tune.manifest": text}))
