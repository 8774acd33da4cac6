"""Number of CPUs that this process may use, and the share of time in which the kernel throttles it.

Two things bound the CPUs of a process: its affinity, of which a cpuset is a part, and the quotas of its control groups.
A quota is CPU time in each period (``docker --cpus 0.5``: 50 ms in 100 ms). A group that has used up its quota stands
still until the next period: it is *throttled*. Each group from the process's own up to the root may have one; the
smallest counts.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
# Used if the system does not list its mounts (no /proc).
_USUAL_MOUNTS = (
    "0 0 0:0 / /sys/fs/cgroup rw - cgroup2 cgroup rw",
    "0 0 0:0 / /sys/fs/cgroup/cpu rw - cgroup cgroup cpu",
)


def usable_cpus(root: Path = _ROOT) -> int:
    """Return the number of CPUs that this process may use: its affinity, or its quota rounded up if that is less.

    At least 1: a process with half of a CPU runs on one, and is throttled if it works all the time.
    """
    return cpus_within(len(os.sched_getaffinity(0)), cpu_quota(root))


def cpus_within(count: int, quota: float) -> int:
    """Return how many of ``count`` CPUs a quota leaves."""
    return count if math.isinf(quota) else max(1, min(count, math.ceil(quota)))


def cpu_quota(root: Path = _ROOT) -> float:
    """Return the smallest CPU quota of this process's control groups, in CPUs. Infinite if there is no quota."""
    return min((_quota(group) for group in _groups(root)), default=math.inf)


@dataclass(frozen=True, slots=True)
class Throttling:
    """Counts of the control groups of this process since they were made, or between two moments."""

    periods: int = 0
    """Periods in which the group that was throttled most had something to run."""
    throttled_periods: int = 0
    """Periods in which it used up its quota."""

    def since(self, earlier: Throttling) -> Throttling:
        """Return the counts since ``earlier``."""
        return Throttling(self.periods - earlier.periods, self.throttled_periods - earlier.throttled_periods)

    @property
    def share(self) -> float:
        """Share of the periods that were throttled; 0 without a quota."""
        return self.throttled_periods / self.periods if self.periods > 0 else 0.0


class QuotaGroups:
    """The control groups of this process that have a quota now."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._groups = [group for group in _groups(root) if not math.isinf(_quota(group))]

    def throttling(self) -> Throttling:
        """Return the counts of the group that was throttled most."""
        return max(map(_throttling, self._groups), key=lambda each: each.throttled_periods, default=Throttling())


class _Group(NamedTuple):
    """A control group that schedules CPU time."""

    folder: Path
    version: int


def _groups(root: Path) -> Iterator[_Group]:
    """Yield the control groups of this process, each followed by its ancestors, as far as they are mounted."""
    paths: dict[int, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths[2] = path
        elif "cpu" in controllers.split(","):
            paths[1] = path
    for line in _lines(root / "proc/self/mountinfo") or _USUAL_MOUNTS:
        described, _, mounted = line.partition(" - ")
        kind, _, options = mounted.split(" ", 2)
        version = {"cgroup2": 2, "cgroup": 1}.get(kind, 0)
        if version == 2 or (version == 1 and "cpu" in options.split(",")):
            shown, point = described.split(" ")[3:5]
            folder = root / point.replace("\\040", " ").lstrip("/")
            for below in _below(paths.get(version, "/"), shown):
                yield _Group(folder / below, version)


def _below(path: str, shown: str) -> Iterator[Path]:
    """Yield the folders from the group ``path`` up to the top of a mount that shows the group ``shown``.

    A container may see a part of the tree that does not contain the group of its process. Then only the top of the
    mount is yielded.
    """
    try:
        below = Path(path).relative_to(shown)
    except ValueError:
        below = Path()
    if ".." in below.parts:
        below = Path()
    yield below
    yield from (each for each in below.parents if each != below)


def _quota(group: _Group) -> float:
    """Return the quota of one group in CPUs; infinite if it has none."""
    with contextlib.suppress(OSError, ValueError):
        if group.version == 2:
            quota, period = (group.folder / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group.folder / name).read_text().strip() for name in names)
        if quota != "max" and int(quota) > 0 and int(period) > 0:
            return int(quota) / int(period)
    return math.inf


def _throttling(group: _Group) -> Throttling:
    fields: dict[str, int] = {}
    for line in _lines(group.folder / "cpu.stat"):
        with contextlib.suppress(ValueError):
            name, value = line.split()
            fields[name] = int(value)
    return Throttling(fields.get("nr_periods", 0), fields.get("nr_throttled", 0))


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").splitlines()
    return []
