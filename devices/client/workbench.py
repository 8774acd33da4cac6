"""Tensors and loaded kernels on a device in one session.

They are lost with the session. The next session makes them anew from the same seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from devices.client.session import RpcSession, SessionLostError
from devices.client.shared_memory import SharedMemory
from devices.client.tensor_cache import TensorCache
from devices.protocol import Artifact, CheckPlan, TensorSpec
from devices.rpc.remote_linking import is_archive
from devices.timing.arguments import Array, nbytes, numpy_dtype, poison
from devices.timing.input_request import InputRequest
from fleet_tune.base.timeouts import CPU, DeviceTimeouts


@dataclass(frozen=True)
class Check:
    """A run whose outputs are compared."""

    plan: CheckPlan
    special: bool
    """True for inputs with special values."""
    expected: Sequence[Array] | None = None
    """The oracle's outputs; None in the oracle's own run."""


class Workbench:
    """Tensors and kernels on a device, over one session. Every method blocks on the device: call it inside
    ``session.deadline``.

    Args:
        session: the session.
        kind: kind of the device (``"cpu"``, ``"cuda"``).
        cache_bytes: limit of the size of the kept tensors. Those of the most recently used tasks are kept.
        timeouts: time limits of the device.
    """

    def __init__(self, session: RpcSession, kind: str, cache_bytes: int, timeouts: DeviceTimeouts = CPU) -> None:
        self.session = session
        self.timeouts = timeouts
        self.kind = kind
        self.device = session.device(kind)
        self.memory = SharedMemory(session, kind)
        self._kept = TensorCache(cache_bytes)
        self._names = itertools.count()
        self._rng = np.random.default_rng(0)
        self._spacer: Any = None
        self._make_inputs: Any = None
        self._sends_inputs = not session.ours

    def load(self, library: bytes) -> Any:
        """Return the library as a module of the device's server, linked there if it is an archive of objects."""
        name = f"kernel-{next(self._names)}"
        if is_archive(library):
            return self.session.load_objects(library, name)
        return self.session.load(library, f"{name}.so")

    def empty(self, spec: TensorSpec) -> Any:
        return tvm.runtime.empty(spec.shape, spec.dtype, self.device)

    def tensors(self, artifact: Artifact, positive: bool) -> list[Any]:
        """Return tensors of the task's original arguments: seeded inputs, zeroed outputs (see
        :meth:`InputRequest.timed`)."""
        sizes = _bytes(artifact.original_args)
        request = InputRequest.timed(artifact, positive)
        return list(self._keep(_timed(artifact, positive), sizes, lambda: self._made(request)))

    def arguments(self, artifact: Artifact, module: Any, positive: bool) -> list[Any]:
        """Return tensors as ``main`` of the loaded ``module`` expects them: constant weights are packed by the module's
        own functions."""
        return self._packed(artifact, module, self.tensors(artifact, positive))

    def checked_arguments(self, artifact: Artifact, module: Any, positive: bool, check: Check) -> list[Any]:
        """Return tensors as :meth:`arguments` does, with the inputs of a check. They are copies of tensors on the
        device that no kernel is given, so that no candidate has written to them. Outputs have values that differ from
        the expected ones."""
        tensors = self._copied(self._checked(artifact, positive, check))
        key = ("overwritten", *_checked(artifact, positive, check), check.expected is None)
        overwritten = self._keep(
            key,
            _bytes(artifact.args[index] for index in artifact.outputs),
            lambda: self._sent(_overwritten(artifact, check)),
        )
        for index, tensor in zip(artifact.outputs, self._copied(overwritten), strict=True):
            tensors[index] = tensor
        return self._packed(artifact, module, tensors)

    def drop_altered(self, artifact: Artifact, positive: bool, check: Check) -> bool:
        """Drop the inputs of a check if their contents on the device have changed: a kernel has written outside of its
        tensors. The next check makes them anew. Return true if they were dropped."""
        arrays = _checked_inputs(artifact, positive, check).arrays()
        kept = self._checked(artifact, positive, check)
        altered = any(tensor.numpy().tobytes() != array.tobytes() for tensor, array in zip(kept, arrays, strict=True))
        if altered:
            self._kept.drop(_checked(artifact, positive, check))
        return altered

    def _checked(self, artifact: Artifact, positive: bool, check: Check) -> list[Any]:
        key = _checked(artifact, positive, check)
        sizes = _bytes(artifact.original_args)
        return self._keep(key, sizes, lambda: self._made(_checked_inputs(artifact, positive, check)))

    def _keep(self, key: Hashable, size: int, make: Callable[[], list[Any]]) -> list[Any]:
        """Return the kept tensors of ``key``. Make them if they are missing. Raises NoRoomError if the device does not
        have memory for them and a copy."""

        def made() -> list[Any]:
            if not self.memory.has_room(2 * size):
                self._kept.clear()
                self.memory.admit(2 * size)
            return make()

        return self._kept.get(key, size, made)

    def _made(self, request: InputRequest) -> list[Any]:
        """Return the tensors of a request. A server of this version makes them itself. To any other server they are
        sent, which takes seconds for large tensors."""
        if not self._sends_inputs and self._make_inputs is None:
            try:
                self._make_inputs = self.session.function("fleet_tune.make_inputs")
            except SessionLostError:
                raise
            except Exception:  # a server of an older version
                self._sends_inputs = True
        if not self._sends_inputs:
            tensors = [self.empty(spec) for spec in request.args]
            if self._make_inputs(request.to_json(), *tensors):
                return tensors
            self._sends_inputs = True
        return self._sent(request.arrays())

    def _sent(self, arrays: Iterable[Array]) -> list[Any]:
        return [tvm.runtime.tensor(array, self.device) for array in arrays]

    def _copied(self, tensors: Iterable[Any]) -> list[Any]:
        """Return copies in other memory of the device."""
        copies = []
        for tensor in tensors:
            copies.append(tvm.runtime.empty(tensor.shape, tensor.dtype, self.device))
            tensor.copyto(copies[-1])
        return copies

    def _packed(self, artifact: Artifact, module: Any, tensors: list[Any]) -> list[Any]:
        for index in artifact.packed:
            packed = self.empty(artifact.args[index])
            module[f"pack_{index}"](tensors[index], packed)
            tensors[index] = packed
        return tensors

    def place_anew(self, artifact: Artifact, module: Any, positive: bool) -> list[Any]:
        """Return tensors as :meth:`arguments` does, with the task's tensors at other addresses than before."""
        # The old tensors are released only at the end, or the new ones would get their addresses. A spacer of another
        # size each time keeps the tensors from alternating between two addresses.
        before = self.tensors(artifact, positive), self._spacer
        self._spacer = self.empty(TensorSpec((int(self._rng.integers(1, 65)) * 1024,), "float32"))
        self._kept.replace(_timed(artifact, positive), self._copied(before[0]))
        return self.arguments(artifact, module, positive)

    def outputs(self, artifact: Artifact, module: Any, arguments: Sequence[Any]) -> list[Array]:
        """Run ``main`` once on ``arguments`` and fetch the outputs."""
        module["main"](*arguments)
        self.device.sync()
        return [
            arguments[index].numpy().astype(numpy_dtype(artifact.args[index].dtype), copy=False)
            for index in artifact.outputs
        ]


def _timed(artifact: Artifact, positive: bool) -> tuple[Any, ...]:
    return "timed", artifact.task_id, positive


def _checked(artifact: Artifact, positive: bool, check: Check) -> tuple[Any, ...]:
    return "checked", artifact.task_id, positive, check.special


def _checked_inputs(artifact: Artifact, positive: bool, check: Check) -> InputRequest:
    return InputRequest(artifact.task_id, artifact.original_args, artifact.outputs, positive, check.plan, check.special)


def _overwritten(artifact: Artifact, check: Check) -> Iterator[Array]:
    """Yield the contents that the outputs have before a check (see :func:`devices.timing.arguments.poison`)."""
    for number, index in enumerate(artifact.outputs):
        if check.expected is None:
            yield poison(artifact.args[index])
        else:
            yield poison(artifact.args[index], check.expected[number], infinite=check.special)


def _bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(map(nbytes, specs))
