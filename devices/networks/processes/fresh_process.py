"""Runs a compiled network in a process of its own, as its users will: for its outputs, and for its time.

A network that crashes ends that process and nothing else. And in the process that tuned it, the thread pools of TVM and
of the network's framework are already running, with other sizes and with their threads bound to cores: on two cores
that costs up to half of the speed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.error_text import last_line
from devices.host.children.child import die_with_parent, load_tvm
from devices.host.children.exit_causes import describe_exit
from devices.host.limits.memory import over_memory
from devices.host.owned_folder import owned_folder
from devices.networks.network import Array
from devices.networks.tensor_file import read, write
from devices.timing.in_network import InNetworkTimes
from fleet_tune.base.errors import NetworkRunError, UncheckedError

if TYPE_CHECKING:
    from devices.networks.compiled_network import CompiledNetwork

_TIMEOUT_SECS = 600.0
# Two networks whose times differ by less are timed again.
_CLEAR = 1.25
_ROUNDS = 3
_KERNELS, _ALL = "kernels", "all"
_AWAITED = "-"  # in place of a folder whose name comes on stdin
_INPUTS, _OUTPUTS = "inputs.safetensors", "outputs.safetensors"
_SPECIAL_INPUTS, _SPECIAL_OUTPUTS = "special-inputs.safetensors", "special-outputs.safetensors"
_ROOT = Path(__file__).resolve().parents[3]
# Signals that end native code by its own fault. SIGKILL comes from outside, mostly from a machine short of memory.
_CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS))
# Exit code of a process in which the network itself raised an error when it ran.
_FAILED = 70


Special = Sequence[Sequence[Array]]
"""Further sets of inputs, on which a network runs last."""


def outputs_of(folder: Path, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Return the outputs of the network in ``folder`` on ``inputs``.

    Raises :class:`NetworkRunError` where it crashes or fails, :class:`UncheckedError` where this machine cannot run it.
    """
    return outputs_of_all(folder, inputs, ())[0]


def outputs_of_all(
    folder: Path, inputs: Sequence[Array], special: Special
) -> tuple[tuple[Array, ...], list[tuple[Array, ...]]]:
    """Return :func:`outputs_of`, and the outputs on each of the sets ``special``; none where it fails on one of
    them."""
    with _work_folder(inputs, special) as work:
        _run(folder, work, 0.0)
        return tuple(read(work / _OUTPUTS).values()), _special_outputs(work)


class PreloadedProcess:
    """A process that loads TVM while its network is still being compiled, and then does everything that the functions
    of this module do one by one. It ends with the thread that made it, unless it is closed before.

    Raises :class:`UncheckedError` where this machine cannot start it.
    """

    def __init__(self, inputs: Sequence[Array], budget_secs: float, special: Special = ()) -> None:
        with contextlib.ExitStack() as opened:
            self._work = opened.enter_context(_work_folder(inputs, special))
            command, environment = _command(_AWAITED, self._work, budget_secs, _ALL)
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment
            )
            opened.callback(self._end)
            self._opened = opened.pop_all()
        self.special_outputs: list[tuple[Array, ...]] = []
        """See :func:`outputs_of_all`; empty before :meth:`tried`."""

    def tried(self, folder: Path) -> tuple[tuple[Array, ...], tuple[float, InNetworkTimes] | None]:
        """Return :func:`outputs_of`, and :func:`measure` and :func:`in_place`, of the network in ``folder``, once; None
        in place of the times where it cannot be timed."""
        with self._opened:
            try:
                out, errors = self._process.communicate(f"{folder}\n", _TIMEOUT_SECS)
            except subprocess.TimeoutExpired as error:
                raise _late() from error
            found = _found(subprocess.CompletedProcess(self._process.args, self._process.returncode, out, errors))
            outputs = tuple(read(self._work / _OUTPUTS).values())
            self.special_outputs = _special_outputs(self._work)
            if found["secs"] is None:
                return outputs, None
            return outputs, (float(found["secs"]), InNetworkTimes(**found["networks"][0]))

    def close(self) -> None:
        """End it. May be called twice."""
        self._opened.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(folder: Path, inputs: Sequence[Array], budget_secs: float) -> float:
    """Return the seconds of a run of the network in ``folder``, as far as nothing disturbs it
    (:func:`devices.timing.run_series.calm_secs`). Raises as :func:`outputs_of`."""
    with _work_folder(inputs) as work:
        return float(_run(folder, work, budget_secs)["secs"])


