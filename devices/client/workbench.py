"""Tensors and loaded kernels on a device in one session.

All of it vanishes with the session, and is made anew from the same seeds in the next one.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from devices.client.session import RpcSession
from devices.protocol import Artifact, CheckPlan, TensorSpec
from devices.rpc.remote_linking import is_archive
from devices.timing.arguments import Array, make_inputs, nbytes, numpy_dtype, poison
from devices.timing.checked_inputs import make_checked_inputs
from fleet_tune.base.timeouts import CPU, DeviceTimeouts

# Size up to which inputs of checks are kept here, those used last: drawing them takes as long as sending them.
_CHECKED_BYTES = 256 << 20


class Workbench:
    """Tensors and kernels on a device, over one session. Every method blocks on the device: call it inside
    ``session.deadline``.

    Args:
        session: the session.
        kind: kind of the device (``"cpu"``, ``"cuda"``).
        cache_bytes: size up to which the tensors of the tasks used last are kept; those of the task in use are always
            kept.
        patience: time limits of the device.
    """

    def __init__(self, session: RpcSession, kind: str, cache_bytes: int, patience: DeviceTimeouts = CPU) -> None:
        self.session = session
        self.patience = patience
        self.kind = kind
        self.device = session.device(kind)
        self._cache_bytes = cache_bytes
        self._tensors: OrderedDict[tuple[str, bool], list[Any]] = OrderedDict()
        self._sizes: dict[tuple[str, bool], int] = {}
        self._checked: OrderedDict[tuple[str, bool, bool], list[Array]] = OrderedDict()
        self._names = itertools.count()
        self._rng = np.random.default_rng(0)
        self._spacer: Any = None

    def load(self, library: bytes) -> Any:
        """Return the library as a module of the device's server, linked there if it is an archive of objects."""
        name = f"kernel-{next(self._names)}"
        if is_archive(library):
            return self.session.load_objects(library, name)
        return self.session.load(library, f"{name}.so")

    def empty(self, spec: TensorSpec) -> Any:
        return tvm.runtime.empty(spec.shape, spec.dtype, self.device)

    def tensors(self, artifact: Artifact, positive: bool) -> list[Any]:
        """Return tensors of the task's original arguments: seeded inputs, zeroed outputs (see :func:`make_inputs`)."""
        key = (artifact.task_id, positive)
        if key not in self._tensors:
            size = sum(nbytes(spec) for spec in artifact.original_args)
            while self._tensors and sum(self._sizes.values()) + size > self._cache_bytes:
                oldest, _ = self._tensors.popitem(last=False)
                del self._sizes[oldest]
            arrays = make_inputs(artifact.task_id, artifact.original_args, artifact.outputs, positive)
            self._tensors[key] = [tvm.runtime.tensor(array, self.device) for array in arrays]
            self._sizes[key] = size
        self._tensors.move_to_end(key)
        return list(self._tensors[key])

    def forget(self, task_id: str) -> None:
        """Make the task's tensors anew when they are needed next."""
        for key in ((task_id, False), (task_id, True)):
            if self._tensors.pop(key, None) is not None:
                del self._sizes[key]

    def arguments(self, artifact: Artifact, module: Any, positive: bool) -> list[Any]:
        """Return tensors as ``main`` of the loaded ``module`` expects them: constant weights packed by its own
        functions."""
        return self._packed(artifact, module, self.tensors(artifact, positive))

    def checked_arguments(
        self, artifact: Artifact, module: Any, positive: bool, plan: CheckPlan, special: bool
    ) -> list[Any]:
        """Return :meth:`arguments` with the inputs of a check, sent for it: no candidate has written to them."""
        key = (artifact.task_id, positive, special)
        arrays = self._checked.pop(key, None)
        if arrays is None:
            arrays = make_checked_inputs(
                artifact.task_id, artifact.original_args, artifact.outputs, positive, plan, special
            )
        self._checked[key] = arrays
        while sum(array.nbytes for kept in self._checked.values() for array in kept) > _CHECKED_BYTES:
            self._checked.popitem(last=False)
        return self._packed(artifact, module, [tvm.runtime.tensor(array, self.device) for array in arrays])

    def _packed(self, artifact: Artifact, module: Any, tensors: list[Any]) -> list[Any]:
        for index in artifact.packed:
            packed = self.empty(artifact.args[index])
            module[f"pack_{index}"](tensors[index], packed)
            tensors[index] = packed
        return tensors

    def place_anew(self, artifact: Artifact, module: Any, positive: bool) -> list[Any]:
        """Return :meth:`arguments` with the task's tensors in other memory than before."""
        # The old tensors are released only at the end, or the new ones would take their place. A spacer of another size
        # each time keeps them from alternating between two places.
        before = self._tensors.get((artifact.task_id, positive)), self._spacer
        self.forget(artifact.task_id)
        self._spacer = self.empty(TensorSpec((int(self._rng.integers(1, 65)) * 1024,), "float32"))
        arguments = self.arguments(artifact, module, positive)
        del before
        return arguments

    def outputs(
        self,
        artifact: Artifact,
        module: Any,
        arguments: Sequence[Any],
        expected: Sequence[Array | None] | None = None,
        infinite: bool = False,
    ) -> list[Array]:
        """Run ``main`` once on ``arguments`` and fetch the outputs. They are filled before with values that differ from
        ``expected`` (see :func:`devices.timing.arguments.poison`)."""
        for index, right in zip(artifact.outputs, expected or [None] * len(artifact.outputs), strict=True):
            arguments[index].copyfrom(poison(artifact.args[index], right, infinite))
        module["main"](*arguments)
        self.device.sync()
        return [
            arguments[index].numpy().astype(numpy_dtype(artifact.args[index].dtype), copy=False)
            for index in artifact.outputs
        ]
