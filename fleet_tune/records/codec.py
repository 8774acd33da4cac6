"""Records as bytes: msgpack maps of named fields with a schema version.

Rules that keep old and new versions readable by each other: fields are found by name, a reader ignores names it does
not know, and a field added later has a default. ``BODY_VERSION`` grows only when the meaning of a field changes; a body
of a newer version is refused. Nothing here reads pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]

from fleet_tune.device_state import Admin, Connectivity, DeviceState, Health, Lease
from fleet_tune.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.errors import RecordStoreError

BODY_VERSION = 1


def encode_record(record: Record) -> bytes:
    """Bytes of a record without its ``seq``, which belongs to the store and not to the record."""
    body = {
        "version": BODY_VERSION,
        "uid": record.uid,
        "run_id": record.run_id,
        "candidate": _candidate_fields(record.candidate),
        "trace": record.trace,
        "measurement": _measurement_fields(record.measurement),
        "device_id": record.device_id,
        "unix_secs": record.unix_secs,
        "revision": record.revision,
    }
    return cast(bytes, msgpack.packb(body))


def decode_record(body: bytes, seq: int = 0) -> Record:
    """The record that :func:`encode_record` wrote, with ``seq``.

    Raises :class:`RecordStoreError` for a body of a newer version or one that is no record.
    """
    try:
        fields = msgpack.unpackb(body)
        version = fields["version"]
        if version > BODY_VERSION:
            raise RecordStoreError(
                f"record {seq} has version {version} and this fleet-tune reads up to version {BODY_VERSION}",
                "use a newer fleet-tune, or another output folder",
            )
        return Record(
            uid=fields["uid"],
            run_id=fields["run_id"],
            candidate=_candidate(fields["candidate"]),
            trace=fields["trace"],
            measurement=_measurement(fields["measurement"]),
            device_id=fields["device_id"],
            unix_secs=fields["unix_secs"],
            seq=seq,
            revision=fields.get("revision", 0),
        )
    except (msgpack.UnpackException, KeyError, TypeError, ValueError) as error:
        raise RecordStoreError(
            f"record {seq} cannot be read: {error!r}", "restore the database from a copy, or use another output folder"
        ) from error


def encode_state(state: DeviceState) -> bytes:
    """Bytes of a device's state."""
    body = {
        "version": BODY_VERSION,
        "connectivity": state.connectivity.value,
        "health": state.health.value,
        "admin": state.admin.value,
        "lease": [state.lease.owner, state.lease.deadline_unix_secs, state.lease.epoch],
        "losses": list(state.losses),
        "quarantines": state.quarantines,
        "until_unix_secs": state.until_unix_secs,
        "good_runs": state.good_runs,
    }
    return cast(bytes, msgpack.packb(body))


def decode_state(body: bytes) -> DeviceState:
    """The state that :func:`encode_state` wrote. Raises :class:`RecordStoreError` for anything else."""
    try:
        fields = msgpack.unpackb(body)
        if fields["version"] > BODY_VERSION:
            raise RecordStoreError(
                f"a device's state has version {fields['version']} and this fleet-tune reads up to {BODY_VERSION}",
                "use a newer fleet-tune, or another output folder",
            )
        return DeviceState(
            connectivity=Connectivity(fields["connectivity"]),
            health=Health(fields["health"]),
            admin=Admin(fields["admin"]),
            lease=Lease(*fields["lease"]),
            losses=tuple(fields.get("losses", ())),
            quarantines=fields.get("quarantines", 0),
            until_unix_secs=fields.get("until_unix_secs", 0.0),
            good_runs=fields.get("good_runs", 0),
        )
    except (msgpack.UnpackException, KeyError, TypeError, ValueError) as error:
        raise RecordStoreError(
            f"a device's state cannot be read: {error!r}",
            "restore the database from a copy, or use another output folder",
        ) from error


def _candidate_fields(candidate: Candidate) -> dict[str, Any]:
    return {
        "task_id": candidate.task_id,
        "sketch": candidate.sketch,
        "sketch_id": candidate.sketch_id,
        "decisions": list(candidate.decisions),
    }


def _candidate(fields: Mapping[str, Any]) -> Candidate:
    return Candidate(
        task_id=fields["task_id"],
        sketch=fields["sketch"],
        sketch_id=fields["sketch_id"],
        decisions=tuple(fields["decisions"]),
    )


def _measurement_fields(measurement: Measurement) -> dict[str, Any]:
    return {
        "outcome": measurement.outcome.value,
        "run_secs": list(measurement.run_secs),
        "build_secs": measurement.build_secs,
        "measure_secs": measurement.measure_secs,
        "stopped": measurement.stopped,
        "verified": measurement.verified,
        "detail": measurement.detail,
        "drift": measurement.drift,
    }


def _measurement(fields: Mapping[str, Any]) -> Measurement:
    return Measurement(
        outcome=Outcome(fields["outcome"]),
        run_secs=tuple(fields.get("run_secs", ())),
        build_secs=fields.get("build_secs", 0.0),
        measure_secs=fields.get("measure_secs", 0.0),
        stopped=fields.get("stopped", ""),
        verified=fields.get("verified", False),
        detail=fields.get("detail", ""),
        drift=fields.get("drift", 1.0),
    )
