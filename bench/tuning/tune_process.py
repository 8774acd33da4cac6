"""Tunes one model through the public API and prints the figures that the benchmarks need, as one line of JSON.

``python -m bench.tuning.tune_process MODEL OUT --budget-secs 60``. The clock starts before ``fleet_tune`` is imported.
It includes the import of TVM, torch and Ray, the start of all actors and builders, and the import of the network.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.processes import die_with_parent
from bench.result import BenchError


def timeline(records: Path, start_unix_secs: float) -> dict[str, Any]:
    """Return the figures of the trials in a record database. Times are seconds since ``start_unix_secs``.

    Valid trials have the outcome ok. ``valid_per_minute`` covers the time from the start to the last record, since
    MetaSchedule's clock ends with its last batch. ``valid_per_minute_after_first`` counts the records after the first
    one, over the time from the first record to the last; None if that is zero. Raises :class:`BenchError` if there is
    no record.
    """
    from fleet_tune.base.domain import Outcome
    from fleet_tune.base.records.stores.reader import RecordReader

    with RecordReader(records) as reader:
        stored = [record for record in reader if record.revision == 0]
    if not stored:
        raise BenchError(f"{records} has no record")
    valid = [record for record in stored if record.measurement.outcome is Outcome.OK]
    first, last = (pick(record.unix_secs for record in stored) for pick in (min, max))
    after_first = sum(record.unix_secs > first for record in valid)
    best: dict[str, float] = {}
    for record in valid:
        best[record.task_id] = min(best.get(record.task_id, float("inf")), record.measurement.cost_secs)
    return {
        "trials": len(stored),
        "valid": len(valid),
        "valid_per_minute": 60 * len(valid) / (last - start_unix_secs),
        "valid_per_minute_after_first": 60 * after_first / (last - first) if last > first else None,
        "first_record_secs": first - start_unix_secs,
        "last_record_secs": last - start_unix_secs,
        "build_secs": sum(record.measurement.build_secs for record in stored),
        "measure_secs": sum(record.measurement.measure_secs for record in stored),
        "tasks": len({record.task_id for record in stored}),
        "best_secs": best,
    }


def curve(out: Path, first_record_secs: float) -> list[dict[str, float]]:
    """Return the curve of the estimated latency of a run's only network. Each point has ``secs`` since the start of the
    process, ``trials`` so far, ``device_secs``, the device seconds of these trials, and ``latency`` in seconds. First
    choices of the analyzer that are measured after the tuning are left out, since they do not belong to the method.

    Raises :class:`BenchError` if there is no estimate because a task has no valid trial.
    """
    from fleet_tune.base.records.stores.reader import RecordReader
    from fleet_tune.report.run_history import read_history

    with RecordReader(out / "records.db") as reader:
        stored = [record for record in reader if record.revision == 0]
    measured = [record.measurement.measure_secs for record in stored if record.run_id == stored[0].run_id]
    by_trials = list(itertools.accumulate(measured, initial=0.0))
    (every,) = read_history(out).curves.values()
    points = [point for point in every if point.trials <= len(measured)]
    if not points:
        raise BenchError("a task has no valid trial: give more --trials, or more seconds")
    return [
        {
            "secs": first_record_secs + point.secs,
            "trials": point.trials,
            "device_secs": by_trials[point.trials],
            "latency": point.network_secs,
        }
        for point in points
    ]


def measuring_secs(device_time: Mapping[str, Mapping[str, float]], elapsed_secs: float) -> float:
    """Return an upper bound of the seconds in which a run's only device measured: its measuring share during the search
    times the duration of the whole run. Duels and probes count too, although they belong to no trial."""
    return elapsed_secs * sum(shares.get("measure", 0.0) for shares in device_time.values())


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--budget-secs", type=float, required=True)
@click.option("--trials", type=int, help="End after so many trials.")
@click.option("--seed", type=int, default=0)
@click.option("--method", default="fleet", show_default=True)
@click.option("--fleet", type=click.Path(path_type=Path), help="Fleet file; else this machine's CPU.")
@click.option("--precision", help="Precision that the network is converted to; else it stays as it is.")
@click.option("--max-error", type=float, help="Largest error of the precision auto.")
@click.option("--shapes", help="Bounds of its dynamic dimensions.")
@click.option("--shapes-weights", help="Weights of their extents.")
@click.option("--no-pretrained", is_flag=True, help="Begin without the bundled cost model.")
@click.option("--curve", "with_curve", is_flag=True, help="Add the curve of the estimated latency.")
def main(
    model: str,
    out: Path,
    budget_secs: float,
    trials: int | None,
    seed: int,
    method: str,
    fleet: Path | None,
    precision: str | None,
    max_error: float | None,
    shapes: str | None,
    shapes_weights: str | None,
    no_pretrained: bool,
    with_curve: bool,
) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    start_unix_secs = time.time()
    import fleet_tune

    options: dict[str, Any] = {"seed": seed, "method": method, "fleet": fleet, "trials": trials}
    options |= {"precision": precision, "max_error": max_error, "pretrained": not no_pretrained}
    options |= {"shapes": shapes, "shapes_weights": shapes_weights}
    result = fleet_tune.tune(model, out=out, time_budget_secs=budget_secs, **options)
    if not result.networks:
        raise BenchError(f"tuning {model} for {budget_secs:.0f} s ended without a compiled network")
    network = result.networks[0]
    # A run without new trials took all results from a store.
    figures: dict[str, Any] = {"trials": 0}
    if result.new_trials:
        figures = timeline(out / "records.db", start_unix_secs)
    if with_curve:
        if not result.new_trials:
            raise BenchError("a run without new trials has no curve: tune into a new folder")
        figures["curve"] = curve(out, figures["first_record_secs"])
    figures |= {
        "method": method,
        "elapsed_secs": time.time() - start_unix_secs,
        "device_secs": measuring_secs(result.device_time, result.elapsed_secs),
        "outcomes": {str(outcome): count for outcome, count in result.outcomes.items()},
        "folder": str(network.folder),
        "tuned_secs": network.tuned_secs,
        "untuned_secs": network.untuned_secs,
        "framework_secs": network.framework_secs,
        "max_rel_error": network.max_rel_error,
        "mean_rel_error": network.mean_rel_error,
        "store": None if result.store is None else dataclasses.asdict(result.store),
        "task_results": [
            {"name": task.name, "weight": task.weight, "trials": task.trials, "gflops": task.gflops}
            for task in result.tasks
        ],
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
