"""The check of a compiled network: it is run where it will be used, and compared with its framework."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from devices.error_text import brief
from devices.host.warm_process import ChildStartError
from devices.networks.network import Array
from devices.sketches.rules.winograd import uses_winograd
from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.errors import DiskFullError, NetworkRunError, RecordStoreError, UncheckedError, UserError
from fleet_tune.base.results import OutputErrors
from fleet_tune.runs.publishing.class_network import ClassNetwork
from fleet_tune.runs.publishing.network_runners import NetworkRunner, NetworkRunResult


class RunnerLostError(Exception):
    """The network is wrong and its runner is gone: the kernel at fault cannot be found."""


class NetworkCheck:
    """Compiles a network from given records and checks it.

    Args:
        network: the network.
        stage: the folder in which it is compiled.
        runner: runs the network; None where nothing can.
        times_it: time the network too when it is run.
    """

    def __init__(self, network: ClassNetwork, stage: Path, runner: NetworkRunner | None, *, times_it: bool) -> None:
        self.runner = runner
        """Runs the network; None once it turned out that nothing can."""
        self.unchecked = "none of its devices can run it"
        """The reason why the network is not checked; it counts without a runner."""
        self.errors: OutputErrors | None = None
        """Errors of the last network that was right."""
        self.special = ""
        """The difference of that network from its framework on inputs with NaN and infinities; empty for none."""
        self.compile_secs = 0.0
        """The longest time that compiling took."""
        self._network = network
        self._stage = stage
        self._times_it = times_it
        self._suspects: Mapping[str, Record] | None = None  # of the first network that was wrong, until it is right
        self._unscheduled: Sequence[tuple[Array, ...]] | None = None  # its outputs on the special inputs
        self._timed: tuple[Mapping[str, Record], NetworkRunResult] | None = None

    def judge(self, records: Mapping[str, Record]) -> Measurement | None:
        """Compile the network from these records and run it; see
        :data:`fleet_tune.runs.publishing.record_admission.Judge`."""
        network = self._network
        network.report_step(f"compiling the network with {len(records)} tuned of {len(network.lowered.tasks)} tasks")
        began = time.monotonic()
        try:
            network.compile(records, self._stage)
        except (DiskFullError, ChildStartError):
            raise
        except Exception as error:  # whatever TVM raises, or a trace that does not fit
            if isinstance(error, UserError) and not isinstance(error, RecordStoreError):
                raise  # no linker, no CUDA compiler, no memory: a matter of this machine, not of a record
            return Measurement(Outcome.BUILD_ERROR, detail=brief(error))
        self.compile_secs = max(self.compile_secs, time.monotonic() - began)
        fault = self._fault_of(records)
        if fault is None and records == self._suspects:
            self._suspects = None  # it was wrong once, of another cause
        elif fault is not None and self._suspects is None:
            self._suspects = dict(records)
            why = f"{fault.outcome.value.replace('_', ' ')}: {fault.detail}"
            network.warn(f"is not right ({why}): judging it again")
        return fault

    def run_of(self, records: Mapping[str, Record]) -> NetworkRunResult | None:
        """The times of the network that is made of these records, if it was timed last."""
        return self._timed[1] if self._timed is not None and self._timed[0] == records else None

    def _fault_of(self, records: Mapping[str, Record]) -> Measurement | None:
        if self.runner is None:
            return None
        self._network.report_step("comparing the network with its framework")
        try:
            outputs = self._outputs(self.runner, records)
        except NetworkRunError as error:
            return Measurement(Outcome.RUN_ERROR, detail=str(error))
        except UncheckedError as error:
            if self._suspects is not None:
                raise RunnerLostError(str(error)) from error
            self._network.warn(f"is not checked: {error}")
            self.unchecked, self.runner, self.errors = str(error), None, None
            return None
        errors, wrong = self._network.errors_of(outputs, self.runner.extent_outputs)
        if wrong:
            return Measurement(Outcome.WRONG_OUTPUT, detail=wrong)
        self.errors = errors
        fault, special = self.special_fault(self.runner, records)
        if fault is None:
            self.special = special
        return fault

    def special_fault(self, runner: NetworkRunner, records: Mapping[str, Record]) -> tuple[Measurement | None, str]:
        """Check the network that ``runner`` ran last, made of ``records``, on inputs with NaN and infinities.

        Returns the fault of kernels that treat these otherwise than they do without a schedule, and the difference of
        the network from its framework: its import causes one that it has without schedules too, and the network is
        right for all other inputs.
        """
        network, outputs = self._network, runner.special_outputs
        said = network.special_difference(outputs) if outputs else ""
        if said and any(uses_winograd(record.trace) for record in records.values()):
            said += ", as NaN and infinities reach whole tiles of Winograd's algorithm"
        elif said and records:
            unscheduled = self._run_unscheduled(runner)
            changed = network.special_difference(outputs, unscheduled) if unscheduled else ""
            if changed:
                return Measurement(Outcome.WRONG_OUTPUT, detail=f"{changed}, as it has without a schedule"), said
        return None, said

    def _run_unscheduled(self, runner: NetworkRunner) -> Sequence[tuple[Array, ...]]:
        """The outputs on the special inputs of the network without schedules; none where that fails."""
        if self._unscheduled is None:
            self._unscheduled = ()
            folder = self._stage.with_name("unscheduled")
            with contextlib.suppress(Exception):  # it is a second opinion alone
                runner.outputs(self._network.compile({}, folder))
                self._unscheduled = runner.special_outputs
        return self._unscheduled

    def _outputs(self, runner: NetworkRunner, records: Mapping[str, Record]) -> tuple[Array, ...]:
        if not self._times_it or not records:
            return runner.outputs(self._stage)
        runner.estimate_secs = self._network.estimated_secs(records)
        run = runner.tried(self._stage)
        self._timed = dict(records), run
        return run.outputs
