"""The file of ``fleet-tune retune``: which networks are kept tuned, for which fleet, and what that may take.

.. code-block:: toml

    folder = "/srv/fleet-tune"       # versions, state, logs and work; of one service only
    fleet = "fleet.toml"             # default: this machine's CPU
    store = "/srv/team/store.db"     # the records that runs share; "postgresql://..." or "@key.file" for a team's
                                     # server; default: store.db in the folder
    store_mb = 4096                  # a larger store is pruned; default: 4096 for the store in the folder, else never
    address = "auto"                 # a Ray cluster; default: an embedded one for each run
    hook = ["./deploy.sh"]           # a command that is run after each publish
    metrics_port = 9465              # Prometheus metrics
    metrics_host = "127.0.0.1"       # address of this machine on which they are served

    [[network]]
    name = "resnet18"                # unique; a folder of this name
    path = "networks.py:resnet18"    # as for 'fleet-tune tune'
    calls_per_day = 2_000_000        # on devices of each class
    shapes = "n=1..32"               # bounds of dynamic dimensions; shapes_weights = "n=1:0.7,8:0.3" or a file
    inputs = "inputs.npz"            # to compare and time it on; default: its own examples
    precision = "bf16"               # bf16, fp16, int8w or auto; default: as it is
    max_error = 0.01                 # with auto, and only then: the largest error, relative to the largest output
    trust = false                    # code in a .pt2 file may be run
    classes = ["orin"]               # device classes; default: all of the fleet

    [time]
    share = 0.1                      # of the time of each class's devices, in any 24 hours
    hours = "22:00-06:00"            # local time in which devices may be used; default: always
    span = "10m"                     # tuning time of one run
    payback = "30d"                  # time within which a run must be expected to save as much device time as it takes

    [watch]
    files_every = "1m"               # how often the networks' files are looked at
    devices_every = "6h"             # how often devices are asked what they are, and networks timed on them
    slower = 0.05                    # a network that is slower by more than this, relative to the probe, is tuned again
    drift = 0.25                     # so is a network that is slower by more than this without regard to the probe
    again = "15m"                    # the only device of a class confirms such a finding after this time
    age = "90d"                      # time after which half of the effort spent on a network counts

    [publish]
    devices = 3                      # up to so many devices of the class compare a new version with the last one
    versions = 5                     # number of versions that are kept of each network and class

A mistake raises :class:`RetuneFileError` with file, line and key. Relative paths are relative to the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from fleet_tune.base.config import values
from fleet_tune.base.config.fleet_file import NAME_FORM, FleetConfig, Name, default_fleet, load_fleet
from fleet_tune.base.config.shape_options import shapes_given
from fleet_tune.base.config.toml_file import FileKind, Frozen, TomlText, as_toml, read_toml
from fleet_tune.base.errors import RequestError, RetuneFileError
from fleet_tune.base.precision import MOST_ERROR, Precision, check_error_limit
from fleet_tune.base.records.sharing.store_place import StorePlace, is_address, place_of

STATE_STORE = "store.db"
_OWN_STORE_MB = 4096
_DAY_SECS = 86400.0
_MOST_PATH = 4096
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


def _seconds(value: Any) -> Any:
    """Return the seconds of a duration that is written as text; return numbers as they are."""
    if not isinstance(value, str):
        return value
    try:
        return values.duration(value)
    except RequestError as error:
        raise ValueError(error.problem) from error


_PathText = Annotated[str, Field(min_length=1, max_length=_MOST_PATH, pattern=r"^[^\x00]*$")]
_Secs = Annotated[float, BeforeValidator(_seconds), Field(ge=1, le=values.MOST_SECS)]


class NetworkConfig(Frozen):
    """A network to keep tuned."""

    name: Name
    path: _PathText
    """Path of the network: an ``.onnx`` or ``.pt2`` file, or ``file.py:function``."""
    calls_per_day: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
    shapes: _PathText | None = None
    """Bounds of its dynamic dimensions, as ``--shapes`` takes them."""
    shapes_weights: _PathText | None = None
    """How often each extent occurs, as ``--shapes-weights`` takes it: a list, or the path of a file."""
    inputs: _PathText | None = None
    """Path of an ``.npz`` file of inputs. None: the network's own examples."""
    precision: Annotated[Precision, Field(strict=False)] | None = None
    """Precision that it is converted to. None: it is not converted."""
    max_error: Annotated[float, Field(gt=0, le=MOST_ERROR)] | None = None
    """Largest error of the precision ``auto``, relative to the largest output. None for every other one."""
    trust: bool = False
    """True if code in a ``.pt2`` file may run."""
    classes: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)] | None = None
    """Device classes for which it is tuned. None: all of the fleet."""


class TimeConfig(Frozen):
    """Limits on the use of the devices, and the condition for a run to be worth it."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of each class's device time that may be used in 24 hours."""
    hours: str | None = None
    """Hours of the day in which devices may be used, as ``22:00-06:00``. None: all."""
    span: Annotated[float, BeforeValidator(_seconds), Field(ge=1, le=_DAY_SECS)] = 600.0
    """Seconds of tuning of one run."""
    payback: _Secs = 30 * _DAY_SECS
    """Seconds in which a run must pay back."""

    @field_validator("hours")
    @classmethod
    def _hours_parse(cls, text: str | None) -> str | None:
        if text is not None:
            parse_hours(text)
        return text


