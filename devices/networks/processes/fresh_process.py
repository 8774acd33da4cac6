"""Runs a compiled network in a process of its own, as its users will, to get its outputs and its time.

If a network crashes, only that process ends. Also, in the process that tuned it, the thread pools of TVM and of the
network's framework are already running, with other sizes and with threads bound to cores. On two cores, this costs up
to half of the speed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devices.host.children.exit_causes import describe_exit
from devices.host.owned_folder import owned_folder
from devices.networks.compiled.tensor_file import read, write
from devices.networks.network import Array, WeightedInputs
from devices.networks.processes.network_worker import (
    ALL,
    AWAITED,
    EXTENT_INPUTS,
    EXTENT_OUTPUTS,
    EXTENTS,
    FAILED,
    INPUTS,
    KERNELS,
    OUTPUTS,
    SPECIAL_INPUTS,
    SPECIAL_OUTPUTS,
)
from devices.timing.in_network import InNetworkTimes, weighted_sum
from fleet_tune.base.errors import NetworkRunError, UncheckedError

_TIMEOUT_SECS = 600.0
# Two networks whose times differ by less are timed again.
_CLEAR = 1.25
_ROUNDS = 3
_ROOT = Path(__file__).resolve().parents[3]
# Signals that end native code by its own fault. SIGKILL comes from outside, mostly because memory is short.
_CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS))


@dataclass(frozen=True)
class OtherInputs:
    """Sets of inputs on which a network runs besides its example inputs."""

    special: Sequence[Sequence[Array]] = ()
    """Sets on which it runs last. It may fail on them."""
    at_extents: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    """Sets with other extents of its dynamic dimension, by the extent's name. A network that fails on them is wrong."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a network on all sets of inputs."""

    outputs: tuple[Array, ...]
    """Outputs on the example inputs."""
    special: Sequence[tuple[Array, ...]]
    """Outputs on each set of :attr:`OtherInputs.special`. Empty if the network fails on one of them."""
    at_extents: Mapping[str, tuple[Array, ...]]
    """Outputs on each set of :attr:`OtherInputs.at_extents`."""


