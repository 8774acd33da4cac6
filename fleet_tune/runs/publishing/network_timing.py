"""The times of a network that is right: of the whole network, of the untuned network, of its framework, and of each
kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from devices.error_text import brief
from devices.timing.in_network import InNetworkTimes
from fleet_tune.base.errors import FleetTuneError, NetworkRunError, UncheckedError
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import NetworkResult, OutputErrors
from fleet_tune.runs.publishing.class_network import CheckedNetwork, ClassNetwork
from fleet_tune.runs.publishing.in_network import in_network
from fleet_tune.runs.publishing.network_runners import THIS_MACHINE, NetworkRunner
from fleet_tune.runs.publishing.untuned_times import CLEARLY

# Times count as equal up to this ratio.
_SAME = 1.02
# The least of the series counts, as for the network itself (devices/timing/run_series.py).
_FRAMEWORK_SERIES, _FRAMEWORK_REPEATS, _FRAMEWORK_SECS = 10, 20, 3.0


@dataclass(frozen=True)
class TimedNetwork:
    """A network with its times, and the folder that they decide to publish."""

    result: NetworkResult
    folder: Path
    """The network to publish: the tuned one; or the untuned one if that is faster, or if the tuned one crashes."""


class NetworkTiming:
    """Times one network.

    Args:
        network: the network.
        runner: runs it.
        checked: the network as it was compiled and checked.
        untuned_secs: seconds of the untuned network from earlier. None if they are not known.
    """

    def __init__(
        self, network: ClassNetwork, runner: NetworkRunner, checked: CheckedNetwork, untuned_secs: float | None
    ) -> None:
        self._network = network
        self._runner = runner
        self._checked = checked
        self._untuned_secs = untuned_secs

    def timed(self, result: NetworkResult) -> TimedNetwork:
        """Add the times to a result."""
        self._runner.estimate_secs = self._network.estimated_secs(self._checked.records)
        timed = self._whole(result)
        return dataclasses.replace(timed, result=self._with_kernels(timed))

    def _whole(self, result: NetworkResult) -> TimedNetwork:
        """Time the whole network and the untuned one, and decide which to publish."""
        tuned = self._checked.folder
        clear = self._clearly_faster(result)
        if clear is not None:
            return TimedNetwork(clear, tuned)
        untuned = self._untuned()
        try:
            result = self._side_by_side(result, untuned)
        except NetworkRunError as error:  # it failed twice: in turn with the untuned one, and alone
            return self._instead_of(result, untuned, str(error))
        except UncheckedError as error:  # say, it takes too long
            self._network.warn(f"is not timed: {error}")
            return TimedNetwork(result, tuned)
        if result.tuned_secs is None or result.untuned_secs is None or untuned is None:
            return TimedNetwork(result, tuned)
        if result.tuned_secs > _SAME * result.untuned_secs:
            errors = self._errors_of(untuned)
            if errors is not None:
                result = dataclasses.replace(result, published="untuned").with_errors(errors)
                return TimedNetwork(result, untuned)
        return TimedNetwork(result, tuned)

    @property
    def _known_times(self) -> tuple[float, InNetworkTimes] | None:
        """The times of the tuned network, if it was timed when it was checked."""
        return None if self._checked.run is None else self._checked.run.times

    def _clearly_faster(self, result: NetworkResult) -> NetworkResult | None:
        """Return the result if the time of the untuned network is known and the tuned one takes far less. None if both
        have to be timed."""
        times, run = self._known_times, self._checked.run
        if times is None or run is None or self._untuned_secs is None or times[0] * CLEARLY > self._untuned_secs:
            return None
        timed = dataclasses.replace(
            result,
            tuned_secs=times[0],
            untuned_secs=self._untuned_secs,
            untuned_earlier=True,
            others_cores=run.others_cores,
            throttled=run.throttled,
            estimate_secs=self._runner.estimate_secs,
        )
        return self._beside_framework(timed)

    def _with_kernels(self, timed: TimedNetwork) -> NetworkResult:
        """Add the time of each kernel of the network that will be published, if kernels can be timed."""
        result, network = timed.result, self._network
        if result.secs is None:
            return result
        times = self._known_times if timed.folder == self._checked.folder else None
        try:
            if times is None:
                network.report_step("timing the kernels in the network")
            kernels = self._runner.kernel_times(timed.folder) if times is None else times[1]
        except Exception as error:
            network.warn(f"has kernels that are not timed in it: {brief(error)}")
            return result
        records = self._checked.records if result.published == "tuned" else {}
        with RecordReader(network.request.records) as reader:
            alone = {task_id: reader.shown_secs(record) for task_id, record in records.items()}
        return dataclasses.replace(result, in_network=in_network(kernels, network.lowered, alone, result.secs))

    def _untuned(self) -> Path | None:
        """Compile the untuned network and return its folder. None if the network has no schedules anyway, or if
        compiling fails."""
        if not self._checked.records:
            return None
        self._network.report_step("compiling the untuned network, to compare")
        try:
            return self._network.compile_untuned(self._checked.records, self._checked.folder.with_name("untuned"))
        except Exception as error:  # an error of TVM, or no space, say: the tuned network can be published even so
            self._not_compared(error)
            return None

    def _side_by_side(self, result: NetworkResult, untuned: Path | None) -> NetworkResult:
        """Add the times of both networks, as far as they can be measured. Raises NetworkRunError, UncheckedError only
        for the tuned network."""
        network, runner, tuned = self._network, self._runner, self._checked.folder
        untuned_secs: float | None = None
        network.report_step("timing the network")
        try:
            if untuned is None:
                tuned_secs = runner.measure_secs(tuned)
                untuned_secs = None if self._checked.records else tuned_secs
            else:
                tuned_secs, untuned_secs = runner.measure_in_turn(tuned, untuned)
        except Exception as error:  # one of both failed: the untuned one took too long, say
            self._not_compared(error)
            tuned_secs = runner.measure_secs(tuned)
            return _disturbed(dataclasses.replace(result, tuned_secs=tuned_secs), runner)
        timed = _disturbed(dataclasses.replace(result, tuned_secs=tuned_secs, untuned_secs=untuned_secs), runner)
        if untuned_secs is not None and not (timed.on_busy_host or timed.is_throttled):
            network.keep_untuned_secs(runner.name, untuned_secs)
        return self._beside_framework(timed)

    def _beside_framework(self, result: NetworkResult) -> NetworkResult:
        """Add the framework's time, if the network runs on this machine and both networks are timed."""
        network = self._network
        if self._runner.name != THIS_MACHINE or result.untuned_secs is None or result.tuned_secs is None:
            return result
        network.report_step("timing the network in its framework")
        try:
            threads = network.fingerprint.threads
            measure = network.request.network.measure_framework_secs

            def series() -> float | None:
                least = measure(threads, _FRAMEWORK_REPEATS)
                affordable = int(_FRAMEWORK_SECS / (_FRAMEWORK_REPEATS * least)) if least else 0
                for _ in range(min(_FRAMEWORK_SERIES, affordable) - 1):
                    least = min(least or math.inf, measure(threads, _FRAMEWORK_REPEATS) or math.inf)
                return least

            framework_secs = self._runner.undisturbed(series, self._checked.folder, result.tuned_secs)
        except Exception as error:
            network.warn(f"is not compared with its framework's time: {error}")
            return result
        return dataclasses.replace(result, framework_secs=framework_secs)

    def _instead_of(self, result: NetworkResult, untuned: Path | None, why: str) -> TimedNetwork:
        """Publish the untuned network, if it is right, instead of a tuned one that was right and fails when it is
        timed."""
        problem = f"the tuned network fails when it is timed: {why}"
        errors = self._errors_of(untuned) if untuned is not None else None
        if untuned is None or errors is None:
            result = dataclasses.replace(result, published="nothing", problem=problem)
            return TimedNetwork(result.with_errors(None), self._checked.folder)
        untuned_secs: float | None = None
        self._runner.estimate_secs = None
        with contextlib.suppress(FleetTuneError):
            untuned_secs = self._runner.measure_secs(untuned)
        result = dataclasses.replace(result, published="untuned", problem=problem, untuned_secs=untuned_secs)
        result = result.with_errors(errors)
        return TimedNetwork(result if untuned_secs is None else _disturbed(result, self._runner), untuned)

    def _errors_of(self, untuned: Path) -> OutputErrors | None:
        """Return the errors of the untuned network. None if it is wrong or cannot be run: it is not published then."""
        try:
            errors, wrong = self._network.errors_of(self._runner.outputs(untuned), self._runner.extent_outputs)
        except Exception as error:
            self._network.warn(f"cannot be published untuned: {error}")
            return None
        if wrong:
            self._network.warn(f"cannot be published untuned: {wrong}")
            return None
        return errors

    def _not_compared(self, error: Exception) -> None:
        self._network.warn(f"is not compared with the untuned one: {brief(error)}")


def _disturbed(result: NetworkResult, runner: NetworkRunner) -> NetworkResult:
    """Return the result with the disturbances of its times."""
    return dataclasses.replace(
        result, others_cores=runner.others_cores, throttled=runner.throttled, estimate_secs=runner.estimate_secs
    )
