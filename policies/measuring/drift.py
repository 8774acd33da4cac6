"""What a device's drift means for its records: see :mod:`policies.measuring.baseline` for the rule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from fleet_tune.domain import Measurement, Outcome, Record
from policies.measuring.baseline import MAX_DRIFT, Baseline, checked

# Between two checks a device makes some hundreds of records. Of more than this the oldest are let be.
_KEPT_RECORDS = 4096


class DriftWatch:
    """The baseline of one device, and what it measured since it was last found right."""

    def __init__(self, max_drift: float = MAX_DRIFT) -> None:
        self._max_drift = max_drift
        self._baseline: Baseline | None = None
        self._since: list[Record] = []

    @property
    def baseline(self) -> Baseline | None:
        """What the device is compared with, None before the first check."""
        return self._baseline

    @property
    def factor(self) -> float:
        """What the device is off by, as far as is known: 1 while it is right."""
        return 1.0 if self._baseline is None else self._baseline.factor

    def checked(self, probe_secs: float, earlier: Baseline | None = None) -> list[Record]:
        """The probe took this long. The records to be stored for it: those since the device was last right,
        once more and marked, where it is now found to be off. ``earlier``: what a watch of this device before this one
        found, whose process ended; what the device is like by now must not become what counts as right."""
        was_off = self._baseline is not None and self._baseline.off
        self._baseline = checked(self._baseline or earlier, probe_secs, self._max_drift)
        since, self._since = self._since, []
        if not self._baseline.off or was_off:
            return []
        return [marked(record, self.factor) for record in since if record.measurement.outcome is Outcome.OK]

    def stamped(self, measurement: Measurement) -> Measurement:
        """What was measured just now, with what the device is off by."""
        return with_drift(measurement, self.factor) if measurement.outcome is Outcome.OK else measurement

    def stored(self, records: Sequence[Record]) -> None:
        """These records of the device are durable."""
        self._since = [*self._since, *records][-_KEPT_RECORDS:]


def with_drift(measurement: Measurement, factor: float) -> Measurement:
    """The measurement as it would be without ``factor``, and less certain. What was verified stays so."""
    if factor == 1.0:
        return measurement
    return dataclasses.replace(measurement, speed=1 / factor, speed_error=abs(math.log(factor)) / 4)


def marked(record: Record, factor: float) -> Record:
    """A revision of ``record`` that says that its device was off by ``factor``."""
    revision = record.revision + 1
    return dataclasses.replace(
        record,
        uid=f"{record.run_id}-{record.candidate.id}-{revision}",
        measurement=with_drift(record.measurement, factor),
        seq=0,
        revision=revision,
    )
