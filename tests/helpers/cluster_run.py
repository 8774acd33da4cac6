"""A run of recorded devices on a cluster: ``python -m tests.helpers.cluster_run ADDRESS FOLDER`` tunes until the
cluster is lost, and prints a line of JSON for each step: how many records are acknowledged, what people are told, and
in the end why the cluster is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.clusters.cluster import Cluster, connected
from actors.session_plan import SessionPlan
from actors.tuning_session import TuningSession
from fleet_tune.config.fleet_file import BuildConfig, DeviceConfig, FleetConfig
from fleet_tune.domain import Limits
from fleet_tune.records.dataset import load
from fleet_tune.search_task import SearchTask
from tests.helpers.slow_recorded import opened_slowly

DATA = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"
DEVICES = 3


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


@contextlib.contextmanager
def nodes_of(session: TuningSession) -> Iterator[None]:
    """Say on which nodes the hosts of the session are."""
    yield
    import ray

    hosts = [*session._builders, *session._devices.values()]
    asked = [each.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for each in hosts]
    say(nodes=ray.get(asked, timeout=120))


async def tune(cluster: Cluster, folder: Path) -> None:
    """Until the cluster is lost."""
    config = FleetConfig(
        devices=tuple(DeviceConfig(name=f"device-{at}", connect=f"recorded:{DATA}") for at in range(DEVICES)),
        build=BuildConfig(workers=4),
    )
    tasks = tuple(SearchTask(each.task, each.sketches, each.abstraction, each.decisions) for each in load(DATA))
    session = TuningSession(cluster, config, "run", open_device=opened_slowly)
    losing = asyncio.ensure_future(cluster.lost())
    try:
        with nodes_of(session):
            prints = await session.start_hosts()
        classes = {name: each.device_class.name for name, each in prints.items()}
        plan = SessionPlan("run", "random", 0, tasks, Limits())
        await session.start_tuning(plan, folder / "records.db", {"network": "toy"}, classes)
        session.begin()
        for entry in tasks:
            await session.join(entry)
        telling = asyncio.ensure_future(tell(session))
        say(lost=await losing)
        telling.cancel()
    finally:
        losing.cancel()
        await session.close()


async def tell(session: TuningSession) -> None:
    """Say what becomes of the run."""
    said: set[str] = set()
    count = 0
    async for record in session.records():
        count += record is not None
        if record is not None and count % 10:
            continue
        with contextlib.suppress(Exception):
            for notice in (await session.progress()).notices:
                if notice.text not in said:
                    said.add(notice.text)
                    say(notice=notice.text)
        say(records=count)


def main() -> None:
    address, folder = sys.argv[1:]
    with connected(address) as cluster:
        asyncio.run(tune(cluster, Path(folder)))


if __name__ == "__main__":
    main()
