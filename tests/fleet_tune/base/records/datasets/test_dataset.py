"""Datasets: what is written is read again, bad files are refused, records become columns, sketches are renewed."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fleet_tune.base.domain import (
    Candidate,
    DeviceClass,
    Measurement,
    Outcome,
    Record,
    Task,
)
from fleet_tune.base.errors import DatasetError
from fleet_tune.base.records.datasets import dataset as datasets
from fleet_tune.base.records.datasets.dataset_codec import (
    decode_array,
    decode_sketches,
    decode_value,
    encode_array,
    encode_sketches,
    encode_value,
)
from fleet_tune.base.sketch import Access, Axis, Choice, Location, Loop, RowStep, RowWise, Sketch, Statement, Tile
from fleet_tune.base.task_data import OUTCOMES, Dataset, TaskData, task_data
from tests.helpers.devices import CPU, make_fingerprint
from tests.helpers.properties import examples
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_task

CLASS = DeviceClass("znver5-2", '{"kind":"llvm"}')
TASK = make_task("matmul 4x4", CLASS.name, target=CLASS.target, flop=128.0, module='{"module": 1}', weight=3)
STATEMENT = Statement(
    "matmul",
    (Axis("i", 4, False), Axis("k", 4, True)),
    (Loop(0, 0, kind="parallel"), Loop(1, None, 4)),
    (Access("A", (4, 4), 4, ((1, 0), (0, 1)), packed=True),),
    2.0,
    location_column=3,
)
SKETCHES = (
    Sketch(
        0, "tiled", "trace 0", (Tile(4, 2, 4), Choice("unroll", (0, 16)), Location("pad", (-1, 0, 1))), (STATEMENT,)
    ),
    Sketch(1, "loops", "trace 1", (), (), "nothing to describe"),
)
PRINT = make_fingerprint(CLASS)


def record(sketch: int, decisions: tuple[int, ...], measurement: Measurement, task: Task = TASK) -> Record:
    candidate = Candidate(task.id, sketch, SKETCHES[sketch].id, decisions)
    return make_record(candidate, measurement, "uid")


def small() -> Dataset:
    data, unknown = task_data(
        TASK,
        CPU,
        SKETCHES,
        [
            record(0, (2, 2, 1, 0), ok(3.0, 1.0, 2.0)),
            record(1, (), ok(4.0)),
            record(0, (4, 1, 0, 2), failed()),
        ],
    )
    assert unknown == 0
    return Dataset("toy", (PRINT,), (data,))


def same(one: Dataset, other: Dataset) -> bool:
    """Equal to the last bit, seconds around a trial to float32's."""
    if (one.network, one.fingerprints, len(one)) != (other.network, other.fingerprints, len(other)):
        return False
    for mine, theirs in zip(one, other, strict=True):
        for field in dataclasses.fields(TaskData):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            if field.name in ("build_secs", "measure_secs"):
                if not np.array_equal(a.astype(np.float32), b.astype(np.float32)):
                    return False
            elif field.name == "decisions":
                if not all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True)):
                    return False
            elif isinstance(a, np.ndarray):
                if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") or a.dtype != b.dtype:
                    return False
            elif a != b:
                return False
    return True


# --- columns ---------------------------------------------------------------------------------------------------------


def test_records_become_columns() -> None:
    (data,) = small()
    assert data.sketch_of.tolist() == [0, 1, 0]
    assert data.row_of.tolist() == [0, 0, 1]
    assert data.decisions[0].tolist() == [[2, 2, 1, 0], [4, 1, 0, 2]]
    assert data.decisions[1].shape == (1, 0)
    assert data.cost_secs.tolist() == [2.0, 4.0, math.inf]
    # Mean 2 and deviation sqrt(2/3); one micro-batch has none.
    assert data.spread[:2] == pytest.approx([math.sqrt(2 / 3) / 2, 0.0])
    assert math.isnan(data.spread[2])
    assert data.build_secs.tolist() == [0.5, 0.5, 0.25]
    assert [OUTCOMES[at] for at in data.outcome] == [Outcome.OK, Outcome.OK, Outcome.BUILD_ERROR]
    assert data.details == ("", "", "why")
    assert (data.best_secs, data.batches(0), data.batches(2)) == (2.0, (3.0, 1.0, 2.0), ())
    assert data.rows(0).tolist() == [0, 2]
    assert data.candidate(2) == record(0, (4, 1, 0, 2), failed()).candidate


