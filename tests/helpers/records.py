"""Measurements and records."""

from __future__ import annotations

from fleet_tune.domain import Candidate, Measurement, Outcome, Record


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
