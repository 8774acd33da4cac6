"""A run of recorded devices on a cluster: ``python -m tests.helpers.cluster_run ADDRESS FOLDER`` tunes until the
cluster is lost, and prints a line of JSON for each step: how many records are acknowledged, what people are told, and
in the end why the cluster is lost. The fleet is that of ``FOLDER/fleet.toml``, where there is one; its "local" devices
answer from the dataset too, and note what they see (:mod:`tests.helpers.watching`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from actors.clusters.cluster import Cluster, connected
from actors.host_actors import OpenDevice
from actors.run_hosts import RunHosts
from actors.session_plan import SessionPlan
from actors.simulation.slow import opened_slowly
from actors.tuning_session import TuningSession
from fleet_tune.base.config.fleet_file import BuildConfig, DeviceConfig, FleetConfig, load_fleet
from fleet_tune.base.domain import Limits
from fleet_tune.base.errors import ClusterError
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.search_task import SearchTask
from policies.search.methods.random import RANDOM
from tests.helpers.watching import opened_watching

DATA = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"
DEVICES = 3
CANDIDATE_SECS = 0.02


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


FOLLOW_SECS = 1.0


def say_nodes_of(hosts: RunHosts) -> None:
    """Say on which nodes the hosts of a run are."""
    import ray

    def nodes(actors: Iterable[Any]) -> list[str]:
        asked = [each.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for each in actors]
        found: list[str] = ray.get(asked, timeout=120)
        return found

    devices = hosts.actors.devices
    driven = dict(zip(devices, nodes(devices.values()), strict=True))
    say(head=hosts.cluster.node_id, builders=nodes(hosts.actors.builders.values()), devices=driven)


async def tune(cluster: Cluster, folder: Path) -> None:
    """Until the cluster is lost."""
    written = folder / "fleet.toml"
    config = FleetConfig(
        devices=tuple(DeviceConfig(name=f"device-{at}", connect=f"recorded:{DATA}") for at in range(DEVICES)),
        build=BuildConfig(workers=4),
    )
    open_device: OpenDevice = partial(opened_slowly, CANDIDATE_SECS)
    if written.exists():
        config, open_device = load_fleet(written), partial(opened_watching, folder, DATA)
    tasks = tuple(SearchTask(each.task, each.sketches, each.abstraction, each.decisions) for each in load(DATA))
    hosts = await RunHosts.start(cluster, config, "run", open_device=open_device)
    losing = asyncio.ensure_future(cluster.lost())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(hosts.close)
        stack.callback(losing.cancel)
        say_nodes_of(hosts)
        plan = SessionPlan("run", RANDOM, 0, tasks, Limits())
        session = await TuningSession.start(hosts, plan, folder / "records.db", {"network": "toy"})
        stack.push_async_callback(session.close)
        session.begin()
        for entry in tasks:
            await session.start_task(entry)
        beside = [asyncio.ensure_future(each) for each in (tell(session), follow_nodes(session))]
        say(lost=await losing)
        for each in beside:
            each.cancel()


async def follow_nodes(session: TuningSession) -> None:
    """As a run does whose fleet has a file."""
    while True:
        await asyncio.sleep(FOLLOW_SECS)
        with contextlib.suppress(ClusterError):
            await session.follow_nodes()


async def tell(session: TuningSession) -> None:
    """Say what becomes of the run."""
    said: set[str] = set()
    count = 0
    measured: Counter[str] = Counter()
    async for record in session.records():
        count += record is not None
        if record is not None:
            measured[record.device_id] += 1
        if record is not None and count % 10:
            continue
        with contextlib.suppress(Exception):
            for notice in (await session.progress()).notices:
                if notice.text not in said:
                    said.add(notice.text)
                    say(notice=notice.text)
        say(records=count, measured=measured)


def main() -> None:
    address, folder = sys.argv[1:]
    with connected(address) as cluster:
        asyncio.run(tune(cluster, Path(folder)))


if __name__ == "__main__":
    main()