def test_records_that_say_nothing_of_the_task_are_left_out() -> None:
    other = dataclasses.replace(TASK, workload=dataclasses.replace(TASK.workload, hash="other"))
    gone = Candidate(TASK.id, 0, "gone", (1,))
    records = [
        record(1, (), failed(Outcome.DEVICE_LOST)),
        record(1, (), ok(1.0), other),
        dataclasses.replace(record(1, (), ok(1.0)), candidate=gone),
        record(0, (1, 4), ok(1.0)),  # of another width than the sketch
    ]
    data, unknown = task_data(TASK, CPU, SKETCHES, records)
    assert (len(data), unknown) == (0, 2)
    assert data.best_secs == math.inf
    assert data.run_secs.shape == (0, 0)


def test_of_two_measurements_the_longer_one_counts_and_the_later_of_two_alike() -> None:
    measured = [ok(5.0), ok(1.0, 3.0), failed(), ok(4.0, 4.0), ok(9.0)]
    data, _ = task_data(TASK, CPU, SKETCHES, [record(1, (), each) for each in measured])
    assert data.cost_secs.tolist() == [4.0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sketch_of": np.array([0, 0, 0])}, r"a matrix of \(2, 4\) for 3 candidates"),
        ({"sketch_of": np.array([0, 1, 2])}, "a sketch that is not there"),
        ({"details": ("",)}, "differ in length"),
        ({"decisions": ()}, "0 matrices for 2 sketches"),
        ({"outcome": np.array([0, 0, len(OUTCOMES)])}, "unknown outcome"),
        ({"outcome": np.array([0, 0, 0])}, "belong to successes"),
        ({"run_secs": np.ones((3, 2), dtype=np.float32)}, "belong to successes"),
        ({"run_secs": np.array([[-1.0], [1.0], [np.nan]], dtype=np.float32)}, "must be positive"),
        ({"run_secs": np.ones(3, dtype=np.float32)}, "is a matrix"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        dataclasses.replace(small()[0], **change)


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_saved_dataset_is_read_again_and_the_file_has_no_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "some.ftd"
    datasets.save(small(), path)
    datasets.save(small(), path)
    assert [found.name for found in tmp_path.iterdir()] == ["some.ftd"]
    assert same(datasets.load(path), small())


@st.composite
def some_datasets(draw: st.DrawFn) -> Dataset:
    factors = st.sampled_from([(1, 4), (2, 2), (4, 1)])
    secs = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=5)
    failures = [outcome for outcome in Outcome if outcome.blames_candidate and outcome is not Outcome.OK]
    measurements = st.one_of(
        secs.map(lambda values: ok(*values)),
        st.builds(
            lambda outcome, detail, build: Measurement(outcome, build_secs=build, detail=detail),
            st.sampled_from(failures),
            st.text(max_size=5),
            st.floats(0, 60),
        ),
    )
    tiled = st.builds(
        lambda tile, choice, place, measured: record(0, (*tile, choice, place), measured),
        factors,
        st.integers(0, 1),
        st.integers(0, 2),
        measurements,
    )
    alone = measurements.map(lambda measured: record(1, (), measured))
    data, _ = task_data(TASK, CPU, SKETCHES, draw(st.lists(st.one_of(tiled, alone), max_size=20)))
    return Dataset(draw(st.text(max_size=5)), (PRINT,), (data,))


@given(some_datasets())
@examples(50)
def test_any_dataset_is_read_as_it_was_written(made: Dataset) -> None:
    assert same(datasets.decode(datasets.encode(made), "some"), made)


@given(
    st.one_of(
        arrays.arrays(np.int64, arrays.array_shapes(max_dims=2, min_side=0), elements=st.integers(-(2**63), 2**63 - 1)),
        arrays.arrays(np.float32, arrays.array_shapes(max_dims=2, min_side=0)),
        arrays.arrays(np.float64, arrays.array_shapes(max_dims=2, min_side=0)),
    )
)
@examples(50)
def test_any_array_is_read_as_it_was_written(array: np.ndarray[Any, Any]) -> None:
    read = decode_array(msgpack.unpackb(msgpack.packb(encode_array(array))))
    assert read.dtype == array.dtype
    assert np.array_equal(read, array, equal_nan=array.dtype.kind == "f")


def test_small_integers_take_one_byte_each() -> None:
    assert len(encode_array(np.arange(100))["data"]) == 100
    assert encode_array(np.array([200]))["dtype"] == "<i2"


def test_every_cut_of_a_file_is_told_as_damage() -> None:
    content = datasets.encode(small())
    for length in range(1, len(content)):
        with pytest.raises(DatasetError, match="damaged"):
            datasets.decode(content[:length], "some")


def test_a_flipped_bit_is_damage() -> None:
    content = bytearray(datasets.encode(small()))
    content[len(content) // 2] ^= 1
    with pytest.raises(DatasetError, match="damaged"):
        datasets.decode(bytes(content), "some")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"fleet-tune-dataset one\nx", b"fleet-tune-records 1\n"])
