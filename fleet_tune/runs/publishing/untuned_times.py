"""What untuned networks take, as earlier runs of this user have timed them.

An untuned network may take hundreds of times as long as the tuned one, and longer to compile and time than all else of
a run that has nothing to tune. It is only asked whether it is the faster one; where an earlier run has shown that it is
far from that, the same again need not be shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from devices.host.file_cache import FileCache, key_of
from devices.networks.lowering import LoweredNetwork
from devices.networks.network_folder import made_of
from fleet_tune.base.domain import Fingerprint

CLEARLY = 2.0
"""A tuned network is faster beyond doubt where it takes less than one part in so many of what the untuned one took at
another moment. What it took while others worked on the host is not kept: that may be many times as much."""


class UntunedTimes:
    """Seconds per run, in ``folder``, which other caches may share; None: nothing is kept, and nothing known."""

    def __init__(self, folder: Path | None = None) -> None:
        self._files = None if folder is None else FileCache(folder, ".secs", "times of untuned networks")

    def find(self, lowered: LoweredNetwork, fingerprint: Fingerprint, place: str) -> float | None:
        """Of the same network, compiled by the same code, on the same kind of device, timed at the same place (this
        machine, or a device by its name)."""
        body = self._files.find(_key(lowered, fingerprint, place)) if self._files else None
        try:
            secs = json.loads(body) if body is not None else None
        except ValueError:
            return None
        return secs if isinstance(secs, float) and 0.0 < secs < math.inf else None

    def keep(self, lowered: LoweredNetwork, fingerprint: Fingerprint, place: str, secs: float) -> None:
        """For the runs that follow."""
        if self._files is not None:
            self._files.store(_key(lowered, fingerprint, place), json.dumps(float(secs)).encode())


def _key(lowered: LoweredNetwork, fingerprint: Fingerprint, place: str) -> str:
    machine: Sequence[str] = (fingerprint.cpu_model, fingerprint.driver, fingerprint.microcode)
    return key_of(["untuned, nobody else working", made_of(lowered, {}), str(fingerprint.threads), *machine, place])
