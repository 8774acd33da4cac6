"""One search of the real runtime on recorded devices: ``python -m bench.replay.runtime_process --dataset FILE`` prints
one line of JSON with the trials after which the search arrived.

Scheduler, searchers, learner and recorder are those of a tuning run. Builders and devices return recorded results, and
sleep for a given time before that. So candidates are in flight while models are trained and others are proposed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from functools import partial
from pathlib import Path

import click
import numpy as np

from actors.clusters.cluster import connected
from actors.run_hosts import RunHosts
from actors.session_plan import SessionPlan
from actors.simulation.slow import SlowBuilder, opened_slowly
from actors.tuning_session import TuningSession
from bench.datasets import read
from bench.models.laboratory import method_named
from bench.replay.replay_runs import TOLERANCE
from bench.runs.chaos import CANDIDATE_SECS
from bench.runs.chaos_run import BUILD_SECS, BUILDERS
from fleet_tune.base.config.fleet_file import BuildConfig, DeviceConfig, FleetConfig
from fleet_tune.base.domain import Limits
from fleet_tune.base.search_task import SearchTask


async def arrival(dataset: Path, method: str, devices: int, seed: int, out: Path) -> int:
    """Return the trials, in the order of their records, until the weighted sum of the tasks' best costs is within
    :data:`TOLERANCE` of the least possible sum (see :func:`bench.replay.replay_runs.run_network`).

    ``out``: existing folder for the records. Raises SystemExit if the sum never is.
    """
    data = read(dataset)
    entries = tuple(SearchTask(each.task, each.sketches, each.abstraction, each.decisions) for each in data)
    weights = {each.task.id: each.task.weight for each in data}
    goal_secs = (1 + TOLERANCE) * sum(each.task.weight * each.best_secs for each in data)
    bests = dict.fromkeys(weights, np.inf)
    config = FleetConfig(
        devices=tuple(DeviceConfig(name=f"device-{at}", connect=f"recorded:{dataset}") for at in range(devices)),
        build=BuildConfig(workers=BUILDERS),
    )
    trials = 0
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(connected(None))
        hosts = await RunHosts.start(
            cluster,
            config,
            "run",
            open_device=partial(opened_slowly, CANDIDATE_SECS),
            make_worker=partial(SlowBuilder, BUILD_SECS, dataset),
        )
        stack.push_async_callback(hosts.close)
        plan = SessionPlan("run", method_named(method), seed, entries, Limits(trials=sum(len(each) for each in data)))
        session = await TuningSession.start(hosts, plan, out / "records.db", {"network": "replay"})
        stack.push_async_callback(session.close)
        session.begin()
        for entry in entries:
            await session.start_task(entry)
        async for record in session.records():
            if record is None or record.revision:
                continue
            trials += 1
            # This is the cost in the dataset: a recorded device repeats the recorded micro-batches.
            bests[record.task_id] = min(bests[record.task_id], record.measurement.cost_secs)
            if sum(weights[name] * secs for name, secs in bests.items()) <= goal_secs:
                return trials
    raise SystemExit(f"{method} measured all {trials} candidates and did not find the best")


@click.command()
@click.option("--dataset", type=click.Path(path_type=Path), required=True)
@click.option("--method", default="fleet")
@click.option("--devices", type=int, default=1)
@click.option("--seed", type=int, default=0)
def main(dataset: Path, method: str, devices: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        print(json.dumps({"trials": asyncio.run(arrival(dataset, method, devices, seed, Path(folder)))}))


if __name__ == "__main__":
    main()
