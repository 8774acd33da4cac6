"""The command of a run with injected failures: ``python -m bench.runs.chaos_run --trials 2000 --out FOLDER`` prints a
line for each record that the run yields, and ``over`` at the end of the run. Given again, it resumes the run.

Simulated devices and builders sleep for a given time and answer from the datasets of ``bench/data``. Everything else is
a session as the command line starts it: its heartbeats notice lost processes and replace them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import click

import fleet_tune
from actors.clusters.cluster import connected
from actors.run_hosts import RunHosts
from actors.session_plan import SessionPlan
from actors.simulation.slow import SlowBuilder, opened_slowly
from actors.tuning_session import TuningSession
from bench.datasets import OTHER_CLASS, dataset_path
from bench.runs.chaos import CANDIDATE_SECS
from fleet_tune.base.config.fleet_file import BuildConfig, DeviceConfig, FleetConfig
from fleet_tune.base.domain import Limits, Record
from fleet_tune.base.errors import ClusterError, UserError
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.search_task import SearchTask
from policies.search.methods.fleet import FLEET

BUILD_SECS = 0.03
BUILDERS = 2
OVER, RECORD = "over", "record "
"""The last line, and the prefix of a record's line: libraries print other lines."""


async def simulated(
    trials: int, devices: int, candidate_secs: float, seed: int, out: Path, address: str | None
) -> AsyncIterator[Record]:
    """Yield the new records of a run with simulated devices. A run that was begun in ``out`` is resumed.

    ``candidate_secs``: seconds of a candidate on a device. ``address``: address of the Ray cluster; None for a cluster
    of the run's own. Raises ClusterError if the cluster is lost.
    """
    paths = (dataset_path(None), OTHER_CLASS)
    config = FleetConfig(
        devices=tuple(
            DeviceConfig(name=f"device-{at}", connect=f"recorded:{paths[at % len(paths)]}") for at in range(devices)
        ),
        build=BuildConfig(workers=BUILDERS),
    )
    used = paths[: min(devices, len(paths))]
    entries = tuple(
        SearchTask(each.task, each.sketches, each.abstraction, each.decisions) for path in used for each in load(path)
    )
    run_id = uuid.uuid4().hex[:12]
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(connected(address))
        hosts = await RunHosts.start(
            cluster,
            config,
            run_id,
            open_device=partial(opened_slowly, candidate_secs),
            make_worker=partial(SlowBuilder, BUILD_SECS, *used),
        )
        losing = asyncio.ensure_future(cluster.lost())
        stack.callback(losing.cancel)
        stack.push_async_callback(hosts.close)
        plan = SessionPlan(run_id, FLEET, seed, entries, Limits(trials=trials))
        before = _last_seq(out)
        session = await TuningSession.start(hosts, plan, out / "records.db", {"network": "bench"})
        stack.push_async_callback(session.close)
        session.begin()
        for entry in entries:
            await session.start_task(entry)
        async for record in _while_it_lasts(session.records(before), losing):
            if record is not None:
                yield record


async def _while_it_lasts(
    records: AsyncIterator[Record | None], losing: asyncio.Future[str]
) -> AsyncIterator[Record | None]:
    """Yield the records. Raises ClusterError as soon as the cluster is lost, as a run of the command line does."""
    while True:
        coming = asyncio.ensure_future(anext(records))
        either: list[asyncio.Future[Any]] = [coming, losing]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if losing.done():
            coming.cancel()
            raise ClusterError(f"the Ray cluster of this run is lost: {losing.result()}", "start it again: it resumes")
        try:
            yield coming.result()
        except StopAsyncIteration:
            return


def _last_seq(out: Path) -> int:
    """Return the sequence number of the last record that an earlier command stored. 0 if there is none."""
    try:
        with RecordReader(out / "records.db") as reader:
            return reader.last_seq()
    except UserError:  # there is no store yet
        return 0


def real(network: str, trials: int, seed: int, out: Path, address: str | None) -> AsyncIterator[Record]:
    """Yield the records of a run with this machine's CPU and real builds."""
    return fleet_tune.stream(network, out=out, trials=trials, seed=seed, address=address)


async def tell(records: AsyncIterator[Record]) -> None:
    """Print a line for each record as it comes, and a last line at the end."""
    async for record in records:
        print(f"{RECORD}{record.uid}", flush=True)
    print(OVER, flush=True)


@click.command()
@click.option("--trials", type=int, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--devices", type=int, default=4)
@click.option("--candidate", "candidate_secs", type=float, default=CANDIDATE_SECS)
@click.option("--seed", type=int, default=0)
@click.option("--network", default=None, help="With this machine's CPU, instead of simulated devices.")
@click.option("--address", default=None)
def main(
    trials: int, out: Path, devices: int, candidate_secs: float, seed: int, network: str | None, address: str | None
) -> None:
    if network is None:
        records = simulated(trials, devices, candidate_secs, seed, out, address)
    else:
        records = real(network, trials, seed, out, address)
    try:
        asyncio.run(tell(records))
    except UserError as error:
        print(f"error: {error.problem}", file=sys.stderr, flush=True)
        os._exit(1)  # as the command line does: a normal exit of Ray would wait for stopped processes


if __name__ == "__main__":
    main()
