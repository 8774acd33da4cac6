"""Versions of TVM on the machines of a run. They have to be the same: one machine loads what another compiles."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from devices.host.file_cache import tvm_versions
from fleet_tune.base.errors import VersionsDifferError


@dataclass(frozen=True)
class HostVersions:
    """A machine that takes part in a run."""

    name: str
    tvm_versions: Mapping[str, str]
    """Versions of TVM's packages by name."""


def this_host_versions() -> HostVersions:
    """Return the versions on this machine, as this process sees them. TVM is not loaded."""
    return HostVersions(socket.gethostname(), tvm_versions())


def check_same_tvm(ours: HostVersions, what: str, theirs: HostVersions) -> None:
    """Raise :class:`VersionsDifferError` if ``theirs`` has other versions of TVM than ``ours``. The error names both.
    ``what``: the part of the run that is on their machine."""
    if theirs.tvm_versions != ours.tvm_versions:
        raise tvm_differs(f"{what} on {theirs.name}", _written(theirs.tvm_versions), _written(ours.tvm_versions))


def tvm_differs(what: str, theirs: str, ours: str) -> VersionsDifferError:
    """Return the error of a part of a run that has another version of TVM than this process."""
    return VersionsDifferError(
        f"{what} has TVM {theirs}, this machine has TVM {ours}", "install the same version of apache-tvm on both"
    )


def _written(versions: Mapping[str, str]) -> str:
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "apache-tvm")
    return versions["apache-tvm"] + (f" with {others}" if others else "")
