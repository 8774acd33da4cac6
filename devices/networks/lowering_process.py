"""Lowers networks, and runs them untuned, in a child process: TVM's passes and LLVM are native code over whatever
people bring, and where they crash, hang or take all memory, the run that asked goes on or ends in one clear line.

The weights travel in files, which both processes map: they are copied once on the way there and once on the way back.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.host.child import Child
from devices.host.confinement import memory_total_bytes
from devices.host.memory import over_memory
from devices.networks.lowering_worker import MORE_SPACE
from devices.networks.network import Array, Network
from devices.protocol import TensorSpec, decode_task
from fleet_tune.domain import DeviceClass
from fleet_tune.errors import DiskFullError, FleetTuneError, NetworkError, UncheckedError, UnsupportedNetworkError

if TYPE_CHECKING:
    from devices.networks.lowering import LoweredNetwork

ANSWER_SECS = 600.0
"""Seconds in one step of lowering, or in the run of a network, after which the child counts as hung."""

_START_SECS = 120.0
_CLOSED = "the process that lowers networks is closed"
_NETWORK, _INPUTS, _OUTPUTS = "network", "inputs", "outputs"


class LoweringStartError(FleetTuneError):
    """The child process could not be started: a fault of the installation, not of a network."""


@dataclass
class _Attempt:
    """One attempt at lowering. ``steps``: those that were begun, each with whether it is optional; ``reason``: what
    became of the last one."""

    steps: list[tuple[str, bool]] = field(default_factory=list)
    reason: str = ""

    @property
    def step(self) -> str:
        return self.steps[-1][0] if self.steps else "its start"

    def blamed(self) -> dict[str, str]:
        """The optional steps that the next attempt goes without, and why: the one that failed, or where that is none
        that could be left out, all before it. Empty for none: it is not their fault."""
        if self.steps and self.steps[-1][1]:
            return {self.step: self.reason}
        because = f"with it TVM fails at {self.step} ({self.reason})"
        return {step: because for step, optional in self.steps if optional}


class LoweringProcess:
    """Lowers one network. The child starts at once, and imports TVM while the network is read; a lost one is replaced.
    What it is lost over is left out of the network if it is optional. Not thread-safe, but for :meth:`close`.

    ``module``: what the child runs (tests give their own).
    """

    def __init__(self, module: str = "devices.networks.lowering_worker", answer_secs: float = ANSWER_SECS) -> None:
        self._module = module
        self._answer_secs = answer_secs
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-tune-lowering-", dir=_roomy_folder())
        self._written: Network | None = None
        self._files: dict[str, Path] = {}  # of the lowered networks, by device class name
        self._closed = False
        self._ready = False
        self._child: Child | None = None
        self._start()

    def lowered(self, network: Network, device_class: DeviceClass) -> LoweredNetwork:
        """``network`` for ``device_class``: see :func:`devices.networks.lowering.lowered_network`, whose errors it
        raises; where TVM crashes, hangs or has too little memory also without anything optional, :class:`NetworkError`
        names the step."""
        from devices.networks.module_file import write_module

        if self._written is not network:
            with _told("the network"):
                write_module(network.relax_module, self._path(_NETWORK))
            self._written = network
        without: dict[str, str] = {}
        while True:
            attempt = _Attempt()
            lowered = self._lowered(network, device_class, without, attempt)
            if lowered is not None:
                return lowered
            blamed = attempt.blamed()
            if not blamed:
                raise _failed(network.name, attempt)
            without |= blamed

    def outputs(self, lowered: LoweredNetwork, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """What a network that was lowered here computes on this machine's CPU, untuned.

        Raises :class:`NetworkError` where it crashes or fails, :class:`UncheckedError` where it takes too long or too
        much memory.
        """
        from devices.networks import tensor_file

        with _told("the inputs"):
            tensor_file.write(self._path(_INPUTS), inputs)
        request = {
            "network": str(self._files[lowered.device_class.name]),
            "inputs": str(self._path(_INPUTS)),
            "outputs": str(self._path(_OUTPUTS)),
        }
        lost: Exception | None = None
        try:
            child = self._ready_child()
            child.channel.send(request)
            answer = child.channel.receive(self._answer_secs)
        except (EOFError, OSError) as error:
            lost = error
            answer = {"failed": self._lost(error)}
        if "ran" in answer:
            return tuple(tensor_file.read(self._path(_OUTPUTS)).values())
        reason = str(answer["failed"])
        if isinstance(lost, TimeoutError) or over_memory(reason) or "SIGKILL" in reason:
            raise UncheckedError(reason)
        raise NetworkError(
            f"the imported network {lowered.name} fails when it is run untuned: {reason}",
            "report the network: an operator of it is imported wrongly",
        )

    def close(self) -> None:
        """End the child and remove its files, also while another thread waits for an answer."""
        self._closed = True
        self._end()
        with contextlib.suppress(OSError):  # the child was just writing
            self._folder.cleanup()

    def _lowered(
        self, network: Network, device_class: DeviceClass, without: Mapping[str, str], attempt: _Attempt
    ) -> LoweredNetwork | None:
        """None where TVM fails, or the child is lost: ``attempt`` says at what."""
        into = self._files.setdefault(device_class.name, self._path(f"lowered-{len(self._files)}"))
        request = {
            "network": str(self._path(_NETWORK)),
            "into": str(into),
            "name": network.name,
            "input_names": list(network.input_names),
            "device_class": [device_class.name, device_class.target],
            "without": dict(without),
        }
        try:
            child = self._ready_child()
            child.channel.send(request)
            while "step" in (answer := child.channel.receive(self._answer_secs)):
                attempt.steps.append((answer["step"], answer["optional"]))
        except (EOFError, OSError) as error:
            attempt.reason = self._lost(error)
            return None
        if "failed" in answer:
            attempt.reason = str(answer["failed"])
            return None
        if "refused" in answer:
            problem, next_step = answer["refused"]
            raise (NetworkError if answer["supported"] else UnsupportedNetworkError)(problem, next_step)
        return _decoded(answer["lowered"], network, device_class, into)

    def _path(self, name: str) -> Path:
        return Path(self._folder.name, name)

    def _start(self) -> None:
        # Mapped files do not count: what the weights take on their way is not of this memory.
        arguments = [f"--memory-limit={memory_total_bytes() * 3 // 4}", f"--files={self._folder.name}"]
        self._child = Child(self._module, arguments, {"TVM_BIND_THREADS": "0"})
        self._ready = False

    def _ready_child(self) -> Child:
        if self._closed:
            raise LoweringStartError(_CLOSED)
        if self._child is None:
            self._start()
        child = self._child
        assert child is not None
        if not self._ready:
            try:
                child.channel.receive(_START_SECS)
            except (EOFError, OSError) as error:
                reason = child.obituary(0.0 if isinstance(error, TimeoutError) else 5.0)
                raise LoweringStartError(f"the process that lowers networks did not start: {reason}") from error
            self._ready = True
        return child

    def _lost(self, error: Exception) -> str:
        """Why, in one line; the next request gets another child."""
        child = self._child
        if self._closed or child is None:
            raise LoweringStartError(_CLOSED) from error
        if isinstance(error, TimeoutError):
            reason = f"its process gave no answer within {self._answer_secs:g} s"
        else:
            how, _, _ = child.obituary().partition('; File "')  # of a stack without names
            reason = f"its process ended: {how}"
        self._end()
        return reason

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _decoded(answer: Mapping[str, Any], network: Network, device_class: DeviceClass, into: Path) -> LoweredNetwork:
    from devices.networks.lowering import LoweredNetwork
    from devices.networks.module_file import read_module

    return LoweredNetwork(
        name=network.name,
        fingerprint=network.fingerprint,
        device_class=device_class,
        module=read_module(into, "c"),
        tasks=tuple(decode_task(task) for task in answer["tasks"]),
        workloads=answer["workloads"],
        inputs=tuple((name, _spec(spec)) for name, spec in answer["inputs"]),
        outputs=tuple(_spec(spec) for spec in answer["outputs"]),
        left_out=tuple((step, reason) for step, reason in answer["left_out"]),
        quantized=answer["quantized"],
        halves=tuple(answer["halves"]),
    )


def _spec(value: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(tuple(value["shape"]), value["dtype"])


def _failed(name: str, attempt: _Attempt) -> NetworkError:
    problem = f"{name} cannot be lowered: {attempt.step} fails: {attempt.reason}"
    if over_memory(attempt.reason) or "SIGKILL" in attempt.reason:
        return UnsupportedNetworkError(problem, "it needs a machine with more memory, or must be smaller")
    return UnsupportedNetworkError(problem, "simplify the network, and report it")


def _roomy_folder() -> str | None:
    """Where large files may go for a while: often the usual place is in memory."""
    place = "/var/tmp"
    return place if "TMPDIR" not in os.environ and os.access(place, os.W_OK | os.X_OK) else None


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """A file that cannot be written, as the user's error."""
    try:
        yield
    except OSError as error:
        raise DiskFullError(f"{what} cannot be written to be lowered: {error}", MORE_SPACE) from error
