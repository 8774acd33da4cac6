"""fleet-tune: tunes tensor programs on fleets of devices.

The package contains what users touch (command line, Python API, fleet file, reports), whole runs, and the values that
every layer uses. ``base`` imports none of the other packages; in it, ``records`` and ``config`` stand above the modules
of values (``domain``, ``sketch``, ``results``, ``errors`` and others). ``runs``, then ``retuning``,
``training``, ``scaling`` and ``store_server``, then ``report`` and ``api``, then ``cli`` stand above all other layers.
They are loaded lazily, so that importing this package loads neither ray nor torch nor tvm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet_tune.base.domain import Candidate, DeviceClass, Measurement, Outcome, Record, Task, Workload
from fleet_tune.base.errors import FleetTuneError, UserError
from fleet_tune.base.version import __version__

if TYPE_CHECKING:
    from fleet_tune.api import TuneResult, load, stream, tune

_LAZY = ("TuneResult", "load", "stream", "tune")

__all__ = [
    "Candidate",
    "DeviceClass",
    "FleetTuneError",
    "Measurement",
    "Outcome",
    "Record",
    "Task",
    "TuneResult",
    "UserError",
    "Workload",
    "__version__",
    "load",
    "stream",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from fleet_tune import api

        return getattr(api, name)
    raise AttributeError(f"module 'fleet_tune' has no attribute {name!r}")
