"""The checkup of ``fleet-tune doctor``: everything that a run on this machine depends on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from devices.cuda.compiler import require_compiler
from devices.host.checkup import host_diagnoses
from devices.host.file_cache import user_folder
from devices.host.machine import gpu_driver
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.diagnosis import Diagnosis, good, problem, warning
from fleet_tune.base.errors import UserError
from fleet_tune.base.ports import SERVER_PORT
from fleet_tune.base.records.sharing.shared import check_shared, default_place
from fleet_tune.runs.fleet.device_check import check_devices

_PACKAGE = "fleet-tune"
_EXTRA = "tune"
_TOKEN = Path(".ray") / "auth_token"


def checkup(fleet: FleetConfig | None = None, address: str | None = None) -> Iterator[Diagnosis]:
    """Check this machine, and the devices of a fleet.

    Args:
        fleet: the fleet; None for none.
        address: the cluster whose machines drive devices with ``via``.

    Raises :class:`FleetFileError` for a wrong target or dataset, ClusterError.
    """
    yield from packages()
    yield from host_diagnoses([user_folder(), Path(tempfile.gettempdir())])
    yield gpu()
    yield port(SERVER_PORT)
    yield from store()
    yield from ray_token(Path.home())
    if fleet is not None:
        yield from devices(fleet, address)


def packages() -> Iterator[Diagnosis]:
    """Check the versions of Python and of the packages against the requirements of fleet-tune."""
    try:
        ours = importlib.metadata.metadata(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        yield warning("packages", "fleet-tune is not installed, only on the path", "pip install -e '.[tune]'")
        return
    version, asked = platform.python_version(), SpecifierSet(ours["Requires-Python"] or "")
    if version in asked:
        yield good("Python", version)
    else:
        yield problem("Python", f"{version}, not {asked}", "make the virtual environment with another Python")
    wrong = []
    for requirement in map(Requirement, importlib.metadata.requires(_PACKAGE) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": _EXTRA}):
            found = _installed(requirement.name)
            if found is None or not requirement.specifier.contains(found, prereleases=True):
                wrong.append(f"{requirement.name} {found or 'is missing'}, not {requirement.specifier or 'any'}")
    if wrong:
        yield problem("packages", "; ".join(wrong), f"pip install '{_PACKAGE}[{_EXTRA}]' in this environment")
    else:
        told = ", ".join(f"{name} {_installed(name)}" for name in ("apache-tvm", "ray", "torch"))
        yield good("packages", f"as asked for: {told}")


def gpu(root: Path = Path("/")) -> Diagnosis:
    """Check whether kernels can be compiled for this machine's NVIDIA GPU, if it has one."""
    driver = gpu_driver(root)
    if not driver:
        return good("GPU", "no driver of NVIDIA's")
    try:
        require_compiler()
    except UserError as error:
        return problem("GPU", f"driver {driver}; {error.problem}", error.next_step)
    return good("GPU", f"driver {driver}; kernels can be compiled")


def port(number: int) -> Diagnosis:
    """Check whether a device server can listen on its port of this machine."""
    with socket.socket() as probing:
        probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probing.bind(("", number))
        except OSError as error:
            told = f"port {number} of device servers is taken ({error.strerror}): by one, or another program"
            return warning(
                "ports", told, "give fleet-tune device serve another one with --port, if it is no server of yours"
            )
    return good("ports", f"{number}, of device servers, is free; all others of a run are chosen by the system")


def store() -> Iterator[Diagnosis]:
    """Check the store that the runs of this user share."""
    try:
        place = default_place()
        if place is None:
            yield warning("store", "none: every run begins anew", "unset FLEET_TUNE_STORE, or name a file with it")
            return
        check_shared(place.path)
    except UserError as error:
        yield problem("store", error.problem, error.next_step)
        return
    size = place.path.stat().st_size if place.path.exists() else 0
    yield good("store", f"{place.shown}, {size / 2**20:.1f} MiB" if size else f"{place.shown}, made by the first run")


def ray_token(home: Path) -> Iterator[Diagnosis]:
    """Check the token of Ray clusters that ask for one."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else home / _TOKEN
    wanted = os.environ.get("RAY_AUTH_MODE") == "token" and not os.environ.get("RAY_AUTH_TOKEN")
    if not file.exists():
        if wanted:
            yield problem(
                "Ray's token", f"{file} is missing, and RAY_AUTH_MODE is token", "ray get-auth-token --generate"
            )
        return
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield warning("Ray's token", f"others may read {file}", f"chmod 600 {file}")
    else:
        yield good("Ray's token", str(file))


def devices(fleet: FleetConfig, address: str | None) -> Iterator[Diagnosis]:
    """Check that the devices of a fleet answer."""
    for check in check_devices(fleet, (), address):
        subject = f"device {check.device_id}"
        if check.state == "good":
            kind = "" if check.fingerprint is None else check.fingerprint.device_class.name
            yield good(subject, f"it answers: {kind}")
        else:
            step = "start 'fleet-tune device serve' on it, check the address, or retire it"
            yield problem(subject, f"it is {check.state}: {check.detail}", step)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
