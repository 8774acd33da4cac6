"""The check of a compiled network: it is run on a device of its class, and compared with its framework."""

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
    """The network is wrong and cannot be run any more: the kernel at fault cannot be found."""


class NetworkCheck:
    """Compiles a network from given records and checks it.

    Args:
        network: the network.
        stage: the folder in which it is compiled.
        runner: runs the network. None if nothing can run it.
        times_it: true if a run of the network also times it.
    """

    def __init__(self, network: ClassNetwork, stage: Path, runner: NetworkRunner | None, *, times_it: bool) -> None:
        self.runner = runner
        """Runs the network. None after it turned out that nothing can run it."""
        self.unchecked = "none of its devices can run it"
        """The reason why the network is not checked. It counts only if there is no runner."""
        self.errors: OutputErrors | None = None
        """Errors of the last network whose outputs were right."""
        self.special = ""
        """The difference of the last right network from its framework on inputs with NaN and infinities. Empty for
        none."""
        self.compile_secs = 0.0
        """The longest time that compiling took."""
        self._network = network
        self._stage = stage
        self._times_it = times_it
        self._suspects: Mapping[str, Record] | None = None  # of the first wrong network, until it is right
        self._unscheduled: Sequence[tuple[Array, ...]] | None = None  # its special outputs
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
        except Exception as error:  # an error of TVM, or a trace that does not fit
            if isinstance(error, UserError) and not isinstance(error, RecordStoreError):
                raise  # no linker, CUDA compiler or memory: a problem of this machine, not of a record
            return Measurement(Outcome.BUILD_ERROR, detail=brief(error))
        self.compile_secs = max(self.compile_secs, time.monotonic() - began)
        fault = self._fault_of(records)
        if fault is None and records == self._suspects:
            self._suspects = None  # it was wrong once, from another cause
        elif fault is not None and self._suspects is None:
            self._suspects = dict(records)
            why = f"{fault.outcome.value.replace('_', ' ')}: {fault.detail}"
            network.warn(f"is not right ({why}): judging it again")
        return fault

    def run_of(self, records: Mapping[str, Record]) -> NetworkRunResult | None:
        """Return the outputs and times of the network that is made of these records. None if it was not timed last."""
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

        Return a fault if kernels treat these inputs otherwise than kernels without a schedule do, and the difference of
        the network from its framework. A difference that the network has without schedules too is caused by its import
        and is no fault: the network is right for all other inputs.
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
        """Return the outputs of the network without schedules on the special inputs. Empty if it cannot be run."""
        if self._unscheduled is None:
            self._unscheduled = ()
            folder = self._stage.with_name("unscheduled")
            with contextlib.suppress(Exception):  # only a second opinion
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
