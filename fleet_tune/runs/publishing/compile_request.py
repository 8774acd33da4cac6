"""The input of compiling: networks, records, and the runner of each network before it is published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devices.networks.checks.special_inputs import special_inputs_of
from devices.networks.dynamic.other_extents import AtExtents, frequent_inputs, other_extents
from devices.networks.frontend import Network
from devices.networks.network import Array
from devices.networks.tasks.lowering import LoweredNetwork
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.publishing.device_runner import DeviceNetworkRunner
from fleet_tune.runs.publishing.incumbents import RecordSupplier
from fleet_tune.runs.publishing.network_runners import LocalNetworkRunner, NetworkRunner
from fleet_tune.runs.publishing.quiet_host import PATIENCE_SECS, QuietHost
from fleet_tune.runs.publishing.untuned_times import UntunedTimes
from fleet_tune.runs.tuned import Tuned


@dataclass(frozen=True)
class CompileRequest:
    """Networks to compile from the records of a store. Mappings are by the name of the device class."""

    network: Network
    lowered: Mapping[str, LoweredNetwork]
    fingerprints: Mapping[str, Fingerprint]
    """The fingerprint of each device class."""
    entries: Sequence[SearchTask]
    """The tasks that have sketches."""
    runners: Mapping[str, NetworkRunner]
    """Runners of the networks before they are published. The network of a class without a runner is not checked."""
    records: Path
    suppliers: Mapping[str, RecordSupplier] = field(default_factory=dict)
    """Suppliers of records for tasks without one."""
    progress: CompileProgress = field(default_factory=CompileProgress)
    """Receives each step, and the warnings."""
    spare_secs: float = math.inf
    """Longest expected time of a choice between records by their time in the network: a choice that would take longer
    is not made. Also the longest time of waits for a quiet host."""
    run_id: str = ""
    """The run of new records. Empty if a store is compiled without a run: a revision that withdraws a record then
    belongs to the run that measured the record."""
    classes: int = 0
    """Number of device classes of the output folder, if it is larger than the number of classes that are compiled
    now."""
    untuned_times: UntunedTimes = field(default_factory=UntunedTimes)
    """Times of untuned networks that earlier runs have measured."""
    untuned_secs: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a run of the untuned network on one core of this machine, if it was compared with the framework and
    would be published in the same form."""
    expected: tuple[Array, ...] | None = None
    """Outputs of the network's framework. None if they are not known."""
    at_extents: tuple[AtExtents, ...] = ()
    """Other extents of the dynamic dimensions at which the runners run the network for the comparison."""

    @property
    def rules(self) -> dict[str, str]:
        """The sketch rule of each sketch id."""
        return {sketch.id: sketch.rule for entry in self.entries for sketch in entry.sketches}


def compile_request(
    tuned: Tuned, records: Path, progress: CompileProgress, spare_secs: float = math.inf
) -> CompileRequest:
    """Return the request to compile the networks of a run from these records. Each network is run on this machine if
    that belongs to the class, else on a device of the class. See :class:`CompileRequest` for the arguments."""
    prepared = tuned.prepared
    with RecordReader(records) as reader:
        states = {name: event.state for name, event in reader.devices.states().items()}
    inputs = prepared.network.example_inputs
    special = tuple(special_inputs_of(prepared.network).values())
    others = prepared.other_extents
    if others is None:
        others = other_extents(prepared.network)
        for refusal in others.refusals:
            progress.warn(refusal)
    at_extents = {each.name: each.inputs for each in others.compared}
    frequent = frequent_inputs(prepared.network)
    runners: dict[str, NetworkRunner] = {}
    for name in prepared.lowered:
        if name in prepared.here:
            patience_secs = min(PATIENCE_SECS, spare_secs)
            host = QuietHost(prepared.fingerprints[name].threads, patience_secs, progress.report_step)
            runners[name] = LocalNetworkRunner(inputs, special, host, at_extents, frequent)
        elif (device := prepared.device_of(name, states)) is not None:
            runners[name] = DeviceNetworkRunner(device, inputs, special, at_extents)
    return CompileRequest(
        network=prepared.network,
        lowered=prepared.lowered,
        fingerprints=prepared.fingerprints,
        entries=tuned.tasks,
        runners=runners,
        records=records,
        progress=progress,
        spare_secs=spare_secs,
        untuned_secs=prepared.untuned_secs,
        expected=prepared.expected,
        at_extents=others.compared,
    )