def test_what_is_no_dataset_is_told(content: bytes) -> None:
    with pytest.raises(DatasetError, match="is not a dataset"):
        datasets.decode(content, "some")


def test_a_newer_format_is_told() -> None:
    with pytest.raises(DatasetError, match="has format 99"):
        datasets.decode(b"fleet-tune-dataset 99\n", "some")


def test_a_missing_file_and_a_place_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        datasets.load(tmp_path / "none.ftd")
    with pytest.raises(DatasetError, match="cannot write"):
        datasets.save(small(), tmp_path / "no folder" / "some.ftd")


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file of :func:`small` whose map was changed, as another version would write it."""
    header, _, packed = datasets.encode(small()).partition(b"\n")
    body = msgpack.unpackb(zlib.decompress(packed))
    change(body)
    return header + b"\n" + zlib.compress(msgpack.packb(body))


def test_fields_of_a_later_version_are_ignored_and_lacking_ones_have_defaults() -> None:
    def change(body: dict[str, Any]) -> None:
        body["later"] = 1
        (fields,) = body["tasks"]
        fields["later"] = [1]
        statement = fields["described"]["statements"][0]
        statement["later"] = [{"type": "Loop", "axis": 0, "column": None, "later": 2}]
        del statement["fixed_depth"]  # has a default

    assert same(datasets.decode(changed(change), "some"), small())


def test_a_statement_of_many_variants_stands_once() -> None:
    sketch = dataclasses.replace(SKETCHES[0], variants=((STATEMENT,), (STATEMENT, STATEMENT)), variant_of=(0, 1, 0))
    written = encode_sketches([sketch, SKETCHES[0], SKETCHES[1]])
    assert len(written["statements"]) == 1
    read = decode_sketches(written)
    assert read == (sketch, *SKETCHES)
    assert hash(read[0]) == hash(sketch) != hash(SKETCHES[0])
    assert read[0].variants[0][0] is read[0].variants[1][1] is read[1].statements[0]


def test_what_a_sketch_does_to_a_row_is_written_and_read() -> None:
    step = RowStep("sum", 64, few=4, column=0, operations=1, divisions=0, calls=0, reads=1, writes=0)
    sketch = dataclasses.replace(SKETCHES[1], row_wise=RowWise(8, 2, (step,), held_bytes=260, moved_bytes=260))
    written = msgpack.unpackb(msgpack.packb(encode_sketches([sketch, SKETCHES[1]])))
    read = decode_sketches(written)
    assert read == (sketch, SKETCHES[1])
    assert [each.described for each in read] == [True, False]
    del written["sketches"][0]["row_wise"]  # as an older version wrote it
    assert decode_sketches(written) == (SKETCHES[1], SKETCHES[1])


def test_a_file_of_the_first_format_is_read() -> None:
    def change(body: dict[str, Any]) -> None:
        (fields,) = body["tasks"]
        del fields["described"]
        fields["sketches"] = [encode_value(sketch) for sketch in SKETCHES]

    assert same(datasets.decode(changed(change), "some"), small())


def test_outcomes_are_found_by_the_names_in_the_file() -> None:
    def change(body: dict[str, Any]) -> None:
        body["outcomes"].reverse()
        fields = body["tasks"][0]
        fields["outcome"] = encode_array(len(OUTCOMES) - 1 - decode_array(fields["outcome"]))

    assert same(datasets.decode(changed(change), "some"), small())


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("tasks"),
        lambda body: body["tasks"][0].update(details=[]),
        lambda body: body["tasks"][0]["described"]["sketches"][0].update(type="os.system"),
        lambda body: body["tasks"][0]["described"]["sketches"][0].pop("trace_text"),
        lambda body: body["tasks"][0]["described"]["statements"].clear(),
        lambda body: body["tasks"][0]["outcome"].update(shape=[7]),
        lambda body: body["tasks"][0]["outcome"].update(dtype="O"),
        lambda body: body["outcomes"].__setitem__(0, "unheard of"),
    ],
)
def test_a_map_that_does_not_fit_is_damage(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(DatasetError, match="damaged"):
        datasets.decode(changed(change), "some")


def test_only_known_types_are_written() -> None:
    assert decode_value(encode_value(SKETCHES)) == SKETCHES
    with pytest.raises(TypeError):
        encode_value(Path("."))
    with pytest.raises(TypeError):
        encode_array(np.array(["text"]))


# --- renewed sketches ------------------------------------------------------------------------------------------------


def test_measurements_move_to_sketches_described_anew() -> None:
    (data,) = small()
    # Another order, a choice more, locations in another order, and one sketch more.
    renewed = (
        Sketch(0, "new", "trace 2", (Choice("unroll", (0,)),), ()),
        Sketch(1, "loops", "trace 1", (), (STATEMENT,)),
        Sketch(
            2,
            "tiled",
            "trace 0",
            (Tile(4, 2, 4), Choice("unroll", (0, 8, 16)), Location("pad", (1, 0, -1))),
            (STATEMENT,),
        ),
    )
    moved, left_out = data.with_sketches(renewed)
    assert left_out == 0
    assert moved.sketch_of.tolist() == [2, 1, 2]
    assert moved.decisions[2].tolist() == [[2, 2, 2, 2], [4, 1, 0, 0]]
    assert moved.cost_secs.tolist() == data.cost_secs.tolist()
    assert moved.sketches[1].statements


def test_candidates_whose_sketch_or_choice_is_gone_are_left_out() -> None:
    (data,) = small()
    tiles = (Tile(4, 2, 2), Choice("unroll", (0, 16)), Location("pad", (-1, 0, 1)))
    for decisions, kept in [
        (tiles, [[2, 2, 1, 0], [4, 1, 0, 2]]),
        ((Tile(4, 2, 1), *tiles[1:]), [[4, 1, 0, 2]]),
        ((*tiles[:2], Location("pad", (-1, 0))), [[2, 2, 1, 0]]),
        ((Tile(8, 2, 8), *tiles[1:]), []),
        (tiles[:2], []),
    ]:
        moved, left_out = data.with_sketches((Sketch(0, "tiled", "trace 0", decisions, ()),))
        assert moved.decisions[0].tolist() == kept
        assert (len(moved), left_out) == (len(kept), 3 - len(kept))
        assert set(moved.details) <= {"", "why"}


def test_renewing_with_the_same_sketches_changes_nothing() -> None:
    (data,) = small()
    moved, left_out = data.with_sketches(SKETCHES)
    assert left_out == 0
    assert same(Dataset("toy", (PRINT,), (moved,)), small())


def test_times_are_kept_as_a_device_of_speed_1_would_take_them() -> None:
    measured = dataclasses.replace(ok(1e-3, 2e-3, 3e-3), speed=0.5)
    data, _ = task_data(TASK, CPU, SKETCHES, [record(1, (), measured)])
    assert data.cost_secs.tolist() == pytest.approx([1e-3])
