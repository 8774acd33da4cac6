"""Stored bytes that somebody else wrote, or a broken disk: read, or refused by an error of ours."""

from __future__ import annotations

import contextlib
import json
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet_tune.base import array_codec
from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.errors import DatasetError, ModelFileError, RecordFileError, RecordStoreError
from fleet_tune.base.records.datasets import dataset as datasets
from fleet_tune.base.records.datasets import model_file
from fleet_tune.base.records.sharing import records_file
from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
from fleet_tune.base.records.sharing.postgres import TeamStoreChanges
from fleet_tune.base.records.sharing.salvage import DamagedReader
from fleet_tune.base.records.sharing.shared import CopyResult, copy_records, shared_store
from fleet_tune.base.records.stores.codec import (
    decode_record,
    decode_state,
    encode_record,
    encode_state,
    record_to_json,
)
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.records.stores.stored_speeds import UNIT
from fleet_tune.base.task_data import Dataset
from tests.helpers.fuzz import changed, damaged, json_values, values
from tests.helpers.properties import FUZZ_EXAMPLES, examples
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate

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
SHARED = encode_record(Record("u", "r", Candidate("w@c", 0, "s", (1,)), "[]", MEASURED, "d", 1.0))
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
        assert isinstance(datasets.decode(content, "some"), Dataset)


def store_content() -> bytes:
    """Of a store with some records of a task."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.db"
        with RecordStore(path) as store:
            candidates = [make_candidate("w1@c", at, sketch_id="s") for at in range(30)]
            store.append(
                [replace(make_record(each, ok(1.0), f"u{each.id}"), trace=f"[{each.id}]") for each in candidates]
            )
        return path.read_bytes()


STORE = store_content()
WRITTEN = [at for at, byte in enumerate(STORE) if byte and at > 100]  # behind SQLite's own header


@given(st.dictionaries(st.sampled_from(WRITTEN), st.integers(0, 255), min_size=1, max_size=4))
@settings(max_examples=FUZZ_EXAMPLES // 20 or 60)  # a database each: slower than the others by so much
@example({STORE.index(b"uid TEXT") + 3: ord(",")})
def test_any_damage_of_a_store(damage: dict[int, int]) -> None:
    content = bytearray(STORE)
    for at, byte in damage.items():
        content[at] = byte
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(RecordStoreError):
        path = Path(folder) / "records.db"
        path.write_bytes(content)
        with contextlib.suppress(RecordStoreError), DamagedReader(path) as source:
            with shared_store(Path(folder) / "saved.db") as saved:
                assert copy_records(source, saved).records <= 30
            assert source.lost <= 31
        with StoreMaintenance(path) as reader:
            assert len(list(reader)) <= 31  # one may be there twice
            reader.best("w1@c")
            reader.counts()
            reader.integrity()
            reader.statistics()
            reader.top({})
        with RecordStore(path) as store:
            store.bind({"network": "n"})
            store.append([make_record(make_candidate("w1@c", 99, sketch_id="s"), ok(1.0), "new")])


LINES: list[Any] = [
    {"kind": "head", "format": records_file.FORMAT, "version": 1},
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
        source = records_file.RecordsFile(path)
        with shared_store(Path(folder) / "store.db") as target:
            copy_records(source, target)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NUMBER = st.integers(-(2**63), 2**63 - 1)
ORIGIN = {"target": "", "cpu_model": "", "threads": 1, "versions": {}}
# What a server's tables may hold by their columns, near to what they should.
TABLES = st.fixed_dictionaries(
    {
        "tasks": st.lists(
            st.tuples(
                st.sampled_from(["w", "w@c", "@"]),
                TEXT,
                st.floats(),
                TEXT,
                st.sampled_from(["c", "c@c"]),
                TEXT,
                NUMBER | st.just(1),
            ),
            max_size=3,
        ),
        "run_origins": st.lists(
            st.tuples(
                st.just("r"),
                st.sampled_from(["c", "c@c"]),
                st.just(json.dumps(ORIGIN)) | TEXT | changed(ORIGIN, json_values()).map(json.dumps),
            ),
            max_size=3,
        ),
        "efforts": st.lists(
            st.tuples(
                st.sampled_from(["w", "w@c"]), st.sampled_from(["c", "c@c"]), st.just("r"), st.floats(), st.floats()
            ),
            max_size=3,
        ),
        "meta": st.lists(
            st.tuples(
                st.sampled_from([UNIT + "d", UNIT + "class c"]), TEXT | st.floats().map(repr) | st.just("1" * 5000)
            ),
            max_size=2,
        ),
        "records": st.lists(
            st.binary(max_size=40)
            | damaged(zlib.compress(SHARED))
            | (st.just(SHARED) | damaged(SHARED) | changed(msgpack.unpackb(SHARED), values()).map(msgpack.packb)).map(
                zlib.compress
            ),
            max_size=3,
        ),
    }
)
WHOLE: dict[str, list[Any]] = {
    "tasks": [("w", "n", 1.0, "{}", "c", "{}", 1)],
    "run_origins": [("r", "c", json.dumps(ORIGIN))],
    "efforts": [("w", "c", "r", 1.0, float("inf"))],
    "meta": [(UNIT + "class c", "0.1")],
    "records": [zlib.compress(SHARED)],
}


def copied_from(tables: dict[str, list[Any]]) -> tuple[CopyResult, int]:
    """What came from a server with these tables, and how much was set aside."""

    def rows(query: str, *given: Any) -> list[Any]:
        name = query.partition(" FROM fleet_tune.")[2].split()[0]
        found = tables[name]
        return [each for each in enumerate(found, 1) if each[0] > given[1]] if name == "records" else found

    source = TeamStoreChanges(rows, 0)
    with tempfile.TemporaryDirectory() as folder, shared_store(Path(folder) / "store.db") as target:
        target.unit("class c", 0.2)
        return copy_records(source, target), len(source.unreadable)


@example({**WHOLE, "meta": [(UNIT + "class c", "0")]})
@example({**WHOLE, "meta": [(UNIT + "class c", "1e-320")]})
@example({**WHOLE, "efforts": [("w", "c", "r", float("nan"), 1.0)]})
@given(TABLES | TABLES.map(lambda some: {**WHOLE, "records": some["records"]}))
@examples(200)
def test_any_rows_of_a_server(tables: dict[str, list[Any]]) -> None:
    copied_from(tables)


def test_what_is_wrong_on_a_server_is_set_aside_and_the_rest_is_copied() -> None:
    assert copied_from(WHOLE) == (CopyResult(1, 1), 0)
    wrong: dict[str, list[Any]] = {
        "tasks": [("w", "n", 1.0, "{}", "c", "{}", 0)],
        "efforts": [("w", "c", "r", float("nan"), 1.0), ("w", "c", "r", 1.0, -1.0)],
        "meta": [(UNIT + "d", "nonsense")],
        "records": [b"none", zlib.compress(bytes(64 * 2**20)), None],
    }
    both = {name: [*wrong.get(name, []), *rows] for name, rows in WHOLE.items()}
    assert copied_from(both) == (CopyResult(1, 4), 7)


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
