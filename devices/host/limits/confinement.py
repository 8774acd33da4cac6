"""Limits of a device server's sessions, and the account that they run as. Candidates are compiled code from
elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from devices.host.limits.priority import KERNEL_PRIORITY
from devices.host.owned_folder import make_locked, remove_abandoned, remove_locked
from fleet_tune.base.errors import UserError

DEFAULT_UPLOAD_BYTES = 256 << 20
_PR_SET_NO_NEW_PRIVS = 38


class AccountError(UserError):
    """The server cannot run its sessions as that user: name another one, or start it as root."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one session."""

    upload_bytes: int
    """Size of all files that a session has on the device at a time."""
    memory_bytes: int
    """Memory that a session may allocate in addition to the memory that it has at its start."""


def default_limits() -> SessionLimits:
    return SessionLimits(DEFAULT_UPLOAD_BYTES, memory_total_bytes() * 3 // 4)


def memory_total_bytes(root: Path = Path("/")) -> int:
    """Return the memory of this machine, or of the control groups of this process if that is less, in bytes."""
    stated = re.search(r"^MemTotal:\s*(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    total = int(stated[1]) << 10 if stated else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _group_limits(root):
        with contextlib.suppress(OSError, ValueError):  # "max", or no such control group
            total = min(total, int(limit.read_text()))
    return total


def _group_limits(root: Path) -> list[Path]:
    """Return the files with the limits of this process' control groups: its own and those above it, of version 2 and
    1."""
    groups = root / "sys/fs/cgroup"
    limits = [groups / "memory.max", groups / "memory/memory.limit_in_bytes"]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base, name = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        if not controllers or "memory" in controllers.split(","):
            parts = path.strip("/").split("/")
            limits += [base.joinpath(*parts[:depth], name) for depth in range(1, len(parts) + 1)]
    return limits


def confine(limits: SessionLimits) -> None:
    """Limit the memory and the files of a session's process, and make it the first process that the kernel kills if
    memory is short. An allocation beyond the limit fails, which affects the candidate alone.

    The limit counts private writable memory, not reserved addresses: CUDA reserves far more than it uses.
    """
    status = Path("/proc/self/status").read_text()
    used = re.search(r"^VmData:\s*(\d+) kB", status, re.MULTILINE)
    for kind, limit in (
        (resource.RLIMIT_DATA, limits.memory_bytes + (int(used[1]) << 10 if used else 0)),
        (resource.RLIMIT_FSIZE, limits.upload_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_RTPRIO, KERNEL_PRIORITY),
    ):
        _, hard = resource.getrlimit(kind)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))
    with contextlib.suppress(OSError):  # a container may not show it
        Path("/proc/self/oom_score_adj").write_text("1000")


def check_account(name: str) -> None:
    """Raise AccountError for a user that does not exist, or that this process may not become."""
    try:
        account = pwd.getpwnam(name)
    except KeyError as error:
        raise AccountError(f"there is no user {name!r} on this machine", "name an existing one with --user") from error
    if os.geteuid() not in (0, account.pw_uid):
        raise AccountError(
            f"only root may start a server that runs as {name!r}", "start it as root, or as that user without --user"
        )


def become(name: str, rt_priority: int = 0) -> None:
    """Switch this process to the user ``name`` for good: no program that it starts can gain further rights.

    ``rt_priority``: highest real-time priority that stays allowed, if this process may allow it; 0 for the system's
    default.
    """
    account = pwd.getpwnam(name)
    if os.geteuid() != account.pw_uid:
        if rt_priority:
            with contextlib.suppress(OSError, ValueError):  # without CAP_SYS_RESOURCE, as root of a container often is
                resource.setrlimit(resource.RLIMIT_RTPRIO, (rt_priority, rt_priority))
        os.initgroups(name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.environ.update(HOME=account.pw_dir, USER=name, LOGNAME=name)


class PrivateFolder:
    """A temporary folder that only its owner may enter, with a lock that shows if a process still uses it.

    Folders of servers that were killed together with all of their children are removed when the next one starts.
    ``user``: its owner; None for the user of this process.
    """

    def __init__(self, user: str | None = None) -> None:
        account = None if user is None else pwd.getpwnam(user)
        remove_abandoned(users=() if account is None else (account.pw_uid,))
        self.path, self.lock = make_locked("device")
        if account is not None:
            os.chown(self.path, account.pw_uid, account.pw_gid)

    def remove(self) -> None:
        """Remove the folder and all in it. May be called twice."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            remove_locked(self.path, lock)
