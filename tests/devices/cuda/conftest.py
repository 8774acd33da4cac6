"""A device server with a GPU: one of software, and the one of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devices.client.rpc_device import RpcDevice
from devices.cuda.compiler import describe, find_compiler
from devices.server.server import DeviceServer
from devices.targets import resolve_target
from tests.helpers import emulated_gpu, present_gpu
from tests.helpers.emulated_gpu import EmulatedGpu
from tests.helpers.served_gpu import ServedGpu

DECIDE = "policies.measuring.adaptive_stopping:decide"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedGpu]:
    """A GPU made of software, for the processes that start meanwhile."""
    if emulated_gpu.missing():
        pytest.skip(emulated_gpu.missing())
    gpu = EmulatedGpu(tmp_path_factory.mktemp("gpu"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu.environment.items():
            patch.setenv(name, value)
        for cached in (find_compiler, describe):
            cached.cache_clear()
        yield gpu
    for cached in (find_compiler, describe):
        cached.cache_clear()


@pytest.fixture(scope="module")
def emulated_server(emulated: EmulatedGpu) -> Iterator[ServedGpu]:
    with DeviceServer(decide=DECIDE) as server:
        yield ServedGpu(resolve_target(emulated.target), server)


@pytest.fixture(scope="module")
def present_server() -> Iterator[ServedGpu]:
    try:
        arch = present_gpu.arch()
    except LookupError as error:
        pytest.skip(str(error))
    with DeviceServer(decide=DECIDE) as server:
        yield ServedGpu(resolve_target({**EmulatedGpu.target, "arch": arch}), server)


@pytest.fixture(params=["emulated", "present"])
def gpu(request: pytest.FixtureRequest) -> ServedGpu:
    """Each of the two."""
    found: ServedGpu = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def device(gpu: ServedGpu) -> Iterator[RpcDevice]:
    connected = gpu.connect()
    yield connected
    connected.close()
