"""How busy the devices are as the fleet grows: in virtual time on the run state alone, and on the real runtime.

Each fleet has enough builders for its devices, and the number of searchers that a run would have
(:func:`policies.runs.stages.pace.searchers`). The durations of proposals, builds and candidates are given, and are the
same for all fleets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.runs.virtual_fleet import Costs, VirtualFleet
from bench.tables import markdown
from fleet_tune.base.results import bound_by
from policies.runs.stages.pace import searchers

ASKED_BUSY = 0.95
ASKED_AT = 1000
_WARM_UP_SECS = 15.0
# Approximate number of simulated trials of each fleet: the largest fleets are simulated for the shortest time.
_TRIALS = 40_000
_LONGEST_SECS, _SHORTEST_SECS = 300.0, 10.0
_SPARE_BUILDERS = 1.25
_REAL_SECS = 300.0
_SHOWN_ROLES = ("scheduler", "recorder")
_CLASSES = (("board", 1.6), ("server", 1.0), ("card", 0.6))
"""Classes of devices, each with the time of a candidate as a multiple of ``--candidate``."""


def run(
    devices: Sequence[int], candidate_secs: float, build_secs: float, equal: bool, real: Sequence[int] = ()
) -> BenchResult:
    rows = [play(count, candidate_secs, build_secs, equal) for count in devices]
    in_ray = [_in_ray(count, candidate_secs, build_secs) for count in real]
    chosen = min(rows, key=lambda row: abs(row["devices"] - ASKED_AT))
    details = {
        "rows": rows,
        "real": in_ray,
        "candidate_secs": candidate_secs,
        "costs": {name: getattr(Costs(build_secs=build_secs), name) for name in Costs.__dataclass_fields__},
        "classes": {"device": 1.0} if equal else dict(_CLASSES),
        "asked_busy": ASKED_BUSY,
    }
    return BenchResult("scaling", chosen["busy"], None, None, f"of {chosen['devices']} devices' time", details)


def _in_ray(count: int, candidate_secs: float, build_secs: float) -> dict[str, Any]:
    """Return the figures of ``count`` simulated devices on the real runtime, in real time."""
    args = ["-m", "fleet_tune", "scale", "--devices", str(count), "--json"]
    times = ["--candidate", str(candidate_secs), "--build", str(build_secs)]
    row: dict[str, Any] = run_json([*args, *times], env=bench_env(cores()), timeout_secs=_REAL_SECS)["rows"][0]
    return row


def play(count: int, candidate_secs: float, build_secs: float, equal: bool) -> dict[str, Any]:
    """Play a fleet of ``count`` devices in virtual time, and return its figures. Rates and busy shares are those after
    the warm-up.

    ``candidate_secs`` and ``build_secs``: median seconds. ``equal``: all devices are of one class.
    """
    classes = (("device", 1.0),) if equal else _CLASSES
    devices = {
        f"{name}-{at}": (name, candidate_secs * factor)
        for at in range(count)
        for name, factor in (classes[at % len(classes)],)
    }
    demand = sum(1 / secs for _, secs in devices.values())
    costs = Costs(build_secs=build_secs)
    fleet = VirtualFleet(
        devices, max(2, round(demand * build_secs * _SPARE_BUILDERS)), searchers=searchers(count), costs=costs
    )
    span = min(_LONGEST_SECS, max(_SHORTEST_SECS, _TRIALS / demand))
    fleet.play(_WARM_UP_SECS)
    before = len(fleet.committed_at), fleet.cpu_secs
    fleet.play(_WARM_UP_SECS + span)
    progress = fleet.state.progress(fleet.now)
    records = len(fleet.committed_at) - before[0]
    return {
        "devices": count,
        "builders": fleet.builders,
        "searchers": fleet.searchers,
        "trials_a_second": records / span,
        "busy": fleet.utilisation(_WARM_UP_SECS),
        "busy_by_class": {name: fleet.utilisation(_WARM_UP_SECS, name) for name, _ in classes[:count]},
        "bound": {name: bound_by(shares) for name, shares in progress.device_time.items()},
        "under_way_a_device": sum(task.in_flight for task in fleet.state.tasks.values()) / count,
        "batch": fleet.measured.total() / max(1, fleet.batches.total()),
        "cpu_secs_a_record": (fleet.cpu_secs - before[1]) / max(1, records),
        "virtual_secs": span,
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = [
        (
            f"{row['devices']:,}",
            f"{row['trials_a_second']:,.1f}",
            f"{row['busy']:.1%}",
            ", ".join(f"{name} {share:.1%}" for name, share in row["busy_by_class"].items()),
            ", ".join(sorted(set(row["bound"].values()))),
            f"{row['builders']:,}",
            str(row["searchers"]),
            f"{row['batch']:.1f}",
            f"{row['under_way_a_device']:.1f}",
            f"{row['cpu_secs_a_record'] * 1e6:.0f}",
        )
        for row in details["rows"]
    ]
    header = (
        "devices",
        "trials/s",
        "busy",
        "by class",
        "bound by",
        "builders",
        "searchers",
        "a batch",
        "under way a device",
        "CPU µs a record",
    )
    tables = [markdown(header, rows)]
    if details["real"]:
        tables.append(_real_table(details["real"]))
    return "\n\n".join(tables)


def _real_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = (
        "devices, in real time",
        "trials/s",
        "busy",
        "bound by",
        "CPU ms a record",
        "of that scheduler",
        "recorder",
    )
    figures = []
    for row in rows:
        shown = (row["cpu_secs_a_record"], *(row["roles"][role]["cpu_secs_a_record"] for role in _SHOWN_ROLES))
        figures.append(
            (
                str(row["devices"]),
                f"{row['trials_a_second']:.1f}",
                f"{row['busy']:.1%}",
                ", ".join(sorted(set(row["bound"].values()))),
                *(f"{secs * 1e3:.2f}" for secs in shown),
            )
        )
    return markdown(header, figures)


BENCHMARK = Benchmark(
    name="scaling",
    help="How busy 1 to 10,000 devices are, in virtual time on the state of a run, and some on the real runtime.",
    options=(
        click.Option(
            ["--devices"],
            multiple=True,
            type=click.IntRange(min=1),
            default=(1, 8, 64, 256, 1000, 10_000),
            show_default=True,
            help="Counts of devices.",
        ),
        options.seconds("--candidate", "candidate_secs", 0.5, "A candidate takes on a device, in the median."),
        options.seconds("--build", "build_secs", 0.6, "A build takes, in the median."),
        click.Option(
            ["--real"],
            multiple=True,
            type=click.IntRange(min=1),
            default=(1, 4, 16, 64, 256),
            show_default=True,
            help="Counts of simulated devices on the real runtime, for half a minute each.",
        ),
        click.Option(["--equal"], is_flag=True, help="Devices of one class, instead of three."),
    ),
    short=("--devices", "1", "--devices", "64", "--devices", "1000", "--real", "16"),
    run=run,
    table=table,
)
