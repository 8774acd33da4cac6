"""Records as bytes: msgpack maps of named fields with a schema version, written and read by msgspec.

Rules that keep old and new versions readable by each other: fields are found by name, a reader ignores names it does
not know, and a field added later has a default. ``BODY_VERSION`` grows only when the meaning of a field changes; a body
of a newer version is refused. Nothing here reads pickle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable

import msgspec

from fleet_tune.base.device_state import Admin, Connectivity, DeviceState, Health, Lease
from fleet_tune.base.domain import Candidate, Measurement, Record
from fleet_tune.base.errors import RecordStoreError, UnreadableRecordError

BODY_VERSION = 2
"""In version 1 a measurement had a ``drift`` instead of its ``speed``, and a measurement that drifted was not
``verified``."""


class _Versioned(msgspec.Struct):
    version: int


class _RecordBody(msgspec.Struct):
    """A record without its ``seq``, which belongs to the store and not to the record."""

    version: int
    uid: str
    run_id: str
    candidate: Candidate
    trace: str
    measurement: Measurement
    device_id: str
    unix_secs: float
    revision: int = 0


class _Drift(msgspec.Struct):
    drift: float = 1.0


class _DriftBody(msgspec.Struct):
    """Part of a body of version 1 with the speed of its device: the factor by which the device was slower than
    usual."""

    measurement: _Drift


class _StateBody(msgspec.Struct):
    """A device's state. ``lease``: owner, deadline in unix seconds, epoch."""

    version: int
    connectivity: Connectivity
    health: Health
    admin: Admin
    lease: tuple[str, float, int]
    losses: tuple[str, ...] = ()
    quarantines: int = 0
    until_unix_secs: float = 0.0
    good_runs: int = 0


_ENCODER = msgspec.msgpack.Encoder(enc_hook=lambda number: number.item())  # numpy's numbers become Python's
_JSON_ENCODER = msgspec.json.Encoder(enc_hook=lambda number: number.item())
_JSON_RECORD = msgspec.json.Decoder(_RecordBody)
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError)  # TypeError: the value is no bytes
_RECORD = msgspec.msgpack.Decoder(_RecordBody)
_DRIFT = msgspec.msgpack.Decoder(_DriftBody)
_STATE = msgspec.msgpack.Decoder(_StateBody)
_VERSION = msgspec.msgpack.Decoder(_Versioned)


def encode_record(record: Record, *, trace: bool = True) -> bytes:
    """Return a record as bytes without its ``seq``. ``trace``: false if its trace is kept elsewhere."""
    return _ENCODER.encode(_body(record, record.trace if trace else ""))


def record_to_json(record: Record) -> bytes:
    """Return a record with its trace, without its ``seq``, as one line of JSON text."""
    return _JSON_ENCODER.encode(_body(record, record.trace))


def record_from_json(line: bytes, seq: int = 0) -> Record:
    """Return the record that :func:`record_to_json` wrote, with ``seq``. Raise :class:`UnreadableRecordError`."""
    try:
        fields = _JSON_RECORD.decode(line)
        if fields.version != BODY_VERSION:
            raise ValueError(f"version {fields.version} of a record")
    except (*_BROKEN, ValueError) as error:
        raise _unreadable(f"record {seq}", error) from error
    return _record(fields, fields.trace, seq)


def _body(record: Record, trace: str) -> _RecordBody:
    return _RecordBody(
        BODY_VERSION,
        record.uid,
        record.run_id,
        record.candidate,
        trace,
        record.measurement,
        record.device_id,
        record.unix_secs,
        record.revision,
    )


def _record(fields: _RecordBody, trace: str, seq: int) -> Record:
    return Record(
        fields.uid,
        fields.run_id,
        fields.candidate,
        trace,
        fields.measurement,
        fields.device_id,
        fields.unix_secs,
        seq,
        fields.revision,
    )


def decode_record(body: bytes, seq: int = 0, trace: str | None = None) -> Record:
    """Return the record that :func:`encode_record` wrote, with ``seq``, and with ``trace`` if that was kept elsewhere.
    Raise :class:`UnreadableRecordError` for a body that is no record, :class:`RecordStoreError` for one of a newer
    version."""
    try:
        fields = _RECORD.decode(body)
        if fields.version > BODY_VERSION:
            _refuse_newer(body, f"record {seq}")
        drift = _DRIFT.decode(body).measurement.drift if fields.version == 1 else 1.0
        if drift != 1.0:
            # Kernels do not all become slower by the same factor, so that the speed has an error.
            fields.measurement = dataclasses.replace(
                fields.measurement, speed=1 / drift, speed_error=abs(math.log(drift)) / 4
            )
    except (*_BROKEN, ValueError, ZeroDivisionError) as error:
        _refuse_newer(body, f"record {seq}")  # a newer version need not have the fields of this one
        raise _unreadable(f"record {seq}", error) from error
    return _record(fields, fields.trace if trace is None else trace, seq)


def readable_records(bodies: Iterable[tuple[int, bytes]]) -> list[Record]:
    """Return the records of the ``bodies`` that can be decoded. Each body comes with its ``seq``."""
    records = []
    for seq, body in bodies:
        with contextlib.suppress(UnreadableRecordError):
            records.append(decode_record(body, seq))
    return records


def encode_state(state: DeviceState) -> bytes:
    """Return a device's state as bytes."""
    return _ENCODER.encode(
        _StateBody(
            BODY_VERSION,
            state.connectivity,
            state.health,
            state.admin,
            (state.lease.owner, state.lease.deadline_unix_secs, state.lease.epoch),
            state.losses,
            state.quarantines,
            state.until_unix_secs,
            state.good_runs,
        )
    )


def decode_state(body: bytes) -> DeviceState:
    """Return the state that :func:`encode_state` wrote. Raise as :func:`decode_record` does."""
    _refuse_newer(body, "a device's state")
    try:
        fields = _STATE.decode(body)
    except _BROKEN as error:
        raise _unreadable("a device's state", error) from error
    return DeviceState(
        fields.connectivity,
        fields.health,
        fields.admin,
        Lease(*fields.lease),
        fields.losses,
        fields.quarantines,
        fields.until_unix_secs,
        fields.good_runs,
    )


def _refuse_newer(body: bytes, what: str) -> None:
    """Raise for a body of a newer version, which need not have the fields of this one."""
    try:
        version = _VERSION.decode(body).version
    except _BROKEN as error:
        raise _unreadable(what, error) from error
    if version > BODY_VERSION:
        raise RecordStoreError(
            f"{what} has version {version} and this fleet-tune reads up to version {BODY_VERSION}",
            "use a newer fleet-tune, or another output folder",
        )


def _unreadable(what: str, error: Exception) -> UnreadableRecordError:
    return UnreadableRecordError(
        f"{what} cannot be read: {error}", "restore the database from a copy, or use another output folder"
    )
