"""The fleet file: which devices measure, and how candidates are built.

.. code-block:: toml

    [[device]]
    name = "jetson-1"                       # unique
    connect = "192.168.1.20:9090"           # or "local", "tracker://host:9190/key", "recorded:dataset.ftd"
    via = "lab-pc"                          # on a cluster, the host that drives it; default: the host of the run
    target = "nvidia/jetson-agx-orin-64gb"  # a TVM target's name, a table, or "native" (the device's own CPU)
    key_file = "jetson-1.key"               # a copy of its server's; default: ~/.config/fleet-tune/device.key
    threads = 8                             # threads a kernel runs on; default: all usable cores
    device_class = "orin"                   # devices of one class share records; default: from the fingerprint
    count = 3                               # with tracker://: number of devices of this key, jetson-1-1 to jetson-1-3;
                                            # "all": all that the tracker lists, now and later
    connect_secs = 20                       # until its server answers, or a tracker has a device
    upload_secs = 120                       # until data that is sent to it has arrived, plus a second for each megabyte
    silence_secs = 6                        # between two signs of life, while it works
    candidate_secs = 30                     # to measure a candidate, plus the time for its operations
    probe_secs = 120                        # until a probe has run, plus its time on the slowest device
    oracle_secs = 210                       # until an unscheduled program has run, plus the time for its operations

    [build]
    workers = 2                             # builder processes of each host; default: by its free CPUs and memory
    total_workers = 16                      # of all hosts together; default: no limit
    timeout_secs = 60                       # of one build; default: ten times what builds of its task take, at least 5

    [measure]
    check_every_secs = 120                  # how often a device's probe is run
    realtime = true                         # real-time priority for the kernels of local devices, where allowed
    warm_up_secs = 0                        # a kernel runs this long before it is timed
    flush_cache_bytes = 0                   # memory that is copied before each run, to empty the caches
    max_cv = 0.03                           # variation of the throughput at which a measurement ends; default of this
                                            # and the next two keys: the rule of the method
    min_batches = 3                         # least number of micro-batches before max_cv ends a measurement
    max_batches = 10                        # largest number of micro-batches of a measurement

A mistake raises :class:`FleetFileError` with file, line and key. Whether TVM knows a target is checked where TVM lives
(``devices.targets``); :meth:`FleetConfig.where` gives the caller the place to name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from fleet_tune.base.config import values
from fleet_tune.base.config.toml_file import FileKind, Frozen, TomlText, as_toml, read_toml
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.domain import StopRule
from fleet_tune.base.errors import FleetFileError
from fleet_tune.base.timeouts import BOARD, CPU, GPU, DeviceTimeouts


@dataclass(frozen=True, slots=True)
class LocalConnection:
    """A device server that the run starts itself, on loopback."""


@dataclass(frozen=True, slots=True)
class RpcConnection:
    """A device server, or a plain TVM RPC server, at an address."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TrackerConnection:
    """A device that a TVM RPC tracker hands out under ``key``."""

    host: str
    port: int
    key: str


@dataclass(frozen=True, slots=True)
class RecordedConnection:
    """A dataset, written by ``fleet-tune dataset``, that answers instead of a device. In a fleet file its path is
    relative to the fleet file."""

    path: Path


Connection = LocalConnection | RpcConnection | TrackerConnection | RecordedConnection
_CONNECTIONS = '"local", "host:port", "tracker://host:port/key" or "recorded:FILE"'

