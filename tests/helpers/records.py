"""Measurements and records."""

from __future__ import annotations

from fleet_tune.base.device_state import DeviceEvent, DeviceState
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from tests.helpers.tasks import make_candidate


def ok(*run_secs: float, verified: bool = True, build_secs: float = 0.5, measure_secs: float = 0.1) -> Measurement:
    """A measurement that came to its end."""
    return Measurement(Outcome.OK, run_secs, build_secs, measure_secs, "converged", verified)


def failed(outcome: Outcome = Outcome.BUILD_ERROR, detail: str = "why", *, build_secs: float = 0.25) -> Measurement:
    """A failure of this kind."""
    return Measurement(outcome, build_secs=build_secs, detail=detail)


def make_record(
    candidate: Candidate,
    measurement: Measurement,
    uid: str | None = None,
    *,
    trace: str = "trace",
    device: str = "device",
    revision: int = 0,
) -> Record:
    """The record of a candidate; ``uid``: its id and the revision where none is given."""
    name = f"{candidate.id}.{revision}" if uid is None else uid
    return Record(name, "run", candidate, trace, measurement, device, 0.0, revision=revision)


def named_record(
    uid: str,
    cost_secs: float | None = 1e-3,
    *,
    task_id: str = "w1@zen5",
    decisions: tuple[int, ...] = (1,),
    verified: bool = True,
    outcome: Outcome = Outcome.BUILD_ERROR,
    trace: str = "[]",
    revision: int = 0,
) -> Record:
    """A record of a store, told apart by its ``uid``. ``cost_secs``: None for one that failed with ``outcome``."""
    measurement = failed(outcome, "boom") if cost_secs is None else ok(cost_secs, verified=verified)
    candidate = make_candidate(task_id, *decisions, sketch_id="s0")
    return make_record(candidate, measurement, uid, trace=trace, device="dev", revision=revision)


def device_event(device: str, kind: str = "lost", state: DeviceState | None = None) -> DeviceEvent:
    """A change of a device."""
    return DeviceEvent(device, "run", kind, f"{device} {kind}", state or DeviceState(), 1.5)
