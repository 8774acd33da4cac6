"""A device server with a GPU: one of software, and the one of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devices.client.rpc_device import RpcDevice
from devices.cuda.compiler import describe, find_compiler
from devices.server.server import DeviceServer
from devices.targets import resolve_target
from tests.helpers import emulated_gpu, present_gpu
from tests.helpers.emulated_gpu import EmulatedGpu
from tests.helpers.served_gpu import ServedGpu

DECIDE = "policies.measuring.adaptive_stopping:decide"


@contextmanager
def emulation(folder: Path) -> Iterator[EmulatedGpu]:
    """A GPU made of software, for the processes that start within the block. Skips where it cannot be made."""
    if emulated_gpu.missing():
        pytest.skip(emulated_gpu.missing())
    gpu = EmulatedGpu(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in gpu.environment.items():
                patch.setenv(name, value)
            _forget_compiler()
            yield gpu
    finally:
        _forget_compiler()


def _forget_compiler() -> None:
    for cached in (find_compiler, describe):
        cached.cache_clear()


@contextmanager
def served(target: Mapping[str, Any]) -> Iterator[ServedGpu]:
    with DeviceServer(decide=DECIDE) as server:
        yield ServedGpu(resolve_target(target), server)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedGpu]:
    with emulation(tmp_path_factory.mktemp("gpu")) as gpu:
        yield gpu


@pytest.fixture(scope="module")
def emulated_server(emulated: EmulatedGpu) -> Iterator[ServedGpu]:
    with served(emulated.target) as server:
        yield server


@pytest.fixture(scope="module", params=["emulated", "present"])
def gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGpu]:
    """The GPU of software, then this machine's own: the tests of a module run with one after the other."""
    with ExitStack() as stack:
        if request.param == "emulated":
            target = stack.enter_context(emulation(tmp_path_factory.mktemp("gpu"))).target
        else:
            try:
                target = {**EmulatedGpu.target, "arch": present_gpu.arch()}
            except LookupError as error:
                pytest.skip(str(error))
        yield stack.enter_context(served(target))


@pytest.fixture
def device(gpu: ServedGpu) -> Iterator[RpcDevice]:
    connected = gpu.connect()
    yield connected
    connected.close()
