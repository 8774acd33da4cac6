"""Opening a device of a fleet file, and errors that name the device's line in that file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from devices.protocol import Device
from devices.rpc.keys import default_key_file, new_key, read_key
from devices.server.server import DeviceServer
from devices.simulated.recorded import RecordedDevice
from devices.timing.evaluator import load_decide
from fleet_tune.base.config.fleet_file import (
    DeviceConfig,
    FleetConfig,
    LocalConnection,
    RecordedConnection,
    TrackerConnection,
)
from fleet_tune.base.errors import (
    DatasetError,
    DeviceKeyError,
    DeviceUnreachableError,
    FleetFileError,
    UserError,
    VersionsDifferError,
)
from fleet_tune.base.records.datasets.dataset import load

STOP_DECISION = "policies.measuring.adaptive_stopping:decide"
"""Name of the stopping rule. Devices load it by name in the process that runs the kernel: this package imports no
policy."""


@contextlib.contextmanager
def open_device(config: DeviceConfig, realtime: bool = True) -> Iterator[Device]:
    """Open the device of ``config``: a local one behind its own server, the one at an address, one that a tracker hands
    out, or a dataset.

    ``realtime``: time the kernels of a local device at real-time priority where that is allowed. Raises
    :class:`fleet_tune.base.errors.UserError` for an unknown target, or a dataset that cannot be read.
    """
    connection = config.connection
    if isinstance(connection, RecordedConnection):
        yield RecordedDevice(load(connection.path), config.device_class, load_decide(STOP_DECISION))
        return
    # Imported late: the driver imports this module before it has loaded TVM.
    from devices.client.rpc_device import RpcDevice
    from devices.client.session import ServerKey
    from devices.targets import NATIVE, resolve_target

    with contextlib.ExitStack() as stack:
        if isinstance(connection, LocalConnection):
            # Only this process knows the server's key: no other user of the machine gets in.
            server_key = ServerKey(new_key(), demanded=True)
            server = stack.enter_context(
                DeviceServer(threads=config.threads, decide=STOP_DECISION, realtime=realtime, secret=server_key.secret)
            )
            host, port = server.host, server.port
            if config.target == NATIVE:  # the server would have to start a process that loads TVM to find out
                config = config.model_copy(update={"target": json.loads(resolve_target(NATIVE, config.threads))})
        else:
            host, port = connection.host, connection.port
            server_key = ServerKey(_expected_key(config), demanded=config.key_file is not None)
        key = connection.key if isinstance(connection, TrackerConnection) else None
        device = RpcDevice(config, host, port, decide=STOP_DECISION, tracker_key=key, server_key=server_key)
        yield stack.enter_context(contextlib.closing(device))


def _expected_key(config: DeviceConfig) -> bytes | None:
    """Return the key in the file that the fleet file names, else the key of this user's own servers, if there is
    one."""
    if config.key_file is not None:
        return read_key(Path(config.key_file).expanduser())
    own = default_key_file()
    return read_key(own) if own.exists() else None


@contextlib.contextmanager
def fleet_file_errors(fleet: FleetConfig, name: str, unreachable: bool = True) -> Iterator[None]:
    """Turn an error of a device into a :class:`FleetFileError` that names the device and its line.

    ``unreachable``: true to convert the error of a device that does not answer too; otherwise that error passes
    through.
    """
    try:
        yield
    except FleetFileError:
        raise
    except UserError as error:
        key = {DatasetError: "connect", VersionsDifferError: "connect", DeviceKeyError: "key_file"}.get(
            type(error), "target"
        )
        place = fleet.where(name, key)
        raise FleetFileError(f"{place}: device {name!r}: {error.problem}", error.next_step) from error
    except DeviceUnreachableError as error:
        if not unreachable:
            raise
        place = fleet.where(name, "connect")
        raise FleetFileError(
            f"{place}: device {name!r} does not answer: {error}",
            "start 'fleet-tune device serve' on it and check the address",
        ) from error
