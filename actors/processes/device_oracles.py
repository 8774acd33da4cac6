"""The oracles of the tasks that a device measures: which of them have run, and which tasks have candidates that cannot
be checked yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actors.clients.artifacts import unpacked
from actors.clients.device import TaskArtifacts
from actors.clusters.nodes import own_window_folder
from actors.processes.device_connection import DeviceConnection
from actors.processes.device_window import DeviceWindow
from devices.client.host_oracle import HostOracles

_RUNS_HERE = "this machine runs its unscheduled program now"
# Longest wait of a shoot-out for an oracle that runs on the host. Then other work has its turn.
_WAIT_SECS = 5.0


class DeviceOracles:
    """Runs the oracle of each task once. An oracle that is slow or fails on the device runs on the device's host, in
    the background. Until it has run there, candidates of its task are measured but not verified."""

    def __init__(self, connection: DeviceConnection, window: DeviceWindow) -> None:
        self._connection = connection
        self._window = window
        self._on_host = HostOracles(folder=own_window_folder())
        self._unchecked: dict[str, str] = {}
        """Why the oracle of a task is slow or fails here, by task."""

    def add(self, of_task: TaskArtifacts) -> None:
        """Hand the oracle of a task to the device."""
        [oracle] = of_task.oracle
        self._connection.device.add_oracle(unpacked(oracle))

    def is_unchecked(self, task_id: str) -> bool:
        """Return true while the candidates of a task cannot be checked."""
        return task_id in self._unchecked

    def run(self, tasks: Mapping[str, TaskArtifacts]) -> list[str]:
        """Run the oracles of these tasks that have not run. An oracle that takes too long or fails on the device runs
        on the host, in the background. If the host cannot run it, the device tries again with the next batch, a few
        times. Return the tasks whose candidates could not be checked before and can be checked from now on. Raises
        DeviceUnreachableError."""
        checked_again = []
        for task_id, of_task in tasks.items():
            with self._window.working():
                problem = self._problem(task_id, of_task)
            if problem:
                self._unchecked[task_id] = problem
            elif self._unchecked.pop(task_id, None):
                checked_again.append(task_id)
        return checked_again

    def unchecked(self, tasks: Iterable[str], checked_again: Iterable[str] = ()) -> dict[str, str]:
        """See :attr:`BatchMeasured.unchecked`."""
        reasons = {task_id: self._unchecked[task_id] for task_id in tasks if task_id in self._unchecked}
        return reasons | dict.fromkeys(checked_again, "")

    def wait(self, task_id: str) -> None:
        """Wait for the oracle of a task that runs on the host, for ``_WAIT_SECS`` at most."""
        self._on_host.wait(task_id, _WAIT_SECS)

    def runs_on_host(self, task_id: str) -> bool:
        """Return true while the oracle of a task runs on the host; its candidates cannot be checked until then."""
        if not self._on_host.is_computing(task_id):
            return False
        self._unchecked.setdefault(task_id, _RUNS_HERE)
        return True

    def close(self) -> None:
        self._on_host.close()

    def _problem(self, task_id: str, of_task: TaskArtifacts) -> str:
        """Return the reason, in one line, why candidates of a task cannot be checked now; empty if they can."""
        # In this order, since the oracle may end between the two calls.
        is_computing, outputs = self._on_host.is_computing(task_id), self._on_host.outputs(task_id)
        if outputs is not None:
            self._connection.device.use_oracle_outputs(task_id, outputs)
            return ""
        if is_computing:
            return self._unchecked.get(task_id, _RUNS_HERE)
        problem = self._connection.device.run_oracle(task_id)
        if not problem:
            return ""
        failure = self._on_host.failure(task_id)
        if failure:
            return f"{problem}, nor can this machine run it: {failure}"
        [oracle] = of_task.oracle
        self._on_host.begin(unpacked(oracle), self._window.of_host())
        return f"{problem}: this machine runs it now" if self._on_host.is_computing(task_id) else problem
