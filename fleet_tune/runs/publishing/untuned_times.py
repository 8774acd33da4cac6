"""Times of untuned networks that earlier runs of this user have measured.

An untuned network may take a hundred times as long as the tuned one. Compiling and timing it may take longer than the
rest of a run that has nothing to tune. If it is known to be far slower than the tuned network, it is not measured
again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from devices.host.file_cache import FileCache, key_of
from devices.networks.compiled.network_folder import made_of
from devices.networks.tasks.lowering import LoweredNetwork
from fleet_tune.base.domain import Fingerprint

CLEARLY = 4.0
"""A tuned network is clearly faster if the untuned one took at least so many times as long at another moment. The ratio
is large because a time from the comparison with the framework is inexact: other processes shared the caches, and LLVM
had optimised less (max pooling took 1.8 times as long). Times that were measured while other processes worked on the
host are not kept, because they may be many times as long."""
_MEASURED, _COMPARED = "untuned, nobody else working", "untuned, CPU time when it was compared"


class UntunedTimes:
    """Cache of the seconds per run of untuned networks.

    Args:
        folder: the folder of the cache, which other caches may share; None to keep nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._files = None if folder is None else FileCache(folder, ".secs", "times of untuned networks")

    def find(self, lowered: LoweredNetwork, fingerprint: Fingerprint, place: str) -> float | None:
        """Return the seconds of the same network, compiled by the same code, on the same kind of device and at the same
        place (this machine, or a device by its name): the measured time, else the time from the comparison with the
        framework. None if neither is known."""
        found = (self._find(_key(kind, lowered, fingerprint, place)) for kind in (_MEASURED, _COMPARED))
        return next((secs for secs in found if secs is not None), None)

    def keep(self, lowered: LoweredNetwork, fingerprint: Fingerprint, place: str, secs: float) -> None:
        """Keep the measured seconds for later runs."""
        self._keep(_key(_MEASURED, lowered, fingerprint, place), secs)

    def keep_compared(self, lowered: LoweredNetwork, fingerprint: Fingerprint, place: str, secs: float) -> None:
        """Keep the CPU seconds of the network from its comparison with the framework for later runs."""
        self._keep(_key(_COMPARED, lowered, fingerprint, place), secs)

    def _find(self, key: str) -> float | None:
        body = self._files.find(key) if self._files else None
        try:
            secs = json.loads(body) if body is not None else None
        except ValueError:
            return None
        return secs if isinstance(secs, float) and 0.0 < secs < math.inf else None

    def _keep(self, key: str, secs: float) -> None:
        if self._files is not None:
            self._files.store(key, json.dumps(float(secs)).encode())


def _key(kind: str, lowered: LoweredNetwork, fingerprint: Fingerprint, place: str) -> str:
    machine: Sequence[str] = (fingerprint.cpu_model, fingerprint.driver, fingerprint.microcode, fingerprint.power)
    return key_of([kind, made_of(lowered, {}), str(fingerprint.threads), *machine, place])