def measure_in_turn(first: Path, second: Path, inputs: Sequence[Array], budget_secs: float) -> tuple[float, float]:
    """Return the seconds per run of two networks, each in processes of its own, in turn where they are near each other:
    a slow-down of the machine hits both. The least of the rounds count.

    ``budget_secs``: of the first round, for each. Raises as :func:`outputs_of`.
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


def in_place(folder: Path, inputs: Sequence[Array], budget_secs: float) -> InNetworkTimes:
    """Return the time of each kernel within the network in ``folder``, over runs that take about ``budget_secs``.
    Raises as :func:`outputs_of`."""
    with _work_folder(inputs) as work:
        [found] = _run(folder, work, budget_secs, _KERNELS)["networks"]
        return InNetworkTimes(**found)


def in_place_in_turn(
    folders: Sequence[Path], inputs: Sequence[Array], rounds: int, budget_secs: float
) -> Iterator[list[InNetworkTimes]]:
    """Yield the times of the kernels of several networks, round for round.

    Each round has a process of its own, where tensors have other addresses. The order alternates: a change of speed
    meanwhile favours no network. ``budget_secs``: of each network in a round. Raises as :func:`outputs_of`.
    """
    with _work_folder(inputs) as work:
        for number in range(rounds):
            ordered = folders if number % 2 == 0 else folders[::-1]
            found = _run(ordered[0], work, budget_secs, _KERNELS, *map(str, ordered[1:]))["networks"]
            timed = [InNetworkTimes(**each) for each in found]
            yield timed if number % 2 == 0 else timed[::-1]


@contextmanager
def _work_folder(inputs: Sequence[Array], special: Special = ()) -> Iterator[Path]:
    """Provide a temporary folder with the inputs. Errors of the system in it (space, a process) are no fault of the
    network."""
    try:
        with owned_folder("network") as work:
            write(work / _INPUTS, inputs)
            if special:
                write(work / _SPECIAL_INPUTS, [array for each in special for array in each])
            yield work
    except OSError as error:
        raise UncheckedError(f"it could not be run on this machine: {error}") from error


def _special_outputs(work: Path) -> list[tuple[Array, ...]]:
    """Return the outputs on the special inputs; none where the network failed on them."""
    path = work / _SPECIAL_OUTPUTS
    if not path.exists():
        return []
    arrays, count = list(read(path).values()), len(read(work / _OUTPUTS))
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
    """Return the command line for :func:`main`, and its environment."""
    arguments = [folder, str(work), str(budget_secs), str(os.getpid()), *what]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TVM_", "OMP_"))}
    path = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "devices.networks.processes.fresh_process", *arguments]
    return command, {**environment, "PYTHONPATH": path}


def _late() -> UncheckedError:
    return UncheckedError(f"it did not end within {_TIMEOUT_SECS:g} s")


def _found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what a process has printed. Raises as :func:`outputs_of`."""
    if done.returncode in _CRASHES and done.stdout:
        pass  # it had done all, and then ran on the special inputs
    elif done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        # After a crash the last line is part of a native stack.
        told = lines[-1] if lines and done.returncode > 0 else describe_exit(done.returncode)
        at_fault = done.returncode == _FAILED or done.returncode in _CRASHES
        raise (NetworkRunError if at_fault else UncheckedError)(f"its process failed: {told}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str]) -> None:
    """Run a network: ``FOLDER WORK BUDGET_SECS PARENT_PID [all | kernels FOLDER...]``.

    Runs it on the inputs in ``WORK``, writes its outputs there and prints ``{"secs": 0}``. With a budget: prints
    ``{"secs": seconds of a run}`` alone. With ``kernels``: prints ``networks``, the fields of ``InNetworkTimes`` for it
    and those in the other folders. With ``all``: does all of it. Special inputs in ``WORK`` come last. A folder ``-``
    is named by a line of stdin.
    """
    die_with_parent(int(arguments[3]))
    load_tvm()
    from devices.networks.network_folder import load

    name = sys.stdin.readline().removesuffix("\n") if arguments[0] == _AWAITED else arguments[0]
    if not name:
        return  # no network will come
    folder, work, budget_secs = Path(name), Path(arguments[1]), float(arguments[2])
    network, inputs = load(folder), list(read(work / _INPUTS).values())
    try:
        if _KERNELS in arguments[4:]:
            networks = [network, *(load(Path(each)) for each in arguments[5:])]
            print(json.dumps({"networks": [asdict(each.in_place(inputs, budget_secs)) for each in networks]}))
            return
        if budget_secs > 0 and _ALL not in arguments[4:]:
            print(json.dumps({"secs": network.measure_within(inputs, budget_secs)}))
            return
        outputs = network(*inputs)
    except Exception as error:
        print(last_line(error), file=sys.stderr)
        sys.exit(1 if isinstance(error, MemoryError) or over_memory(str(error)) else _FAILED)
    write(work / _OUTPUTS, outputs if isinstance(outputs, tuple) else (outputs,))
    print(json.dumps(_times(network, inputs, budget_secs) if _ALL in arguments[4:] else {"secs": 0.0}), flush=True)
    if (work / _SPECIAL_INPUTS).exists():
        _run_special(network, work, len(inputs))


def _run_special(network: CompiledNetwork, work: Path, count: int) -> None:
    """Run a network on further sets of ``count`` inputs. It may fail on them, or crash: an index may be made of a
    number that is none."""
    given = list(read(work / _SPECIAL_INPUTS).values())
    found: list[Array] = []
    with contextlib.suppress(Exception):
        for at in range(0, len(given), count):
            outputs = network(*given[at : at + count])
            found += outputs if isinstance(outputs, tuple) else (outputs,)
        write(work / _SPECIAL_OUTPUTS, found)


def _times(network: CompiledNetwork, inputs: Sequence[Array], budget_secs: float) -> dict[str, Any]:
    """Return the times of a network that runs: an error here says nothing of its outputs."""
    try:
        return {
            "secs": network.measure_within(inputs, budget_secs),
            "networks": [asdict(network.in_place(inputs, budget_secs))],
        }
    except Exception as error:
        print(last_line(error), file=sys.stderr)
        return {"secs": None}


if __name__ == "__main__":
    main(sys.argv[1:])