MOST_OF_A_KEY = 256
"""Largest number of devices that one entry may stand for."""
_MOST_CHARACTERS = 4096
_GPUS = ("cuda", "nvidia/")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_RECORDED = "recorded:"
_REPLAY = "replay:"  # the old word, still read
_Patient = Annotated[float, Field(gt=0, le=3600)]
Library = Literal["onednn"]
"""Libraries that kernels may call."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class DeviceConfig(Frozen):
    """One device of a fleet file."""

    name: Name
    connect: str = "local"
    """Way to the device, as in the fleet file; see :func:`parse_connection`."""
    via: Annotated[str, Field(pattern=r"^[A-Za-z0-9:][A-Za-z0-9._:-]{0,254}$")] | None = None
    """Host that drives the device: a node of the Ray cluster, see :func:`policies.runs.cluster.placement.place_device`.
    ``connect`` and the paths of files are resolved on that host. None: the driver's own host."""
    target: str | dict[str, Any] = "native"
    """TVM target."""
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of threads. None: the device itself says it."""
    device_class: Name | None = None
    """Name of the device class. None: the device itself says it."""
    library: Library | None = None
    """Library whose kernels are candidates too, on CPUs for which it has kernels. Its package must be installed on the
    device's host and on the hosts that build for it."""
    key_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File of the key that the device's server must have, relative to the fleet file. None: the key of this user's own
    servers, if there is one and the server asks."""
    count: Annotated[int, Field(ge=1, le=MOST_OF_A_KEY)] | Literal["all"] = 1
    """Number of devices that a tracker hands out under one key. :func:`load_fleet` makes as many entries. For ``all``
    it makes one entry, and :func:`with_listed` adds the others."""
    connect_secs: _Patient | None = None
    """Timeout in seconds, like the following fields; see :class:`DeviceTimeouts`. None: the default for this kind of
    device."""
    upload_secs: _Patient | None = None
    silence_secs: Annotated[float, Field(ge=1, le=3600)] | None = None
    candidate_secs: _Patient | None = None
    probe_secs: _Patient | None = None
    oracle_secs: _Patient | None = None

    @field_validator("connect")
    @classmethod
    def _connect_parses(cls, text: str) -> str:
        parse_connection(text)
        return text

    @field_validator("target")
    @classmethod
    def _target_says_something(cls, target: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(target, dict) and not isinstance(target.get("kind"), str):
            raise ValueError('a target table needs kind, as in { kind = "llvm", mcpu = "cortex-a78" }')
        if not target or (isinstance(target, str) and not target.strip()):
            raise ValueError('give "native", the name of a TVM target, or a table')
        return target

    @field_validator("count")
    @classmethod
    def _one_address_is_one_device(cls, count: int | str, info: ValidationInfo) -> int | str:
        connect = info.data.get("connect")
        if count != 1 and connect is not None and not isinstance(parse_connection(connect), TrackerConnection):
            raise ValueError("only a tracker has several devices")
        return count

    @field_validator("key_file")
    @classmethod
    def _a_server_has_it(cls, file: str | None, info: ValidationInfo) -> str | None:
        connect = info.data.get("connect")
        served = (RpcConnection, TrackerConnection)
        if file is not None and ("\0" in file or (connect and not isinstance(parse_connection(connect), served))):
            raise ValueError("only a device server has a key")
        return file

    @property
    def timeouts(self) -> DeviceTimeouts:
        """Timeouts of this device: those of its entry, else the defaults for its kind."""
        given = {each.name: getattr(self, each.name) for each in fields(DeviceTimeouts)}
        return replace(self._usual_timeouts, **{name: secs for name, secs in given.items() if secs is not None})

    @property
    def _usual_timeouts(self) -> DeviceTimeouts:
        if self.connect != "local" and not self.shares_host:
            return BOARD
        return GPU if self.is_gpu else CPU

    @property
    def is_gpu(self) -> bool:
        """True for a GPU."""
        kind = self.target.get("kind") if isinstance(self.target, dict) else self.target
        return str(kind).startswith(_GPUS)

    @property
    def is_dialled_at_home(self) -> bool:
        """True if ``connect`` means the host that connects, or a port of it: it names another device on every host."""
        connection = self.connection
        if isinstance(connection, RpcConnection | TrackerConnection):
            return connection.host.lower().rstrip(".") in _LOOPBACK
        return isinstance(connection, LocalConnection)

    @property
    def shares_host(self) -> bool:
        """True if the device shares the cores of the host that drives it.

        A device at a port of that host does, unless its target differs from the host's own: then the port leads through
        a tunnel. A GPU does not: its kernels run on cores of their own and are timed by its own events, so that the
        host may go on building.
        """
        if self.is_gpu:
            return False
        return self.connect == "local" or (self.is_dialled_at_home and self.target == "native")

    @property
    def connection(self) -> Connection:
        """``connect``, parsed."""
        return parse_connection(self.connect)


MOST_BATCHES = 1000
"""Largest number of micro-batches of a measurement that a file may set."""


class BuildConfig(Frozen):
    """Settings of builds."""

    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Build processes of each host of the cluster that has CPUs for them. None: a number that fits its free CPUs and
    memory."""
    total_workers: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Largest number of build processes of all hosts together."""
    timeout_secs: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Limit of a build in seconds. None: ten times what builds of its task take, at least 5."""