def outputs_of(folder: Path, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Return the outputs of the network in ``folder`` on ``inputs``.

    Raises :class:`NetworkRunError` if it crashes or fails, and :class:`UncheckedError` if this machine cannot run it.
    """
    return outputs_of_all(folder, inputs, OtherInputs()).outputs


def outputs_of_all(folder: Path, inputs: Sequence[Array], others: OtherInputs) -> Outputs:
    """Return the outputs of the network in ``folder`` on all sets of inputs. Raises as :func:`outputs_of`."""
    with _work_folder(inputs, others) as work:
        _run(folder, work, 0.0)
        return _written_outputs(work, others)


class PreloadedProcess:
    """A process that loads TVM while its network is still being compiled, and then does all that the functions of this
    module do in separate processes. It ends with the thread that made it, unless it is closed before.

    Raises :class:`UncheckedError` if this machine cannot start it.
    """

    def __init__(self, inputs: Sequence[Array], budget_secs: float, others: OtherInputs | None = None) -> None:
        self._others = others or OtherInputs()
        with contextlib.ExitStack() as opened:
            self._work = opened.enter_context(_work_folder(inputs, self._others))
            command, environment = _command(AWAITED, self._work, budget_secs, ALL)
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment
            )
            opened.callback(self._end)
            self._opened = opened.pop_all()

    def tried(self, folder: Path) -> tuple[Outputs, tuple[float, InNetworkTimes] | None]:
        """Return the results of :func:`outputs_of_all`, and of :func:`measure` and :func:`kernel_times`, for the
        network in ``folder``. The times are None if the network cannot be timed. May be called once."""
        with self._opened:
            try:
                out, errors = self._process.communicate(f"{folder}\n", _TIMEOUT_SECS)
            except subprocess.TimeoutExpired as error:
                raise _late() from error
            found = _found(subprocess.CompletedProcess(self._process.args, self._process.returncode, out, errors))
            outputs = _written_outputs(self._work, self._others)
            if found["secs"] is None:
                return outputs, None
            return outputs, (float(found["secs"]), InNetworkTimes(**found["networks"][0][0]))

    def close(self) -> None:
        """End the process. May be called twice."""
        self._opened.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(folder: Path, inputs: Sequence[Array], budget_secs: float) -> float:
    """Return the seconds of an undisturbed run of the network in ``folder``
    (:func:`devices.timing.run_series.calm_secs`). Raises as :func:`outputs_of`."""
    with _work_folder(inputs) as work:
        return float(_run(folder, work, budget_secs)["secs"])


def measure_in_turn(first: Path, second: Path, inputs: Sequence[Array], budget_secs: float) -> tuple[float, float]:
    """Return the seconds per run of two networks, each in processes of its own. If their times are close, they run in
    turn, so that a slow-down of the machine hits both. The least time over the rounds counts.

    ``budget_secs``: seconds for each network in the first round. Raises as :func:`outputs_of`.
    """
    times: tuple[list[float], list[float]] = ([], [])
    folders = (first, second)
    for number in range(_ROUNDS):
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            times[at].append(measure(folders[at], inputs, budget_secs if number == 0 else budget_secs / _ROUNDS))
        ratio = times[0][0] / times[1][0]
        if not 1 / _CLEAR < ratio < _CLEAR:
            break
    return min(times[0]), min(times[1])


def kernel_times(folder: Path, inputs: Sequence[Array], budget_secs: float) -> InNetworkTimes:
    """Return the time of each kernel within the network in ``folder``, over runs that take about ``budget_secs``.
    Raises as :func:`outputs_of`."""
    with _work_folder(inputs) as work:
        [[found]] = _run(folder, work, budget_secs, KERNELS)["networks"]
        return InNetworkTimes(**found)


def kernel_times_interleaved(
    folders: Sequence[Path], weighted: Sequence[WeightedInputs], rounds: int, budget_secs: float
) -> Iterator[list[InNetworkTimes]]:
    """Yield the times of the kernels of several networks, round by round. Each time is a sum over inputs by their
    weights.

    Each round has a process of its own, where tensors have other addresses. The order alternates, so that a change of
    the machine's speed favours no network. ``budget_secs``: seconds for each network in a round. Raises as
    :func:`outputs_of`.
    """
    weights = [weight for weight, _ in weighted]
    sets = {str(number): inputs for number, (_, inputs) in enumerate(weighted)}
    with _work_folder(weighted[0][1], OtherInputs(at_extents=sets)) as work:
        for number in range(rounds):
            ordered = folders if number % 2 == 0 else folders[::-1]
            found = _run(ordered[0], work, budget_secs, KERNELS, *map(str, ordered[1:]))["networks"]
            timed = [weighted_sum([InNetworkTimes(**times) for times in each], weights) for each in found]
            yield timed if number % 2 == 0 else timed[::-1]


@contextmanager
def _work_folder(inputs: Sequence[Array], others: OtherInputs | None = None) -> Iterator[Path]:
    """Provide a temporary folder with the inputs. System errors in the block (disk space, processes) become
    :class:`UncheckedError`, as they are no fault of the network."""
    try:
        with owned_folder("network") as work:
            write(work / INPUTS, inputs)
            if others is not None and others.special:
                write(work / SPECIAL_INPUTS, [array for each in others.special for array in each])
            if others is not None and others.at_extents:
                write(work / EXTENT_INPUTS, [array for each in others.at_extents.values() for array in each])
                (work / EXTENTS).write_text(json.dumps(list(others.at_extents)))
            yield work
    except OSError as error:
        raise UncheckedError(f"it could not be run on this machine: {error}") from error


def _written_outputs(work: Path, others: OtherInputs) -> Outputs:
    """Return the outputs that a process has written. There are none for the special inputs if the network failed on
    them."""
    outputs = tuple(read(work / OUTPUTS).values())
    special, at_extents = (_sets(work / name, len(outputs)) for name in (SPECIAL_OUTPUTS, EXTENT_OUTPUTS))
    return Outputs(outputs, special, dict(zip(others.at_extents, at_extents, strict=True)))


def _sets(path: Path, count: int) -> list[tuple[Array, ...]]:
    """Return the arrays in a file, ``count`` at a time. Empty if there is no file."""
    arrays = list(read(path).values()) if path.exists() else []
    return [tuple(arrays[at : at + count]) for at in range(0, len(arrays), count)]


def _run(folder: Path, work: Path, budget_secs: float, *what: str) -> dict[str, Any]:
    command, environment = _command(str(folder), work, budget_secs, *what)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise _late() from error
    return _found(done)


def _command(folder: str, work: Path, budget_secs: float, *what: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line for :mod:`devices.networks.processes.network_worker`, and its environment."""
    arguments = [folder, str(work), str(budget_secs), str(os.getpid()), *what]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TVM_", "OMP_"))}
    path = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "devices.networks.processes.network_worker", *arguments]
    return command, {**environment, "PYTHONPATH": path}


def _late() -> UncheckedError:
    return UncheckedError(f"it did not end within {_TIMEOUT_SECS:g} s")


def _found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the result that a process has printed. Raises as :func:`outputs_of`."""
    if done.returncode in _CRASHES and done.stdout:
        pass  # it had finished all but the special inputs
    elif done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        # After a crash the last line is part of a native stack.
        told = lines[-1] if lines and done.returncode > 0 else describe_exit(done.returncode)
        at_fault = done.returncode == FAILED or done.returncode in _CRASHES
        raise (NetworkRunError if at_fault else UncheckedError)(f"its process failed: {told}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
