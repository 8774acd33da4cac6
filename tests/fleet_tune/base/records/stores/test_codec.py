from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.device_state import Admin, Connectivity, DeviceState, Health, Lease
from fleet_tune.base.domain import Candidate, Comparison, Measurement, Outcome, Record
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.stores.codec import BODY_VERSION, decode_record, decode_state, encode_record, encode_state
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
durations = st.floats(min_value=0, max_value=1e6)
run_secs = st.floats(min_value=1e-12, max_value=1e6, exclude_min=True)
comparisons = st.builds(Comparison, texts, run_secs, run_secs, durations, st.integers(2, 24), st.booleans())


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    outcome = draw(st.sampled_from(Outcome))
    runs = draw(st.lists(run_secs, min_size=1, max_size=10)) if outcome is Outcome.OK else []
    return Measurement(
        outcome,
        tuple(runs),
        draw(durations),
        draw(durations),
        draw(texts),
        draw(st.booleans()),
        draw(texts),
        draw(run_secs),
        draw(durations),
        draw(
            st.none() | st.builds(Comparison, texts, run_secs, run_secs, durations, st.integers(2, 24), st.booleans())
        ),
        draw(st.floats(0, 1)),
    )


@st.composite
def records(draw: st.DrawFn) -> Record:
    candidate = Candidate(
        task_id=f"{draw(st.integers(0, 3))}@{draw(st.sampled_from(['zen5', 'orin@gpu']))}",
        sketch=draw(st.integers(0, 9)),
        sketch_id=draw(texts),
        decisions=tuple(draw(st.lists(st.integers(-2, 2**40), max_size=12))),
    )
    return Record(
        uid=draw(texts),
        run_id=draw(texts),
        candidate=candidate,
        trace=draw(texts),
        measurement=draw(measurements()),
        device_id=draw(texts),
        unix_secs=draw(durations),
        seq=draw(st.integers(0, 2**62)),
        revision=draw(st.integers(0, 9)),
    )


@given(records())
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode_record(encode_record(record), record.seq) == record


def _body(record: Record) -> dict:
    return msgpack.unpackb(encode_record(record))


def _record() -> Record:
    return make_record(make_candidate("w@zen5", 4, 2, 1, sketch=1, sketch_id="ab"), ok(2e-3))


def test_fields_of_a_later_version_of_the_same_meaning_are_ignored() -> None:
    body = _body(_record())
    body["power_watts"] = 3.5
    body["measurement"]["clock_hz"] = 1e9
    body["candidate"]["origin"] = "draft"
    assert decode_record(msgpack.packb(body)) == _record()


def test_fields_that_an_earlier_version_did_not_write_have_their_defaults() -> None:
    body = _body(_record())
    body["measurement"] = {"outcome": "build_error"}
    assert decode_record(msgpack.packb(body)).measurement == Measurement(Outcome.BUILD_ERROR)


def test_the_drift_of_version_1_is_a_speed_and_an_error() -> None:
    body = _body(_record())
    body["version"] = 1
    for name in ("speed", "speed_error"):
        del body["measurement"][name]
    assert decode_record(msgpack.packb(body)) == _record()
    body["measurement"]["drift"] = 2.0
    measured = decode_record(msgpack.packb(body)).measurement
    assert (measured.speed, measured.cost_secs, measured.raw_secs) == (0.5, 1e-3, 2e-3)
    assert measured.speed_error == pytest.approx(0.1733, abs=1e-4)  # ln(2) / 4
    for drift in (0.0, -1.0, float("nan")):
        body["measurement"]["drift"] = drift
        with pytest.raises(RecordStoreError):
            decode_record(msgpack.packb(body))


def test_a_body_of_a_newer_version_is_refused_with_both_versions() -> None:
    body = _body(_record())
    body["version"] = BODY_VERSION + 1
    with pytest.raises(RecordStoreError, match=rf"version {BODY_VERSION + 1} .* version {BODY_VERSION}\b"):
        decode_record(msgpack.packb(body), 7)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb(3),
        msgpack.packb({"version": 1}),
        encode_record(_record())[:-3],
        encode_record(_record()).replace(b"\xa2ok", b"\xa2oj"),
    ],
    ids=["empty", "not msgpack", "a number", "no fields", "cut off", "unknown outcome"],
)
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(RecordStoreError, match="record 7 cannot be read"):
        decode_record(body, 7)


@given(
    st.builds(
        DeviceState,
        st.sampled_from(Connectivity),
        st.sampled_from(Health),
        st.sampled_from(Admin),
        st.builds(Lease, texts, durations, st.integers(0, 2**60)),
        st.lists(texts, max_size=4).map(tuple),
        st.integers(0, 50),
        durations,
        st.integers(0, 100),
    )
)
def test_any_state_of_a_device_survives(state: DeviceState) -> None:
    assert decode_state(encode_state(state)) == state


def test_a_state_of_a_newer_version_or_none_at_all_is_refused() -> None:
    fields = msgpack.unpackb(encode_state(DeviceState()))
    with pytest.raises(RecordStoreError, match="version 99"):
        decode_state(msgpack.packb({**fields, "version": 99}))
    for body in (b"", b"\xc1", msgpack.packb({"version": 1}), msgpack.packb({**fields, "health": "fine"})):
        with pytest.raises(RecordStoreError, match="cannot be read"):
            decode_state(body)