class WatchConfig(Frozen):
    """Rules for watching networks and devices."""

    files_every: _Secs = 60.0
    """Seconds between two looks at the networks' files."""
    devices_every: _Secs = 6 * 3600.0
    """Seconds between two checks of the devices."""
    slower: Annotated[float, Field(gt=0, le=10)] = 0.05
    """Share by which a network must be slower, relative to the probe, to count as slower."""
    drift: Annotated[float, Field(gt=0, le=10)] = 0.25
    """Share by which a network must be slower, without regard to the probe, to count as drifted."""
    again: _Secs = 900.0
    """Seconds until a suspicion is checked again on the same device."""
    age: _Secs = 90 * _DAY_SECS
    """Half-life of an effort in seconds."""


class PublishConfig(Frozen):
    """Rules for comparing a version before it is published, and the number of versions that are kept."""

    devices: Annotated[int, Field(ge=1, le=64)] = 3
    """Largest number of devices on which two versions are compared."""
    versions: Annotated[int, Field(ge=2, le=1000)] = 5
    """Number of versions that are kept."""


class _RetuneFile(Frozen):
    folder: _PathText
    fleet: _PathText | None = None
    store: _PathText | None = None
    store_mb: Annotated[int, Field(ge=1, le=10**9)] | None = None
    address: Annotated[str, Field(min_length=1, max_length=_MOST_PATH)] | None = None
    hook: Annotated[tuple[_PathText, ...], Field(min_length=1, strict=False)] | None = None
    metrics_port: Annotated[int, Field(ge=1, le=values.MAX_PORT)] | None = None
    metrics_host: str = "127.0.0.1"
    network: Annotated[tuple[NetworkConfig, ...], Field(strict=False)] = ()
    time: TimeConfig = TimeConfig()
    watch: WatchConfig = WatchConfig()
    publish: PublishConfig = PublishConfig()

    @field_validator("metrics_host")
    @classmethod
    def _host_parses(cls, text: str) -> str:
        try:
            return values.listening_host(text)
        except RequestError as error:
            raise ValueError(error.problem) from error

    @field_validator("address")
    @classmethod
    def _address_parses(cls, text: str | None) -> str | None:
        try:
            return values.cluster_address(text)
        except RequestError as error:
            raise ValueError(error.problem) from error


class RetuneConfig(Frozen):
    """Content of the file, with absolute paths."""

    folder: Path
    fleet: FleetConfig
    store: Path
    server: Annotated[str, Field(repr=False)]
    """Address of the server whose copy the store is. Empty for none."""
    store_mb: int | None
    """Size above which the store is pruned, in MB. None: never."""
    address: str | None
    hook: tuple[str, ...]
    """Command that is called after a version was published. Empty for none."""
    metrics_port: int | None
    metrics_host: str
    networks: tuple[NetworkConfig, ...]
    time: TimeConfig
    watch: WatchConfig
    publish: PublishConfig
    source: TomlText
    """The file as it was read."""
    fleet_path: Path | None
    """Path of the fleet file. None without one."""


def parse_hours(text: str) -> tuple[float, float]:
    """Return the begin and end of ``22:00-06:00`` in seconds since midnight; the end may be before the begin. Raise
    ValueError for anything else, and if both are the same."""
    match = _HOURS.fullmatch(text)
    if match is None or match[1] + match[2] == match[3] + match[4]:
        raise ValueError("give two different times of the day")
    first, second = (3600.0 * int(match[at]) + 60.0 * int(match[at + 1]) for at in (1, 3))
    return first, second


def load_retune(path: Path) -> RetuneConfig:
    """Read such a file and its fleet file. Raise :class:`RetuneFileError`, :class:`FleetFileError`."""
    file, source = read_toml(path, _KIND, _RetuneFile)
    if not file.network:
        raise RetuneFileError(f"{path} has no network", "add a table [[network]] with name, path and calls_per_day")
    names: dict[str, int] = {}
    for index, network in enumerate(file.network):
        if network.name in names:
            first = source.where(("network", names[network.name], "name"))
            where = source.where(("network", index, "name"))
            raise RetuneFileError(
                f"{where}: name = {as_toml(network.name)} is used already ({first})", "give every network its own name"
            )
        names[network.name] = index
        _check_shapes(path.absolute().parent, network, source, index)
        try:
            check_error_limit(network.precision, network.max_error)
        except RequestError as error:
            where = source.where(("network", index, "precision" if network.max_error is None else "max_error"))
            problem = f'{where}: precision = "auto" and max_error belong together'
            raise RetuneFileError(problem, error.next_step) from error
    folder = path.absolute().parent
    fleet_path = None if file.fleet is None else _under(folder, file.fleet)
    home = _under(folder, file.folder)
    own_store_mb = _OWN_STORE_MB if file.store is None else None
    place = StorePlace(home / STATE_STORE) if file.store is None else _store_of(folder, file.store, source)
    if place.server and file.store_mb is not None:
        raise RetuneFileError(
            f"{source.where(('store_mb',))}: a store on a server is pruned there, and not by this service",
            "remove store_mb, and see 'fleet-tune records prune'",
        )
    return RetuneConfig(
        folder=home,
        fleet=default_fleet() if fleet_path is None else load_fleet(fleet_path),
        store=place.path,
        server=place.server,
        store_mb=own_store_mb if file.store_mb is None else file.store_mb,
        address=file.address,
        hook=() if file.hook is None else _command(folder, file.hook),
        metrics_port=file.metrics_port,
        metrics_host=file.metrics_host,
        networks=tuple(_resolved(folder, network) for network in file.network),
        time=file.time,
        watch=file.watch,
        publish=file.publish,
        source=source,
        fleet_path=fleet_path,
    )


