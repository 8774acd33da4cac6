"""Origins and efforts: what a measurement depends on besides its task and candidate, and what a run has spent on a
task.

With them, a store that runs share decides which of its records count for another run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_tune.base.errors import UnreadableRecordError

_WORDS = {
    "apache-tvm": "TVM",
    "apache-tvm-ffi": "TVM's FFI",
    "kernels": "our own code",
    "probe": "the probe",
    "compiler": "the CUDA compiler",
    "driver": "the GPU's driver",
    "power": "the power mode",
}
_SHOWN = 40
MEASURED_BY = "measured by"
"""Key in :attr:`Origin.versions` for the name of the program that measured, if it was not fleet-tune. Nothing else is
known of that program."""


@dataclass(frozen=True)
class Origin:
    """Conditions of a device class in one run, on which its measurements depend.

    Records of an equal origin count as if the run had measured them itself; records of another origin must be
    confirmed.
    """

    target: str
    """Canonical JSON text of the TVM target."""
    cpu_model: str
    threads: int
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Versions of the software that makes and measures kernels, by name: TVM's packages, a digest of our own code
    (``kernels``), the probe."""
    machine: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Other properties of the devices and their builds, as far as they are known: the processor's ``microcode``; for a
    GPU its ``driver`` and the ``compiler`` of its machine code; for a board its ``power`` mode."""

    def differences(self, now: Origin) -> tuple[str, ...]:
        """Describe the parts in which this origin differs from ``now``; none if both are equal."""
        found = []
        for word, then, here in (
            ("target", self.target, now.target),
            ("processor", self.cpu_model, now.cpu_model),
            ("threads", str(self.threads), str(now.threads)),
        ):
            if then != here:
                found.append(f"{word} {_short(then)} there and {_short(here)} here")
        for before, after in ((self.versions, now.versions), (self.machine, now.machine)):
            for name in sorted({*before, *after}):
                then, here = before.get(name, "none"), after.get(name, "none")
                if then != here:
                    found.append(f"{_WORDS.get(name, name)} {_short(then)} there and {_short(here)} here")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of a run on a task, as an even share of what it spent on all tuned tasks. Infinite if the search of the
    task was completed."""

    task_id: str
    run_id: str
    secs: float
    """Seconds of tuning."""
    trials: float
    """Number of trials."""


def encode_origin(origin: Origin) -> str:
    """Return an origin as JSON text. Equal origins have the same text."""
    body = {
        "target": origin.target,
        "cpu_model": origin.cpu_model,
        "threads": origin.threads,
        "versions": dict(origin.versions),
    }
    # Without ``machine`` the text is the one of older versions: equal origins are one row of a store.
    return json.dumps({**body, "machine": dict(origin.machine)} if origin.machine else body, sort_keys=True)


def decode_origin(body: str) -> Origin:
    """Return the origin that :func:`encode_origin` wrote; unknown names are ignored. Raise
    :class:`UnreadableRecordError`."""
    try:
        fields = json.loads(body)
        versions, machine = fields["versions"], fields.get("machine", {})
        if not isinstance(versions, dict) or not isinstance(machine, dict):
            raise ValueError("names and versions are expected")
        texts = (fields["target"], fields["cpu_model"], *versions, *versions.values(), *machine, *machine.values())
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("a text is expected")
        return Origin(fields["target"], fields["cpu_model"], int(fields["threads"]), versions, machine)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise UnreadableRecordError(
            f"the origin of a run cannot be read: {error}", "restore the database from a copy"
        ) from error


def _short(text: str) -> str:
    text = " ".join(text.split()) or "none"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
