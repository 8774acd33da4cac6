"""Networks that are lowered and run in the test's process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from devices.networks.network import Array, Network
from devices.networks.processes.lowering_process import LoweringProcess
from devices.networks.tasks.lowering import LoweredNetwork, UntunedResult, import_network, run_untuned
from fleet_tune.base.domain import DeviceClass


class LoweredHere(LoweringProcess):
    """Lowers and runs networks in this process. ``shifted``: what is added to their outputs; ``rows``: where the first
    input has so many rows alone."""

    def __init__(self, shifted: float = 0.0, rows: int | None = None) -> None:
        self._shifted, self._rows = shifted, rows

    def lowered(self, network: Network, device_class: DeviceClass) -> LoweredNetwork:
        return import_network(network, device_class)

    def run(self, lowered: LoweredNetwork, inputs: Sequence[Array]) -> UntunedResult:
        is_shifted = self._rows in (None, len(inputs[0]))
        shift = np.float32(self._shifted if is_shifted else 0.0)
        untuned = run_untuned(lowered.module, inputs)
        return UntunedResult(tuple(each + shift for each in untuned.outputs), untuned.secs)

    def close(self) -> None: ...
