"""Alternate runs of a simulated fleet on the real runtime, streaming and in rounds:
``python -m bench.runs.overlap_process --devices 8 --seconds 60`` prints one line of JSON."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import click

from actors.clusters.cluster import Cluster, connected
from actors.simulation.rounds import SimulatedRounds
from actors.simulation.run import SimulatedFleet, SimulatedRun
from bench.runs.overlap import WARM_UP_SECS

_FAULTS = 0.02


async def streaming(cluster: Cluster, fleet: SimulatedFleet, at: int, secs: float) -> float:
    """Return the trials a second of the runtime as it is."""
    run = SimulatedRun(cluster, fleet, _folder(cluster, f"streaming-{at}"))
    try:
        await run.start()
        await run.warm_up(WARM_UP_SECS)
        return (await run.use(secs)).trials_a_second
    finally:
        await run.stop()


async def in_rounds(cluster: Cluster, fleet: SimulatedFleet, at: int, secs: float, size: int) -> float:
    """Return the trials a second of the parts of the runtime in rounds of ``size`` candidates."""
    run = SimulatedRounds(cluster, fleet, _folder(cluster, f"rounds-{at}"), size)
    try:
        await run.start()
        await run.warm_up(WARM_UP_SECS)
        return await run.trials_a_second(secs)
    finally:
        await run.stop()


def _folder(cluster: Cluster, name: str) -> Any:
    folder = cluster.folder / name
    folder.mkdir()
    return folder


@click.command()
@click.option("--devices", type=int, required=True)
@click.option("--candidate", "candidate_secs", type=float, default=0.5)
@click.option("--build", "build_secs", type=float, default=0.6)
@click.option("--round", "size", type=int, default=64)
@click.option("--seconds", "secs", type=float, default=60.0)
@click.option("--repeats", type=int, default=1)
def main(devices: int, candidate_secs: float, build_secs: float, size: int, secs: float, repeats: int) -> None:
    fleet = SimulatedFleet(devices, candidate_secs, build_secs, _FAULTS)
    rates: dict[str, list[float]] = {"streaming": [], "rounds": []}
    began = time.monotonic()
    with connected(None) as cluster:
        for at in range(repeats):
            rates["streaming"].append(asyncio.run(streaming(cluster, fleet, at, secs)))
            rates["rounds"].append(asyncio.run(in_rounds(cluster, fleet, at, secs, size)))
    about = {"devices": devices, "builders": fleet.builders, "demand": fleet.demand}
    print(json.dumps({**rates, **about, "secs": time.monotonic() - began}))


if __name__ == "__main__":
    main()
