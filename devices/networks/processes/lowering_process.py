"""Lowers networks, and runs them untuned, in a child process. TVM's passes and LLVM are native code, and users bring
any network. If they crash, hang or take all memory, the run goes on or ends with one clear line.

The weights travel in files, which both processes map: they are copied once on the way there and once on the way back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.host.limits.confinement import memory_total_bytes
from devices.host.limits.memory import memory_lacked
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.host.warm_process import ChildLostError, WarmProcess
from devices.networks.network import Array, Network
from devices.networks.processes.exchange_folder import ExchangeFolder, writing
from devices.protocol import decode_task
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError, UncheckedError, UnsupportedNetworkError
from fleet_tune.base.precision import Conversion, ConvertibleProduct, Precision

if TYPE_CHECKING:
    from devices.builds.executables import SymbolicSpec
    from devices.networks.graph.low_precision.integer_products import ProductCounts
    from devices.networks.tasks.lowering import LoweredNetwork, UntunedResult

ANSWER_SECS = 600.0
"""Seconds in one step of lowering, or in the run of a network, after which the child counts as hung."""

_NETWORK, _INPUTS, _OUTPUTS = "network", "inputs", "outputs"


@dataclass
class _Attempt:
    """One attempt at lowering."""

    steps: list[tuple[str, bool]] = field(default_factory=list)
    """Steps that were begun, each with true if it is optional."""
    reason: str = ""
    """Reason why the last step failed."""

    @property
    def step(self) -> str:
        return self.steps[-1][0] if self.steps else "its start"

    def blamed(self) -> dict[str, str]:
        """Return the optional steps that the next attempt skips, with the reasons. If an optional step failed, this is
        that step. If a required step failed, these are all optional steps before it. Empty if there are none."""
        if self.steps and self.steps[-1][1]:
            return {self.step: self.reason}
        because = f"with it TVM fails at {self.step} ({self.reason})"
        return {step: because for step, optional in self.steps if optional}


class LoweringProcess:
    """Lowers one network. Not thread-safe, except for :meth:`close`.

    The child starts at once, and imports TVM while the network is read. A lost child is replaced. If the child is lost
    in an optional step, the step is skipped.

    Args:
        module: module that the child runs (tests give their own).
        answer_secs: seconds in one step after which the child counts as hung.
        window: quiet window that stops the child while a device of this host measures; the child then starts when it is
            needed.
    """

    def __init__(
        self,
        module: str = "devices.networks.processes.lowering_worker",
        answer_secs: float = ANSWER_SECS,
        window: QuietWindow | None = None,
    ) -> None:
        self._window = window
        self._folder = ExchangeFolder("lowering")
        self._written: Any = None
        """The module that is in the folder's file of the network."""
        self._files: dict[str, Path] = {}
        """Files of the networks that were lowered last, by device class name."""
        self._conversions: dict[str, Conversion | None] = {}
        """Conversions of these networks, by device class name."""
        # The limit does not count mapped files, so the weights that are exchanged are not part of it.
        arguments = [f"--memory-limit={memory_total_bytes() * 3 // 4}", f"--files={self._folder.path}"]
        self._process = WarmProcess(
            module, "lowers networks", arguments, {"TVM_BIND_THREADS": "0"}, answer_secs=answer_secs, window=window
        )
        if window is None:
            self._process.start()

    def lowered(self, network: Network, device_class: DeviceClass) -> LoweredNetwork:
        """Return ``network`` lowered for ``device_class``; see :func:`devices.networks.tasks.lowering.lower_network`.
        Raises its errors.

        If TVM crashes, hangs or lacks memory even without the optional steps, raises :class:`NetworkError`, which names
        the step.
        """
        from devices.networks.processes.module_file import write_module

        if self._written is not network.relax_module:
            with self._working(), writing("the network"):
                write_module(network.relax_module, self._folder.file(_NETWORK))
            self._written = network.relax_module
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
        """Return the outputs of :meth:`run`."""
        return self.run(lowered, inputs).outputs

    def run(self, lowered: LoweredNetwork, inputs: Sequence[Array]) -> UntunedResult:
        """Run a network, untuned, on this machine's CPU. It must be the network that was lowered last here for its
        class.

        Raises :class:`NetworkError` if it crashes or fails, :class:`UncheckedError` if it takes too long or too much
        memory, and ValueError if it was lowered with another conversion since.
        """
        from devices.networks.compiled import tensor_file
        from devices.networks.tasks.lowering import UntunedResult

        if self._conversions[lowered.device_class.name] != lowered.conversion:
            raise ValueError("the network was lowered with another conversion since: lower it again to run it")
        with writing("the inputs"):
            tensor_file.write(self._folder.file(_INPUTS), inputs)
        request = {
            "network": str(self._files[lowered.device_class.name]),
            "inputs": str(self._folder.file(_INPUTS)),
            "outputs": str(self._folder.file(_OUTPUTS)),
        }
        late = False
        try:
            with ACTIVITY.step("running the untuned network, to compare it with its framework"):
                answer = self._process.ask(request)
        except ChildLostError as error:
            late, answer = error.late, {"failed": str(error)}
        if "secs" in answer:
            return UntunedResult(tuple(tensor_file.read(self._folder.file(_OUTPUTS)).values()), float(answer["secs"]))
        reason = str(answer["failed"])
        if late or memory_lacked(reason):
            raise UncheckedError(reason)
        raise NetworkError(
            f"the imported network {lowered.name} fails when it is run untuned: {reason}",
            "report the network: an operator of it is imported wrongly",
        )

    def close(self) -> None:
        """End the child and remove its files, also while another thread waits for an answer."""
        self._process.close()
        self._folder.close()

    def _lowered(
        self, network: Network, device_class: DeviceClass, without: Mapping[str, str], attempt: _Attempt
    ) -> LoweredNetwork | None:
        """Return the lowered network. None if TVM fails or the child is lost; ``attempt`` then has the reason."""
        into = self._files.setdefault(device_class.name, self._folder.file(f"lowered-{len(self._files)}"))
        request = {
            "network": str(self._folder.file(_NETWORK)),
            "into": str(into),
            "name": network.name,
            "input_names": list(network.input_names),
            "device_class": [device_class.name, device_class.target],
            "without": dict(without),
            "conversion": network.conversion and asdict(network.conversion),
            "shapes": network.shapes and str(network.shapes),
        }
        try:
            with ACTIVITY.step("lowering the network") as say:
                answer = self._process.ask(request)
                while "step" in answer:
                    attempt.steps.append((answer["step"], answer["optional"]))
                    say(f"lowering the network: {answer['step']}")
                    answer = self._process.receive()
        except ChildLostError as error:
            attempt.reason = str(error)
            return None
        if "failed" in answer:
            attempt.reason = str(answer["failed"])
            return None
        if "refused" in answer:
            problem, next_step = answer["refused"]
            raise (NetworkError if answer["supported"] else UnsupportedNetworkError)(problem, next_step)
        self._conversions[device_class.name] = network.conversion
        with self._working():
            return _decoded(answer["lowered"], network, device_class, into)

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Mark work of this process itself. It is short, and cannot be stopped."""
        return contextlib.nullcontext() if self._window is None else self._window.working()


def _decoded(answer: Mapping[str, Any], network: Network, device_class: DeviceClass, into: Path) -> LoweredNetwork:
    from devices.networks.processes.module_file import read_module
    from devices.networks.tasks.extraction import DynamicTask
    from devices.networks.tasks.lowering import LoweredNetwork

    return LoweredNetwork(
        name=network.name,
        fingerprint=network.fingerprint,
        device_class=device_class,
        module=read_module(into, "c"),
        tasks=tuple(decode_task(task) for task in answer["tasks"]),
        workloads=answer["workloads"],
        shapes=network.shapes,
        dynamic={name: DynamicTask(**task) for name, task in answer["dynamic"].items()},
        inputs=tuple((name, _spec(spec)) for name, spec in answer["inputs"]),
        outputs=tuple(_spec(spec) for spec in answer["outputs"]),
        left_out=tuple((step, reason) for step, reason in answer["left_out"]),
        quantized=answer["quantized"],
        products=_products(answer["products"]),
        halves=tuple(answer["halves"]),
        conversion=network.conversion,
        convertible=tuple(_convertible(each) for each in answer["convertible"]),
    )


def _convertible(value: Mapping[str, Any]) -> ConvertibleProduct:
    savings = tuple((Precision(precision), saved) for precision, saved in value["savings"])
    return ConvertibleProduct(value["at"], value["name"], savings)


def _products(value: Mapping[str, Any] | None) -> ProductCounts | None:
    from devices.networks.graph.low_precision.grids import FloatProduct
    from devices.networks.graph.low_precision.integer_products import ProductCounts

    if value is None:
        return None
    return ProductCounts(value["integers"], tuple(FloatProduct(**each) for each in value["floats"]))


def _spec(value: Mapping[str, Any]) -> SymbolicSpec:
    from devices.builds.executables import SymbolicSpec

    return SymbolicSpec(tuple(value["shape"]), value["dtype"])


def _failed(name: str, attempt: _Attempt) -> NetworkError:
    problem = f"{name} cannot be lowered: {attempt.step} fails: {attempt.reason}"
    if memory_lacked(attempt.reason):
        return UnsupportedNetworkError(problem, "it needs a machine with more memory, or must be smaller")
    return UnsupportedNetworkError(problem, "simplify the network, and report it")