class MeasureConfig(Frozen):
    """Settings of measurements, and of the probe that checks devices meanwhile."""

    check_every_secs: Annotated[float, Field(ge=1, le=86400)] = 120.0
    """Largest interval between two runs of the probe, in seconds."""
    realtime: bool = True
    """Time kernels of local devices at real-time priority, if that is allowed."""
    # The least timeout of a measurement is 2 s: the limits of these two leave most of it to the kernel.
    warm_up_secs: Annotated[float, Field(ge=0, le=1)] = 0.0
    flush_cache_bytes: Annotated[int, Field(ge=0, le=256 << 20)] = 0
    """Memory that is copied before each run to empty the caches. 0: the caches keep what the run before left there."""
    max_cv: Annotated[float, Field(ge=0, le=1)] | None = None
    """Bound of the adaptive stopping, like the following fields; see :class:`StopRule`. None: the bound of the method's
    rule."""
    min_batches: Annotated[int, Field(ge=1, le=MOST_BATCHES)] | None = None
    max_batches: Annotated[int, Field(ge=1, le=MOST_BATCHES)] | None = None

    @field_validator("max_batches")
    @classmethod
    def _most_is_not_less_than_least(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("min_batches")
        if most is not None and least is not None and most < least:
            raise ValueError("less than min_batches")
        return most

    def applied_to(self, rule: StopRule) -> StopRule:
        """Return ``rule`` with the settings of the file. If the file has only one of ``min_batches`` and
        ``max_batches``, the other one is that of the rule if it fits, else it is set to the same number."""
        least = self.min_batches or min(rule.min_batches, self.max_batches or rule.max_batches)
        return replace(
            rule,
            warm_up_secs=self.warm_up_secs,
            flush_bytes=self.flush_cache_bytes,
            max_cv=rule.max_cv if self.max_cv is None else self.max_cv,
            min_batches=least,
            max_batches=self.max_batches or max(rule.max_batches, least),
        )


class FleetConfig(Frozen):
    """All devices, and the settings of builds and measurements for them."""

    devices: Annotated[tuple[DeviceConfig, ...], Field(min_length=1)]
    build: BuildConfig = BuildConfig()
    measure: MeasureConfig = MeasureConfig()
    source: FleetSource | None = None
    """The file that the fleet was read from. None without a file."""
    all_of_a_key: tuple[DeviceConfig, ...] = ()
    """Entries that stand for all devices that a tracker has under a key. ``devices`` has at least one device of each
    entry; its name is that of the entry and a number."""
    chosen: frozenset[str] | None = None
    """Names of the file's devices that are used (:meth:`only`). None: all."""
    library: Library | None = None
    """Library that :meth:`with_library` gave to devices. None: no library."""

    @property
    def datasets(self) -> tuple[Path, ...]:
        """Datasets that answer for the devices, if datasets answer for all of them. Empty if a device is real."""
        connections = [device.connection for device in self.devices]
        paths = tuple(each.path for each in connections if isinstance(each, RecordedConnection))
        return paths if len(paths) == len(connections) else ()

    def only(self, names: Collection[str]) -> FleetConfig:
        """Return the fleet with only these devices; there must be at least one. The first device of a tracker's key
        stands for all devices of that key."""
        chosen = [at for at, device in enumerate(self.devices) if device.name in names]
        source = self.source
        if source is not None:
            source = replace(source, tables=tuple(source.tables[at] for at in chosen))
        changes = {
            "devices": tuple(self.devices[at] for at in chosen),
            "source": source,
            "all_of_a_key": tuple(entry for entry in self.all_of_a_key if f"{entry.name}-1" in names),
            "chosen": frozenset(names),
        }
        return self.model_copy(update=changes)

    def with_library(self, library: Library | None) -> FleetConfig:
        """Return the fleet whose CPUs of this machine may call ``library``; None: the fleet as it is. Raise
        :class:`FleetFileError` if there is no such CPU."""
        if library is None:
            return self
        here = [each for each in self.devices if each.connect == "local" and each.via is None and not each.is_gpu]
        if not here:
            raise FleetFileError(
                f"--library {library} is for CPUs of this machine, and the fleet has none",
                f'omit it, or give devices whose hosts have the library the key library = "{library}"',
            )
        devices = tuple(each.model_copy(update={"library": library}) if each in here else each for each in self.devices)
        return self.model_copy(update={"devices": devices, "library": library})

    def where(self, device: str, key: str) -> str:
        """Return the place where a device's key is set, for messages: ``fleet.toml, line 7``; ``the default fleet``
        without a file."""
        if self.source is None:
            return "the default fleet"
        index = [config.name for config in self.devices].index(device)
        return self.source.where(("device", self.source.tables[index], key))


@dataclass(frozen=True, slots=True)
class FleetSource(TomlText):
    """A fleet file as read."""

    tables: tuple[int, ...] = ()
    """Index of the [[device]] table that each device of the fleet comes from."""


FleetConfig.model_rebuild()


def default_fleet() -> FleetConfig:
    """Return a fleet of this machine's CPU, with all cores that this process may use."""
    device = DeviceConfig(name="local", connect="local", target="native", threads=usable_cpus())
    return FleetConfig(devices=(device,))


def load_fleet(path: Path) -> FleetConfig:
    """Read a fleet file. Raise :class:`FleetFileError`, which names the file and, for a mistake in it, line and key."""
    file, text = read_toml(path, _KIND, _FleetFile)
    source = FleetSource(path, text.text)
    names: dict[str, int] = {}
    addresses: dict[tuple[str, str, int], int] = {}
    devices: list[DeviceConfig] = []
    all_of_a_key: list[DeviceConfig] = []
    for index, table in enumerate(file.device):
        _check_via(source, index, table)
        address = _address(table)
        if address in addresses:
            first = source.where(("device", addresses[address], "connect"))
            raise FleetFileError(
                f"{source.where(('device', index, 'connect'))}: connect = {as_toml(table.connect)} is the address of "
                f"another device already ({first})",
                "one server is one device: remove one of the two",
            )
        if address is not None:
            addresses[address] = index
        if table.count == "all":
            all_of_a_key.append(_relative_to(path.absolute().parent, table))
        for device in _counted(table):
            if device.name in names:
                first = source.where(("device", names[device.name], "name"))
                raise FleetFileError(
                    f"{source.where(('device', index, 'name'))}: name = {device.name!r} is used already ({first})",
                    "give every device its own name",
                )
            names[device.name] = index
            devices.append(_relative_to(path.absolute().parent, device))
    if not devices:
        raise FleetFileError(f"the fleet file {path} has no device", 'add a table [[device]] with name = "cpu"')
    source = replace(source, tables=tuple(names.values()))
    return FleetConfig(
        devices=tuple(devices),
        build=file.build,
        measure=file.measure,
        source=source,
        all_of_a_key=tuple(all_of_a_key),
    )


def with_listed(fleet: FleetConfig, listed: Mapping[str, int]) -> FleetConfig:
    """Return the fleet with the listed number of devices of each entry of :attr:`FleetConfig.all_of_a_key`, at most
    :data:`MOST_OF_A_KEY`. ``listed``: numbers by the entry's name. No device is removed. A number is left out if
    another device has that name."""
    devices = list(fleet.devices)
    tables = list(fleet.source.tables) if fleet.source is not None else []
    names = {device.name for device in devices}
    for entry in fleet.all_of_a_key:
        first = next(at for at, device in enumerate(fleet.devices) if device.name == f"{entry.name}-1")
        for number in range(2, 1 + min(MOST_OF_A_KEY, listed.get(entry.name, 0))):
            device = _numbered(entry, number)
            if device.name not in names:
                names.add(device.name)
                devices.append(device)
                tables += tables[first : first + 1]
    source = fleet.source and replace(fleet.source, tables=tuple(tables))
    return fleet.model_copy(update={"devices": tuple(devices), "source": source})


def with_boards_of(fleet: FleetConfig, before: FleetConfig) -> FleetConfig:
    """Return the fleet with the devices that ``before`` had of those entries of :attr:`FleetConfig.all_of_a_key` that
    both fleets have. A fleet file that is read again does not list these devices."""
    known = {device.name: device.connect for device in before.devices}
    listed = {
        entry.name: max(
            (number for number in range(1, 1 + MOST_OF_A_KEY) if known.get(f"{entry.name}-{number}") == entry.connect),
            default=0,
        )
        for entry in fleet.all_of_a_key
        if any((each.name, each.connect) == (entry.name, entry.connect) for each in before.all_of_a_key)
    }
    return with_listed(fleet, listed)


def _check_via(source: FleetSource, index: int, table: DeviceConfig) -> None:
    """Raise FleetFileError for a setting that does not work on another host (``via``): that host does not know this
    file's folder, and its tracker cannot be asked from here."""
    if table.via is None:
        return
    recorded = table.connection.path if isinstance(table.connection, RecordedConnection) else None
    absolute = "give the absolute path that it has there"
    if recorded is not None and not recorded.is_absolute():
        key, problem, next_step = "connect", "is not relative to this file", absolute
    elif table.key_file is not None and not table.key_file.startswith(("/", "~/")):
        key, problem, next_step = "key_file", "is not relative to this file", f"{absolute}, or one that begins with ~/"
    elif table.count == "all":
        key, problem, next_step = "count", "cannot be counted from here", "give the number of boards"
    else:
        return
    value = as_toml(getattr(table, key))
    raise FleetFileError(
        f"{source.where(('device', index, key))}: {key} = {value} is of host {table.via} and {problem}", next_step
    )


def _address(table: DeviceConfig) -> tuple[str, str, int] | None:
    """Return the host from which the device's own server is seen (``via``), and the host and port of the server.
    ``None`` for a device without a server, or if a tracker finds it."""
    connection = table.connection
    if not isinstance(connection, RpcConnection):
        return None
    host = connection.host.lower().rstrip(".")
    return table.via or "", "127.0.0.1" if host in _LOOPBACK else host, connection.port


def _counted(table: DeviceConfig) -> list[DeviceConfig]:
    """Return the devices that a table stands for: itself, or ``count`` devices with numbers at the end of their names
    (only the first one for ``all``)."""
    if table.count == 1:
        return [table]
    return [_numbered(table, number) for number in range(1, 1 + (1 if table.count == "all" else table.count))]


def _numbered(table: DeviceConfig, number: int) -> DeviceConfig:
    return table.model_copy(update={"name": f"{table.name}-{number}", "count": 1})


def _relative_to(folder: Path, device: DeviceConfig) -> DeviceConfig:
    """Return the device with the paths of its files resolved: actors run in other working directories. Paths on another
    host stay as they are."""
    if device.via is not None:
        return device
    if device.key_file is not None:
        return device.model_copy(update={"key_file": str(folder / os.path.expanduser(device.key_file))})
    if isinstance(device.connection, RecordedConnection):
        return device.model_copy(update={"connect": f"{_RECORDED}{folder / device.connection.path}"})
    return device


def parse_connection(text: str) -> Connection:
    """Parse ``connect``. Raise ValueError with the accepted forms."""
    if len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise ValueError(f"give {_CONNECTIONS}")
    if text == "local":
        return LocalConnection()
    file = text.removeprefix(_RECORDED).removeprefix(_REPLAY)
    if file not in ("", text) and not file.isdigit():  # a host may be called "recorded" too
        return RecordedConnection(Path(file))
    tracker = re.fullmatch(r"tracker://(?P<address>[^/]+)/(?P<key>[^/\s]+)", text)
    address = re.fullmatch(
        r"(\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/@\[\]]+)):(?P<port>[0-9]{1,5})",
        tracker["address"] if tracker else text,
    )
    if address is None or not 1 <= int(address["port"]) <= values.MAX_PORT:
        raise ValueError(f"give {_CONNECTIONS}")
    host, port = address["v6"] or address["host"], int(address["port"])
    if not values.is_host(host):
        raise ValueError(f"give {_CONNECTIONS}")
    return TrackerConnection(host, port, tracker["key"]) if tracker else RpcConnection(host, port)


class _FleetFile(Frozen):
    """The tables of a fleet file under the names they have there."""

    device: Annotated[tuple[DeviceConfig, ...], Field(strict=False)] = ()
    build: BuildConfig = BuildConfig()
    measure: MeasureConfig = MeasureConfig()


NAME_FORM = "letters, digits, dots, dashes and underscores (at most 64), the first a letter or digit"
_EXPECTED = {
    "device": "[[device]] tables, with double brackets",
    "build": "one [build] table, with single brackets",
    "measure": "one [measure] table, with single brackets",
    "check_every_secs": "a number of seconds from 1 to 86400",
    "realtime": "true or false",
    "warm_up_secs": "a number of seconds from 0 to 1",
    "flush_cache_bytes": f"a whole number of bytes from 0 to {256 << 20}",
    "max_cv": "a number from 0 to 1: the standard deviation of the throughput as a share of its mean",
    "min_batches": f"a whole number from 1 to {MOST_BATCHES}",
    "max_batches": f"a whole number from 1 to {MOST_BATCHES}, and not less than min_batches",
    "name": NAME_FORM,
    "connect": _CONNECTIONS,
    "via": "the name or address of a node of the Ray cluster, or NAME of its resource fleet-tune-host:NAME",
    "target": '"native", the name of a TVM target, or a table with kind, as in { kind = "llvm", mcpu = "cortex-a78" }',
    "threads": "a whole number from 1 to 4096",
    "device_class": NAME_FORM,
    "library": '"onednn"',
    "count": f'a whole number from 1 to {MOST_OF_A_KEY}, or "all"; above 1 only with connect = "tracker://host:port/key"',
    "key_file": 'the path of a copy of the device server\'s key file, with connect = "host:port" or "tracker://..."',
    "connect_secs": "a number of seconds above 0, at most 3600",
    "upload_secs": "a number of seconds above 0, at most 3600",
    "silence_secs": "a number of seconds from 1 to 3600",
    "candidate_secs": "a number of seconds above 0, at most 3600",
    "probe_secs": "a number of seconds above 0, at most 3600",
    "oracle_secs": "a number of seconds above 0, at most 3600",
    "workers": "a whole number from 1 to 1024",
    "total_workers": "a whole number from 1 to 65536",
    "timeout_secs": "a number of seconds above 0, at most 3600",
}
_KIND = FileKind(
    what="the fleet file",
    error=FleetFileError,
    example="examples/fleet.toml",
    give="give an existing file with --fleet",
    tables={"device": DeviceConfig, "build": BuildConfig, "measure": MeasureConfig},
    lists=frozenset({"device"}),
    expected=_EXPECTED,
)
