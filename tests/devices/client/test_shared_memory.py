"""Memory of a GPU that takes its host's: what is admitted, and what is refused before the host has nothing left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from devices.client.session import RpcSession
from devices.client.shared_memory import NoRoomError, SharedMemory
from devices.client.workbench import Workbench
from devices.protocol import Artifact, TensorSpec

GIB = 1 << 30
RESERVE = 256 << 20


class Session:
    """A session whose server has ``free`` bytes; None for one of an older version, which does not tell."""

    def __init__(self, free: int | None, ours: bool = True) -> None:
        self.free, self.ours = free, ours
        self.asked = 0

    def function(self, name: str) -> Callable[[], int]:
        assert name == "fleet_tune.free_bytes"
        if self.free is None:
            raise RuntimeError("Cannot find function")
        return self._answer

    def _answer(self) -> int:
        self.asked += 1
        assert self.free is not None
        return self.free

    def device(self, _kind: str) -> Any:
        import tvm

        return tvm.cpu()


def test_the_host_keeps_a_reserve() -> None:
    memory = SharedMemory(Session(2 * GIB), "cuda")
    assert memory.has_room(2 * GIB - RESERVE)
    assert not memory.has_room(2 * GIB - RESERVE + 1)
    memory.admit(2 * GIB - RESERVE)
    with pytest.raises(NoRoomError, match="it needs 1793 MiB of memory, and the device has 1792 MiB for it"):
        memory.admit(2 * GIB - RESERVE + 1)


def test_a_host_with_less_than_its_reserve_has_no_room() -> None:
    with pytest.raises(NoRoomError, match="has 0 MiB"):
        SharedMemory(Session(RESERVE // 2), "cuda").admit(1)


@pytest.mark.parametrize(
    ("session", "kind"),
    [(Session(-1), "cuda"), (Session(None), "cuda"), (Session(0), "cpu"), (Session(0, ours=False), "cuda")],
)
def test_other_memory_is_not_counted(session: Session, kind: str) -> None:
    memory = SharedMemory(session, kind)
    for _ in range(3):
        memory.admit(1 << 50)
    assert session.asked == (1 if session.free == -1 else 0)


def artifact(task_id: str, values: int) -> Artifact:
    spec = TensorSpec((values,), "float32")
    return cast(Artifact, cast(Any, _Artifact(task_id, (spec, spec))))


class _Artifact:
    def __init__(self, task_id: str, args: tuple[TensorSpec, ...]) -> None:
        self.task_id, self.args, self.original_args, self.outputs, self.packed = task_id, args, args, (1,), ()


def test_kept_tensors_make_room_before_a_task_is_refused() -> None:
    session = Session(RESERVE + 4096)
    bench = Workbench(cast(RpcSession, cast(Any, session)), "cuda", cache_bytes=GIB)
    first = bench.tensors(artifact("a", 256), positive=False)  # two tensors of 1 KiB, and a copy of each
    assert bench.tensors(artifact("a", 256), positive=False)[0] is first[0]
    session.free = RESERVE + 4095
    with pytest.raises(NoRoomError):
        bench.tensors(artifact("b", 256), positive=False)
    session.free = RESERVE + 4096
    again = bench.tensors(artifact("a", 256), positive=False)
    assert again[0] is not first[0]
    np.testing.assert_array_equal(again[0].numpy(), first[0].numpy())
