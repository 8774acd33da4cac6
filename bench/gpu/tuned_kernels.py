"""Tunes kernels with our tuner: ``python -m bench.gpu.tuned_kernels MODEL OUT --fleet FILE --budget-secs 240``.

Tunes independent kernels (:mod:`bench.networks.gpu_kernels`) as one network, and prints the best time of each as one
line of JSON. The figures come from the records, so they are valid even if the whole network cannot be compiled. If the
command was interrupted, the same command resumes from the records for the remaining time (``OUT/runs.jsonl``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.gpu.kernel_tasks import device_class_of, kernel_tasks
from bench.gpu.tuning_runs import TuningRuns
from bench.processes import die_with_parent
from bench.result import BenchError
from fleet_tune.base.domain import Outcome, Task
from fleet_tune.base.records.stores.reader import RecordReader


def tune(model: str, out: Path, fleet: Path, budget_secs: float) -> dict[str, Any]:
    """Tune until all runs in ``out``, including those of earlier calls, have tuned for ``budget_secs``. Return the
    figures of :func:`figures`, the seconds of all runs (``elapsed_secs``), and why the last run compiled no network
    (``reason``, empty if it did).

    Raise BenchError if nothing was measured, or if ``out`` has records of runs that are not in ``runs.jsonl``.
    """
    import fleet_tune

    records, runs = out / "records.db", TuningRuns(out / "runs.jsonl")
    if records.exists() and not runs.begins:
        raise BenchError(f"{out} has records of runs whose time is not known: name another folder")
    tasks = kernel_tasks(model, device_class_of(fleet))
    left_secs = budget_secs - runs.tuning_secs
    if left_secs > 0:
        runs.begin()
        try:
            result = fleet_tune.tune(model, out=out, time_budget_secs=left_secs, fleet=fleet, on_progress=runs.note)
            runs.end("; ".join(network.problem for network in result.networks if network.problem))
        except Exception as error:  # any failure of the compilation: the records are still valid
            runs.end(f"{type(error).__name__}: {error}"[-500:])
    if not records.exists():
        raise BenchError(f"nothing was measured: {runs.reason or 'no records'}")
    return {**figures(records, tasks, runs.begins), "elapsed_secs": runs.elapsed_secs, "reason": runs.reason}


def figures(store: Path, tasks: Mapping[str, Task], begins: Sequence[float]) -> dict[str, Any]:
    """Return figures of the kernels, and of the trials of all runs.

    ``kernels`` has for each kernel the best verified time (``best_secs``, None without one), its operations (``flop``)
    and the number of its trials. ``trials`` and ``valid`` are the numbers of all trials and of those that ran.
    ``valid_per_minute`` counts the time of each run from its start to its last valid trial. ``begins``: starts of the
    runs, in seconds since 1970, oldest first.
    """
    with RecordReader(store) as reader:
        of_hash = {task.workload.hash: task.id for task in reader.tasks()}
        kernels = {}
        for name, task in tasks.items():
            task_id = of_hash.get(task.workload.hash)
            best = None if task_id is None else reader.best(task_id)
            found = {} if task_id is None else {"trials": len(reader.records_of(task_id))}
            secs = None if best is None else best.measurement.cost_secs
            kernels[name] = {"best_secs": secs, "flop": task.workload.flop, **found}
        records = [each for each in reader if each.revision == 0]
    valid = [each.unix_secs for each in records if each.measurement.outcome is Outcome.OK]
    spent_secs = 0.0
    for began, ended in zip(begins, [*begins[1:], float("inf")], strict=True):
        spent_secs += max((at - began for at in valid if began <= at < ended), default=0.0)
    rate = 60 * len(valid) / spent_secs if spent_secs else None
    return {"kernels": kernels, "trials": len(records), "valid": len(valid), "valid_per_minute": rate}


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--fleet", type=click.Path(path_type=Path), required=True, help="Fleet file with one device.")
@click.option("--budget-secs", type=float, required=True)
def main(model: str, out: Path, fleet: Path, budget_secs: float) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    click.echo(json.dumps(tune(model, out, fleet, budget_secs)))


if __name__ == "__main__":
    main()
