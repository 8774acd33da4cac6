"""Stored bytes that somebody else wrote, or a broken disk: read, or refused by an error of ours."""

from __future__ import annotations

import contextlib
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

from fleet_tune.device_state import DeviceState
from fleet_tune.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.errors import DatasetError, ModelFileError, RecordFileError, RecordStoreError
from fleet_tune.records import array_codec, exchange, model_file
from fleet_tune.records import dataset as datasets
from fleet_tune.records.codec import decode_record, decode_state, encode_record, encode_state, record_to_json
from fleet_tune.records.shared import copy_records, shared_store
from tests.helpers.fuzz import changed, damaged, json_values, values
from tests.helpers.properties import examples

MEASURED = Measurement(Outcome.OK, (1e-3,))
RECORD = encode_record(Record("uid", "run", Candidate("task", 0, "sketch", (1, 2)), "[]", MEASURED, "device", 1.0))
STATE = encode_state(DeviceState())
FIELDS: dict[str, Any] = {
    "model": "trees",
    "header": {"trees": 1},
    "feature_version": 1,
    "device_kind": "cpu",
    "data": [{"name": "d", "digest": "0", "candidates": 1, "device_classes": ["c"]}],
    "metrics": {"top1": 0.5},
    "created_by": "test",
}
MODEL = array_codec.encode(FIELDS, {})
HEAD = b"fleet-tune-dataset 2\n"
ARRAY = {"dtype": "<i2", "shape": [2], "data": bytes(4)}
# The names of a dataset's parts, with values of the right form in no relation to each other.
DATASET: dict[str, Any] = {
    "model": "net",
    "fingerprints": [],
    "outcomes": [outcome.value for outcome in Outcome],
    "tasks": [{"task": {}, "device": {}, "sketches": [], "outcome": ARRAY, "sketch": ARRAY, "decisions": [ARRAY]}],
}


@given(st.one_of(damaged(RECORD), changed(msgpack.unpackb(RECORD), values()).map(msgpack.packb)))
@examples(200)
def test_any_record(body: bytes) -> None:
    with contextlib.suppress(RecordStoreError):
        assert isinstance(decode_record(body), Record)


@given(st.one_of(damaged(STATE), changed(msgpack.unpackb(STATE), values()).map(msgpack.packb)))
@examples(200)
def test_any_state_of_a_device(body: bytes) -> None:
    with contextlib.suppress(RecordStoreError):
        assert isinstance(decode_state(body), DeviceState)


@given(
    st.one_of(
        damaged(HEAD + zlib.compress(msgpack.packb(DATASET))),
        changed(DATASET, values()).map(lambda body: HEAD + zlib.compress(msgpack.packb(body))),
        st.binary(max_size=60).map(lambda body: HEAD + zlib.compress(body)),
    )
)
@examples(200)
def test_any_dataset(content: bytes) -> None:
    with contextlib.suppress(DatasetError):
        assert isinstance(datasets.decode(content, "some"), datasets.Dataset)


LINES: list[Any] = [
    {"kind": "head", "format": exchange.FORMAT, "version": 1},
    {"kind": "task", "hash": "w", "name": "n", "flop": 1.0, "module": "{}", "class": "c", "target": "{}", "weight": 1},
    {"kind": "run", "run": "r", "class": "c", "origin": {"target": "", "cpu_model": "", "threads": 1, "versions": {}}},
    {"kind": "unit", "name": "class c", "secs": 0.1},
    {"kind": "effort", "task": "w@c", "run": "r", "secs": None, "trials": 2.0},
    {
        "kind": "record",
        "body": json.loads(record_to_json(Record("u", "r", Candidate("w@c", 0, "s", (1,)), "[]", MEASURED, "d", 1.0))),
    },
]


def lines_of(lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in (lines if isinstance(lines, list) else [lines]))


@given(st.one_of(damaged(lines_of(LINES)), changed(LINES, json_values()).map(lines_of)), st.booleans())
@examples(200)
def test_any_file_of_records(content: bytes, deflated: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(RecordFileError):
        path = Path(folder) / ("records.jsonl.gz" if deflated else "records.jsonl")
        path.write_bytes(content)  # no deflated file in the one case, a whole one in the other
        source = exchange.RecordsFile(path)
        with shared_store(Path(folder) / "store.db") as target:
            copy_records(source, target)


def model_of(fields: Any) -> bytes:
    """A file of these fields, whose digest is right where they can be a model's."""
    try:
        return array_codec.encode(fields, {})
    except (TypeError, ValueError):
        text = json.dumps({"__metadata__": {"fleet_tune.manifest": json.dumps(fields)}}).encode()
        return len(text).to_bytes(8, "little") + text


@example(model_of({**FIELDS, "metrics": {"top1": 10**400}}))
@example(model_of({**FIELDS, "feature_version": float("inf")}))
@given(st.one_of(damaged(MODEL), changed(FIELDS, json_values()).map(model_of)))
@examples(200)
def test_any_file_of_a_cost_model(content: bytes) -> None:
    with contextlib.suppress(ModelFileError):
        assert isinstance(model_file.decode(content, Path("some"), 1), model_file.ModelFile)
