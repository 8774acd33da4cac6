"""The duels of one task for :mod:`bench.devices.false_improvement`, in a process of its own, which loads TVM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from actors.processes.duels import duel
from bench.datasets import labels, pick, read
from bench.devices.measure_cost_process import Track, build, choose_rows, load
from bench.machine import cores
from bench.processes import die_with_parent
from devices.client.session import RpcSession
from devices.client.workbench import Workbench
from devices.device_factory import STOP_DECISION
from devices.server.server import DeviceServer
from devices.targets import resolve_target
from fleet_tune.base.domain import Incumbent, StopRule
from fleet_tune.base.task_data import TaskData

_CONNECT_SECS = 60.0


def on_this_machine(data: TaskData) -> TaskData:
    """Return the same candidates with the CPU of this machine as the target."""
    device_class = replace(data.task.device_class, target=resolve_target("native", cores()))
    return replace(data, task=replace(data.task, device_class=device_class))


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("task")
@click.option("--candidates", type=int, required=True)
@click.option("--duels", type=int, required=True)
def main(dataset: Path, folder: Path, task: str, candidates: int, duels: int) -> None:
    die_with_parent()
    read_data = read(dataset)
    (at,) = pick(labels(read_data), [task])
    data = on_this_machine(read_data.tasks[at])
    rows = choose_rows(data.cost_secs.tolist(), candidates)
    libraries = folder / f"{task}-{candidates}"
    build(data, rows, libraries)
    found: list[dict[str, Any]] = []
    with DeviceServer(threads=cores(), decide=STOP_DECISION) as server:
        session = RpcSession(server.host, server.port, timeout_secs=_CONNECT_SECS)
        track = Track(Workbench(session, "cpu", 1 << 30))
        for row in rows:
            artifact = load(data, row, libraries)
            for _ in range(duels):
                met = duel(track.measure, artifact, Incumbent(str(row), 1.0, 1.0), artifact, StopRule(), verified=True)
                comparison = met.measured.comparison
                assert comparison is not None, "these kernels are quick: the time of a duel is long enough"
                found.append(
                    {
                        "row": row,
                        "faster": comparison.faster,
                        "ratio": comparison.ratio,
                        "error": comparison.error,
                        "runs": comparison.runs,
                        "device_secs": met.measured.measure_secs,
                    }
                )
        session.close()
    click.echo(json.dumps({"duels": found}))


if __name__ == "__main__":
    main()