def _store_of(folder: Path, name: str, source: TomlText) -> StorePlace:
    """Return the store of this name: a path, the address of a server, or ``@`` and the path of a file that has the
    address."""
    try:
        if is_address(name):
            return place_of(name)
        return place_of(f"@{_under(folder, name[1:])}") if name.startswith("@") else StorePlace(_under(folder, name))
    except RequestError as error:
        raise RetuneFileError(f"{source.where(('store',))}: {error.problem}", error.next_step) from error


def _under(folder: Path, text: str) -> Path:
    return folder / os.path.expanduser(text)


def _resolved(folder: Path, network: NetworkConfig) -> NetworkConfig:
    inputs = None if network.inputs is None else str(_under(folder, network.inputs))
    changed = {"path": str(_under(folder, network.path)), "inputs": inputs}
    return network.model_copy(update={**changed, "shapes_weights": _weights_of(folder, network)})


def _weights_of(folder: Path, network: NetworkConfig) -> str | None:
    """Return the weights as they are written, or the absolute path of their file."""
    text = network.shapes_weights
    if text is None or ("=" in text and not _under(folder, text).is_file()):
        return text
    return str(_under(folder, text))


def _check_shapes(folder: Path, network: NetworkConfig, source: TomlText, index: int) -> None:
    try:
        shapes_given(network.shapes, _weights_of(folder, network))
    except RequestError as error:
        key = "shapes" if network.shapes_weights is None else "shapes_weights"
        where = source.where(("network", index, key))
        next_step = error.next_step.replace("--shapes-weights", "shapes_weights").replace("--shapes", "shapes")
        raise RetuneFileError(f"{where}: {error.problem}", next_step) from error


def _command(folder: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with its program resolved. A program with a slash in its name is relative to the file's
    folder; any other program is found in the PATH."""
    program = str(_under(folder, words[0])) if "/" in words[0] else words[0]
    return (program, *words[1:])


_DURATION = "a duration of at least a second, as 90s, 10m, 6h or 30d"
_KIND = FileKind(
    what="the file",
    error=RetuneFileError,
    example="examples/retune.toml",
    give="give an existing file, as examples/retune.toml",
    tables={"network": NetworkConfig, "time": TimeConfig, "watch": WatchConfig, "publish": PublishConfig},
    lists=frozenset({"network"}),
    expected={
        "network": "[[network]] tables, with double brackets",
        "time": "one [time] table, with single brackets",
        "watch": "one [watch] table, with single brackets",
        "publish": "one [publish] table, with single brackets",
        "folder": "the path of a folder for versions, state, logs and work",
        "fleet": "the path of a fleet file",
        "store": "the path of a record store, or the address of a team's",
        "store_mb": "a whole number of megabytes",
        "address": 'HOST:PORT of a Ray cluster, or "auto"',
        "hook": 'a command as a list of words, as ["./deploy.sh", "production"]',
        "metrics_port": f"a whole number from 1 to {values.MAX_PORT}",
        "metrics_host": "an address of this machine",
        "name": NAME_FORM,
        "path": "file.py:function, an .onnx file or a .pt2 file",
        "calls_per_day": "how often it runs a day: a number above 0",
        "shapes": 'bounds of dynamic dimensions, as "n=1..32, tokens=128"',
        "shapes_weights": 'how often extents come, as "n=1:0.7,8:0.3", or the path of a file',
        "inputs": "the path of an .npz file",
        "precision": " or ".join(f'"{each}"' for each in Precision),
        "max_error": f"a number above 0, at most {MOST_ERROR:g}",
        "trust": "true or false",
        "classes": 'names of device classes, as ["orin"]',
        "share": "a number above 0, at most 1",
        "hours": 'two different times of the day, as "22:00-06:00"',
        "span": f"{_DURATION}, at most a day",
        "payback": _DURATION,
        "files_every": _DURATION,
        "devices_every": _DURATION,
        "slower": "a share above 0, at most 10",
        "drift": "a share above 0, at most 10",
        "again": _DURATION,
        "age": _DURATION,
        "publish.devices": "a whole number from 1 to 64",
        "versions": "a whole number from 2 to 1000",
    },
)
