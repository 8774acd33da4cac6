"""What the devices of a run do for a while, and what its processes take for that."""

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
"""The roles that stand in for what a real fleet does elsewhere."""
STARTED = {"builders": "builds", "devices": "device servers"}
"""Roles whose processes have others do the work, and what those are called."""
_WORK = frozenset((*SIMULATED, *STARTED.values()))
_ANSWER_SECS = 60.0
Use = tuple[dict[tuple[int, float], float], int]
"""Seconds of a processor by process (its number, and when it began), and resident bytes of all of them."""


@dataclass(frozen=True)
class RoleUsage:
    """What the processes of a role took: of a processor, seconds for each record, and memory (resident), bytes."""

    cpu_secs_a_record: float
    memory_bytes: int


@dataclass(frozen=True)
class FleetUsage:
    """What a fleet did for ``secs``. ``demand``: trials a second of devices that never wait, None where nobody knows
    what they take. ``busy``: share of the time of its devices, of all and of each class, in which they measured.
    ``bound``: what each class waits for most, or ``measure``. ``roles``: by what the processes are."""

    devices: int
    builders: int
    searchers: int
    trials_a_second: float
    demand: float | None
    busy: float
    busy_by_class: dict[str, float]
    bound: dict[str, str]
    roles: dict[str, RoleUsage]
    secs: float

    @property
    def cpu_secs_a_record(self) -> float:
        """Of all that is not the work itself: builds and what devices run, or what is simulated."""
        return sum(use.cpu_secs_a_record for role, use in self.roles.items() if role not in _WORK)


async def used(processes: Mapping[str, Sequence[Any]], cluster: Cluster) -> dict[str, Use]:
    """Processor seconds and resident bytes by role, wherever its ``processes`` are, which are actors by their roles; of
    this process and of Ray's own too."""
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
    """What each role has used in between for each of so many ``records``, and what memory it has in the end. A process
    that has ended meanwhile is not counted, and one that has begun as a whole."""
    uses = {}
    for role, (processes, size) in later.items():
        known = before.get(role, ({}, 0))[0]
        secs = sum(secs - known.get(process, 0.0) for process, secs in processes.items())
        uses[role] = RoleUsage(secs / max(1, records), size)
    return uses


def _own_and_started(_actor: object = None) -> tuple[Use, Use]:
    """Of the process that asks, and of all that it has started."""
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
    """Of these processes of Ray's own, and what they have started: those of other machines are not seen."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield _use_of(process)
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    # Our own processes, and what they have started, are other roles.
                    if not _is_ours(child, process):
                        yield _use_of(child)


def _is_ours(process: psutil.Process, root: psutil.Process) -> bool:
    while process is not None and process.pid != root.pid:
        if "ray::" in " ".join(process.cmdline()):
            return True
        process = process.parent()
    return False
