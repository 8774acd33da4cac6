"""The use of a run's devices over some time, and the processor time and memory of its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from actors.clients.calls import ask
from actors.clusters.cluster import Cluster

SIMULATED = ("devices (simulated)", "builders (simulated)")
"""Roles that stand in for processes which a real fleet has elsewhere."""
STARTED = {"builders": "builds", "devices": "device servers"}
"""Roles whose processes start other processes for their work, with the role of the started processes."""
_WORK = frozenset((*SIMULATED, *STARTED.values()))
_ANSWER_SECS = 60.0
Use = tuple[dict[tuple[int, float], float], int]
"""Processor seconds by process (its id and its start time), and resident bytes of all of them."""


@dataclass(frozen=True)
class RoleUsage:
    """The use of the processes of a role."""

    cpu_secs_a_record: float
    """Processor seconds for each record."""
    memory_bytes: int
    """Resident memory."""


@dataclass(frozen=True)
class FleetUsage:
    """The use of a fleet during ``secs`` seconds."""

    devices: int
    builders: int
    searchers: int
    trials_a_second: float
    demand: float | None
    """Trials per second if no device ever waited; None if the time of a trial is not known."""
    busy: float
    """Share of the time of all devices in which they measured."""
    busy_by_class: dict[str, float]
    """The same for each class."""
    bound: dict[str, str]
    """The stage that limits each class most, or ``measure``."""
    roles: dict[str, RoleUsage]
    """Use of the processes of each role."""
    secs: float

    @property
    def cpu_secs_a_record(self) -> float:
        """Processor seconds for each record, of all roles except the work itself (builds and kernels, or their
        simulation)."""
        return sum(use.cpu_secs_a_record for role, use in self.roles.items() if role not in _WORK)


async def used(processes: Mapping[str, Sequence[Any]], cluster: Cluster) -> dict[str, Use]:
    """Return processor seconds and resident bytes by role. This process and Ray's own processes are roles too.
    ``processes``: the actors of each role, on any node."""
    by_role: defaultdict[str, Use] = defaultdict(lambda: ({}, 0))

    def add(role: str, use: Use) -> None:
        by_role[role] = by_role[role][0] | use[0], by_role[role][1] + use[1]

    asked = [(role, actor) for role, actors in processes.items() for actor in actors]
    answers = await asyncio.gather(
        *(ask(actor.__ray_call__.remote(_own_and_started), _ANSWER_SECS, f"what {role} uses") for role, actor in asked)
    )
    for (role, _), (own, started) in zip(asked, answers, strict=True):
        add(role, own)
        if role in STARTED:
            add(STARTED[role], started)
    add("this command", _use_of(psutil.Process(os.getpid())))
    for use in _use_of_ray(cluster.processes.values()):
        add("Ray", use)
    return dict(by_role)


def since(before: Mapping[str, Use], later: Mapping[str, Use], records: int) -> dict[str, RoleUsage]:
    """Return the use of each role between two measurements: processor seconds for each of ``records`` records, and
    memory at the end. A process that ended between them is not counted. A process that began between them is counted in
    full."""
    uses = {}
    for role, (processes, size) in later.items():
        known = before.get(role, ({}, 0))[0]
        secs = sum(secs - known.get(process, 0.0) for process, secs in processes.items())
        uses[role] = RoleUsage(secs / max(1, records), size)
    return uses


def _own_and_started(_actor: object = None) -> tuple[Use, Use]:
    """The use of this process, and of all processes that it has started."""
    own = psutil.Process(os.getpid())
    secs: dict[tuple[int, float], float] = {}
    size = 0
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used_by, resident = _use_of(child)
            secs |= used_by
            size += resident
    return _use_of(own), (secs, size)


def _use_of(process: psutil.Process) -> Use:
    times = process.cpu_times()
    return {(process.pid, process.create_time()): times.user + times.system}, process.memory_info().rss


def _use_of_ray(processes: Iterable[psutil.Process]) -> Iterator[Use]:
    """The use of Ray's own processes and of their children on this machine."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield _use_of(process)
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    # Our actors and their children belong to other roles.
                    if not _is_ours(child, process):
                        yield _use_of(child)


def _is_ours(process: psutil.Process, root: psutil.Process) -> bool:
    while process is not None and process.pid != root.pid:
        if "ray::" in " ".join(process.cmdline()):
            return True
        process = process.parent()
    return False
