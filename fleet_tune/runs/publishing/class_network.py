"""The network of one device class: the input of its compilation, and the compiled and checked network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from devices.networks.checks.comparison import errors_of
from devices.networks.checks.special_inputs import difference
from devices.networks.network import Array
from devices.networks.tasks.lowering import LoweredNetwork, tolerance
from fleet_tune.base.domain import Fingerprint, Record
from fleet_tune.base.latency_estimate import estimated_secs
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import ChosenInNetwork, OutputErrors
from fleet_tune.runs.publishing import manifest
from fleet_tune.runs.publishing.compile_request import CompileRequest
from fleet_tune.runs.publishing.network_runners import THIS_MACHINE, NetworkRunResult


class NetworkCompiler(Protocol):
    """Compiles networks: :class:`~devices.networks.processes.compile_process.CompileProcess`, or within this process
    :mod:`devices.networks.compiled.network_folder`."""

    def compile_network(
        self,
        lowered: LoweredNetwork,
        best: Mapping[str, str | None],
        out: Path,
        manifest_extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """See :func:`devices.networks.compiled.network_folder.compile_network`."""


@dataclass(frozen=True)
class ClassNetwork:
    """The network of one device class, before it is compiled."""

    request: CompileRequest
    lowered: LoweredNetwork
    compiler: NetworkCompiler
    expected: tuple[Array, ...]
    """Outputs of the network's framework."""
    special: Callable[[], Mapping[str, tuple[Array, ...] | None]] = dict
    """Returns the outputs of the framework on each set of special inputs, in the order of the runners."""

    @property
    def name(self) -> str:
        """The name of the device class."""
        return self.lowered.device_class.name

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the device class."""
        return self.request.fingerprints[self.name]

    def compile(self, records: Mapping[str, Record], folder: Path) -> Path:
        """Compile the network from these records, by task id, without a manifest for publishing."""
        return self.compiler.compile_network(self.lowered, traces(records), folder)

    def compile_whole(self, records: Mapping[str, Record], folder: Path) -> Path:
        """Compile the network from these records, by task id, with its manifest, so that it may be published."""
        return self.compiler.compile_network(self.lowered, traces(records), folder, self._manifest(records))

    def compile_untuned(self, records: Mapping[str, Record], folder: Path) -> Path:
        """Compile the network without schedules. Its manifest is as for ``records``, but has no tasks."""
        extra = {**self._manifest(records), "tasks": {}}
        return self.compiler.compile_network(self.lowered, {}, folder, extra)

    def find_untuned_secs(self, place: str) -> float | None:
        """Return the seconds of the untuned network at ``place`` from an earlier run. For this machine, they may be
        from this run's comparison with the framework instead; these are kept for later runs. None if not known."""
        times = self.request.untuned_times
        found = times.find(self.lowered, self.fingerprint, place)
        if found is None and place == THIS_MACHINE:
            found = self.request.untuned_secs.get(self.name)
            if found is not None:
                times.keep_compared(self.lowered, self.fingerprint, place, found)
        return found

    def keep_untuned_secs(self, place: str, secs: float) -> None:
        """Keep the measured seconds of the untuned network for later runs."""
        self.request.untuned_times.keep(self.lowered, self.fingerprint, place, secs)

    def estimated_secs(self, records: Mapping[str, Record]) -> float | None:
        """Return the estimated latency of the network that is made of ``records``, by task id. None if the time of
        calls on the class is not known, or if tasks that are not small have no record."""
        with RecordReader(self.request.records) as reader:
            call_secs = reader.speeds.call_secs().get(self.name)
            best_secs = {task_id: reader.shown_secs(record) for task_id, record in records.items()}
        if call_secs is None:
            return None
        tasks = [
            (float(each.weight), each.workload.flop, best_secs.get(each.id, math.inf)) for each in self.lowered.tasks
        ]
        secs = estimated_secs(tasks, call_secs)
        return secs if math.isfinite(secs) else None

    def errors_of(
        self, outputs: tuple[Array, ...], at_extents: Mapping[str, tuple[Array, ...]]
    ) -> tuple[OutputErrors, str]:
        """Return the errors of the outputs on the example inputs, and a description of the first wrong output, there or
        at other extents of the dynamic dimensions. The description is empty if all outputs are right.

        Args:
            outputs: on the example inputs.
            at_extents: on the inputs of each of :attr:`CompileRequest.at_extents`, by its name.
        """
        limit = tolerance(self.lowered)
        errors = errors_of(outputs, self.expected)
        if not errors.relative <= limit:
            return errors, f"relative error {errors.relative:.2g}"
        for at in self.request.at_extents:
            relative = errors_of(at_extents[at.name], at.expected).relative
            if not relative <= limit:
                return errors, f"with {at.name}: relative error {relative:.2g}"
        return errors, ""

    def special_difference(
        self, outputs: Sequence[tuple[Array, ...]], expected: Sequence[tuple[Array, ...] | None] = ()
    ) -> str:
        """Describe how outputs on the special inputs differ from ``expected``, or without it from the framework's
        outputs. Empty if they do not differ."""
        special = self.special()
        told = (
            difference(kind, ours, theirs, tolerance(self.lowered))
            for kind, ours, theirs in zip(special, outputs, expected or special.values(), strict=True)
            if theirs is not None
        )
        return next(filter(None, told), "")

    def report_step(self, doing: str) -> None:
        """Report the present step."""
        self.request.progress.report_step(f"{doing} ({self.name})" if len(self.request.lowered) > 1 else doing)

    def warn(self, text: str) -> None:
        """Add a notice on this network: ``text`` completes "the network of CLASS"."""
        self.request.progress.warn(f"the network of {self.name} {text}")

    def _manifest(self, records: Mapping[str, Record]) -> dict[str, Any]:
        request = self.request
        made_of = manifest.made_of(self.lowered.tasks, records, request.rules, self.fingerprint, request.records)
        conversion = self.lowered.conversion
        converted = {} if conversion is None else conversion.counts
        bounds = {} if request.network.bounds is None else {"bounds": str(request.network.bounds)}
        return {**made_of, **bounds, "precision": self.lowered.precision, "converted": converted}


@dataclass(frozen=True)
class CheckedNetwork:
    """A network that is compiled and may be published."""

    folder: Path
    records: Mapping[str, Record]
    """The record of each task id that it is made of."""
    errors: OutputErrors | None = None
    """Errors of its outputs. None if it is not checked."""
    run: NetworkRunResult | None = None
    """Its times, if it was timed when it was checked."""
    special: str = ""
    """The difference of its outputs from the framework's outputs on inputs with NaN and infinities. Empty if there is
    none."""
    chosen: tuple[ChosenInNetwork, ...] = ()
    """Tasks whose record was chosen by its time in the network."""

    def with_choices(self, other: CheckedNetwork) -> CheckedNetwork:
        """Return ``other``, the network with newly chosen records, with the choices of both: the new ones, and the
        earlier choices for the other tasks."""
        changed = {each.task_id for each in other.chosen}
        kept = (each for each in self.chosen if each.task_id not in changed)
        return dataclasses.replace(other, chosen=(*kept, *other.chosen))


def traces(records: Mapping[str, Record]) -> dict[str, str | None]:
    """Return the trace of each record, by task id."""
    return {task_id: record.trace for task_id, record in records.items()}
