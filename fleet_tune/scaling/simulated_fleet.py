"""Scaling of the real runtime: more and more simulated devices, one count after the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from actors.clusters.cluster import Cluster, connected
from actors.fleet_usage import FleetUsage
from actors.simulation.run import SimulatedFleet, SimulatedRun
from fleet_tune.base.config.values import cluster_address, seconds, share
from fleet_tune.base.errors import ClusterError, RequestError

MOST_DEVICES = 100_000
MOST_BUILDERS = 200_000
WARM_UP_SECS = 10.0
_COUNTS = "give counts as 1,2,4,8"
_T = TypeVar("_T")


@dataclass(frozen=True)
class ScaleRequest:
    """``devices``: the counts of devices. ``candidate_secs``, ``build_secs``: seconds of a candidate and of a build;
    ``faults``: share of candidates that crash; ``secs``: seconds for which each count is measured. ``address``: that of
    a Ray cluster, None for an embedded one."""

    devices: tuple[int, ...]
    candidate_secs: float
    build_secs: float
    faults: float
    secs: float
    address: str | None = None

    def fleet(self, count: int) -> SimulatedFleet:
        """Return the fleet of one of the counts."""
        return SimulatedFleet(count, self.candidate_secs, self.build_secs, self.faults)


def scale_request(
    devices: str,
    *,
    candidate_secs: float,
    build_secs: float,
    faults: float,
    secs: float,
    address: str | None = None,
) -> ScaleRequest:
    """Check the request of a user, and return it. ``devices``: counts, as ``1,2,4``. Raises :class:`RequestError`."""
    request = ScaleRequest(
        devices=counts(devices),
        candidate_secs=seconds("what a candidate takes", candidate_secs, "--candidate"),
        build_secs=seconds("what a build takes", build_secs, "--build"),
        faults=share("the share of faults", faults, "--faults"),
        secs=seconds("the time for each count", secs, "--seconds"),
        address=cluster_address(address),
    )
    if request.fleet(max(request.devices)).demand * request.build_secs > MOST_BUILDERS:
        raise RequestError(
            f"a fleet of {max(request.devices):,} needs more than {MOST_BUILDERS:,} builders with these times",
            "give fewer devices, a larger --candidate or a smaller --build",
        )
    return request


def counts(text: str) -> tuple[int, ...]:
    """Return the numbers of ``1,2,4``. Raises :class:`RequestError`."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,18}", part) or not 1 <= int(part) <= MOST_DEVICES:
            shown = repr(part if len(part) <= 40 else f"{part[:37]}...")
            raise RequestError(f"--devices has counts from 1 to {MOST_DEVICES}, not {shown}", _COUNTS)
    numbers = tuple(int(part) for part in parts)
    if len(set(numbers)) < len(numbers):
        raise RequestError(f"--devices has a count twice: {text}", _COUNTS)
    return numbers


def run_scaling(request: ScaleRequest, on_count: Callable[[int], None]) -> list[FleetUsage]:
    """Run a fleet of each count of devices, and return the use of each fleet, in the order of the request.

    ``on_count`` is called with each count when its fleet starts. Raises ClusterError if the cluster cannot be reached,
    or is lost.
    """
    with connected(request.address) as cluster:

        async def play() -> list[FleetUsage]:
            uses = []
            for count in request.devices:
                on_count(count)
                folder = _made(cluster.folder / f"scale-{count}")
                uses.append(await _played(SimulatedRun(cluster, request.fleet(count), folder), request))
            return uses

        return asyncio.run(_while_it_lasts(cluster, play()))


async def _while_it_lasts(cluster: Cluster, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of ``work``. Raises ClusterError as soon as the cluster is lost. Ray itself takes a minute."""
    working, losing = asyncio.create_task(work), asyncio.create_task(cluster.lost())
    try:
        await asyncio.wait([working, losing], return_when=asyncio.FIRST_COMPLETED)
        if losing.done():
            raise ClusterError(
                f"the Ray cluster of this run is lost: {losing.result()}", "run the same command again, from its start"
            )
        return working.result()
    finally:
        working.cancel()
        losing.cancel()
        await asyncio.gather(working, losing, return_exceptions=True)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _played(run: SimulatedRun, request: ScaleRequest) -> FleetUsage:
    try:
        await run.start()
        await run.warm_up(WARM_UP_SECS)
        return await run.use(request.secs)
    finally:
        await run.stop()
