"""Our search, in a process of its own on one core, and the time of each batch that it proposes.

``python -m bench.search.search_process --dataset FILE --cpu 0`` prints one JSON line when it is ready. It answers each
line ``{"task": 0, "records": 64, "round": 0}`` with the seconds that it took to propose one batch of 64 candidates of
the whole space, after it observed that many records of the dataset and trained a model on them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.datasets import observations, read
from bench.models.laboratory import method_named
from bench.processes import die_with_parent
from bench.result import BenchError
from fleet_tune.base.task_data import TaskData
from policies.search.search import TaskSearch

BATCH = 64


def propose_once(data: TaskData, records: int, seed: int, method: str) -> dict[str, Any]:
    """Return the seconds of one batch, as in a tuning run: the search has proposed a batch before and then observed the
    outcomes of the last batch. Raises :class:`BenchError` if there are too few records or no proposals.

    ``observe_secs``: seconds to observe these outcomes; ``train_secs``: seconds to train the model, which another
    process does in a tuning run.
    """
    if len(data) < records:
        raise BenchError(f"{data.task.workload.name}: {len(data)} candidates, not {records}")
    rng = np.random.default_rng(seed)
    search = TaskSearch(data.sketches, data.task.workload.flop, data.abstraction, method_named(method), rng)
    rows = rng.permutation(len(data))[:records]
    search.observe(observations(data, rows[:-BATCH]))
    search.release(search.propose(BATCH))
    last = observations(data, rows[-BATCH:])
    began = time.perf_counter()
    search.observe(last)
    observe_secs = time.perf_counter() - began
    began = time.perf_counter()
    search.use_model(search.train(seed))
    train_secs = time.perf_counter() - began
    began, cpu_began = time.perf_counter(), time.process_time()
    proposals = search.propose(BATCH)
    secs, cpu_secs = time.perf_counter() - began, time.process_time() - cpu_began
    if not proposals:
        raise BenchError("our search proposed nothing")
    return {
        "secs": secs,
        "cpu_secs": cpu_secs,
        "candidates": len(proposals),
        "observe_secs": observe_secs,
        "train_secs": train_secs,
    }


@click.command()
@click.option("--dataset", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--cpu", type=int, required=True, help="The only CPU that this process may use.")
@click.option("--method", default="fleet", show_default=True)
def main(dataset: Path, cpu: int, method: str) -> None:
    """Answer each line of standard input with the time of one proposed batch."""
    die_with_parent()
    os.sched_setaffinity(0, {cpu})
    measured = read(dataset)
    print(json.dumps({"tasks": len(measured)}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps(propose_once(measured[ask["task"]], ask["records"], ask["round"], method)), flush=True)


if __name__ == "__main__":
    main()
