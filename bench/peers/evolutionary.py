"""The time that MetaSchedule's evolutionary search takes to propose a batch, in its own process on one core.

``python -m bench.peers.evolutionary --dataset FILE --cpu 0`` prints one JSON line when it is ready. It answers each
line ``{"task": 0, "records": 64, "round": 0}`` with the seconds that it took to propose one batch of 64 candidates
after so many records of the dataset. The first line for a task and a number of records starts a search, with
``round`` as its seed. Everything is MetaSchedule's: its default rules and post-processors, its search (population 512,
4 generations), its XGBModel and its MemoryDatabase, with default settings, on one thread.
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
from tvm.s_tir import meta_schedule as ms

from bench.datasets import read
from bench.peers.candidates import Scheduler
from bench.processes import die_with_parent
from bench.result import BenchError
from devices.sketches.intrinsics import load_intrinsics
from devices.sketches.spaces import OWN_RULES, parse_module
from devices.targets import parse_target
from fleet_tune.base.task_data import TaskData

BATCH = 64
_NO_LIMIT = 1 << 30


class PeerSearch:
    """MetaSchedule's search of one task after ``records`` measured candidates of MetaSchedule's own sketches.

    As in tuning, the records are in its database, from which populations start, and its cost model is trained on them,
    one batch after the other. ``train_secs``: seconds of the last of these updates (features and training).
    ``scored_by_model``: True if the cost model has seen enough records to score candidates.
    """

    def __init__(self, data: TaskData, records: int, seed: int) -> None:
        load_intrinsics(data.task.device_class.target)
        target = parse_target(data.task.device_class.target)
        module = parse_module(data.task.workload.module)
        self.context = ms.TuneContext(
            module,
            target=target,
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            num_threads=1,
            rand_state=seed + 1,
        )
        database = ms.database.MemoryDatabase()
        model = ms.cost_model.XGBModel(num_tuning_cores=1)
        spaces = self.context.generate_design_space()
        self.context.pre_tuning(_NO_LIMIT, BATCH, spaces, database, model)
        workload = database.commit_workload(module)
        candidates, results = _measured(data, records, seed)
        for candidate, result in zip(candidates, results, strict=True):
            database.commit_tuning_record(
                ms.database.TuningRecord(candidate.sch.trace, workload, result.run_secs, target, candidate.args_info)
            )
        self.train_secs = 0.0
        for start in range(0, len(candidates), BATCH):
            batch = slice(start, start + BATCH)
            began = time.perf_counter()
            model.update(self.context, candidates[batch], results[batch])
            self.train_secs = time.perf_counter() - began
        self.scored_by_model = model.booster is not None and model.data_size >= model.num_warmup_samples

    def propose(self) -> dict[str, Any]:
        """Propose one batch and return the wall and CPU seconds that this took. The records stay as they are.

        Raises BenchError if MetaSchedule proposes nothing.
        """
        began, cpu_began = time.perf_counter(), time.process_time()
        candidates = self.context.generate_measure_candidates()
        secs, cpu_secs = time.perf_counter() - began, time.process_time() - cpu_began
        if not candidates:
            raise BenchError("MetaSchedule proposed nothing")
        # The next call would fail without results. So the batch counts as measured, but nothing is learned from it.
        results = [ms.runner.RunnerResult(None, "not measured")] * len(candidates)
        self.context.notify_runner_results(candidates, results)
        return {
            "secs": secs,
            "cpu_secs": cpu_secs,
            "candidates": len(candidates),
            "train_secs": self.train_secs,
            "scored_by_model": self.scored_by_model,
        }


def _measured(data: TaskData, count: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Return ``count`` random records of MetaSchedule's sketches, as MetaSchedule's candidates and results."""
    scheduler = Scheduler(data)
    theirs = {sketch.id for sketch in data.sketches if sketch.rule not in OWN_RULES}
    rows = [row for row in np.flatnonzero(data.ok).tolist() if data.candidate(row).sketch_id in theirs]
    if len(rows) < count:
        raise BenchError(f"{data.task.workload.name}: {len(rows)} candidates of MetaSchedule's sketches, not {count}")
    candidates: list[Any] = []
    results: list[Any] = []
    for row in np.random.default_rng(seed).permutation(rows):
        if len(candidates) == count:
            break
        candidate = scheduler.candidate(int(row))
        if candidate is None:
            continue
        candidates.append(candidate)
        results.append(ms.runner.RunnerResult([float(data.cost_secs[row])], None))
    if len(candidates) < count:
        raise BenchError(f"{data.task.workload.name}: only {len(candidates)} of {count} candidates could be scheduled")
    return candidates, results


@click.command()
@click.option("--dataset", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--cpu", type=int, required=True, help="The only CPU that this process may use.")
def main(dataset: Path, cpu: int) -> None:
    """Answer each line of standard input with the time of one proposed batch."""
    die_with_parent()
    os.sched_setaffinity(0, {cpu})
    measured = read(dataset)
    searches: dict[tuple[int, int], PeerSearch] = {}
    print(json.dumps({"tasks": len(measured)}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        key = (ask["task"], ask["records"])
        if key not in searches:
            searches[key] = PeerSearch(measured[ask["task"]], ask["records"], ask["round"])
        print(json.dumps(searches[key].propose()), flush=True)


if __name__ == "__main__":
    main()
