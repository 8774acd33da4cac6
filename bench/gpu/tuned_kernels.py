"""Our kernels: ``python -m bench.gpu.tuned_kernels MODEL OUT --fleet FILE --budget-secs 240``.

Tunes kernels side by side (:mod:`bench.networks.gpu_kernels`) as one network, and prints the best time of each as one
line of JSON. Figures come from the records, so that they count where the network around the kernels cannot be compiled,
and the same command goes on from them where it was cut.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.gpu.kernel_tasks import device_class_of, kernel_tasks
from bench.processes import die_with_parent
from bench.result import BenchError
from fleet_tune.base.domain import Outcome, Task
from fleet_tune.base.records.stores.reader import RecordReader


def tune(model: str, out: Path, fleet: Path, budget_secs: float) -> dict[str, Any]:
    """Return the figures of :func:`figures`, the seconds of the whole command, and why no network was compiled, if
    there is none. Raises BenchError where nothing was measured."""
    import fleet_tune

    tasks = kernel_tasks(model, device_class_of(fleet))
    began, reason = time.time(), ""
    try:
        result = fleet_tune.tune(model, out=out, time_budget_secs=budget_secs, fleet=fleet)
        reason = "; ".join(network.problem for network in result.networks if network.problem)
    except Exception as error:  # whatever stops the compilation: the records count
        reason = f"{type(error).__name__}: {error}"[-500:]
    records = out / "records.db"
    if not records.exists():
        raise BenchError(f"nothing was measured: {reason or 'no records'}")
    return {**figures(records, tasks, began), "elapsed_secs": time.time() - began, "reason": reason}


def figures(store: Path, tasks: Mapping[str, Task], began_unix_secs: float) -> dict[str, Any]:
    """Return the best verified time of each kernel (``best_secs``, None where there is none) with its operations and
    trials, and the trials since ``began_unix_secs``, the start of the last run: all, those that ran, and these a
    minute."""
    with RecordReader(store) as reader:
        of_hash = {task.workload.hash: task.id for task in reader.tasks()}
        kernels = {}
        for name, task in tasks.items():
            task_id = of_hash.get(task.workload.hash)
            best = None if task_id is None else reader.best(task_id)
            found = {} if task_id is None else {"trials": len(reader.records_of(task_id))}
            secs = None if best is None else best.measurement.cost_secs
            kernels[name] = {"best_secs": secs, "flop": task.workload.flop, **found}
        records_now = [each for each in reader if each.revision == 0 and each.unix_secs >= began_unix_secs]
    valid = [each.unix_secs for each in records_now if each.measurement.outcome is Outcome.OK]
    rate = 60 * len(valid) / (max(valid) - began_unix_secs) if valid else None
    return {"kernels": kernels, "trials": len(records_now), "valid": len(valid), "valid_per_minute": rate}


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--fleet", type=click.Path(path_type=Path), required=True, help="Fleet file with one device.")
@click.option("--budget-secs", type=float, required=True)
def main(model: str, out: Path, fleet: Path, budget_secs: float) -> None:
    """Prints the figures as one line of JSON, the last line of output."""
    die_with_parent()
    click.echo(json.dumps(tune(model, out, fleet, budget_secs)))


if __name__ == "__main__":
    main()
