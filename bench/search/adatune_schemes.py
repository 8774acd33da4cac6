"""AdaTune's figures 10 and 11 by replay: its parts added one after the other, in trials and in seconds.

The schemes are the paper's: AutoTVM (XGBoost, simulated annealing, the deterministic evaluator) in AdaTune's rounds of
32; the random forest with expected improvement instead of XGBoost; contextual simulated annealing instead of a fixed
epsilon; the adaptive evaluator instead of the deterministic one. A last scheme measures by our own rule instead.

Measurements are simulated from the dataset. The real loop of the evaluator
(:func:`devices.timing.evaluator.evaluate`) runs on a simulated clock; the time of each micro-batch is drawn at random
from the recorded micro-batches of the candidate. A search learns from the median of these times. A run has arrived when
the recorded cost of the search's best candidate is within 5% of the dataset's best. The seconds are those of the
measurements by the simulated clock, those of the builds as recorded, and the processor time of the search.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.replay import replay_pool
from bench.replay.replay_pool import Call, played
from bench.replay.replay_runs import TOLERANCE, RecordedTask, quartiles
from bench.replay.run_cache import Kind, RunCache, cache_code
from bench.result import BenchError, BenchResult
from bench.tables import markdown, median_and_quartiles
from devices.timing.evaluator import Evaluation, evaluate
from fleet_tune.base.domain import StopRule
from policies.measuring.adaptive_stopping import confirmation, decide, following
from policies.measuring.stop_rules import DETERMINISTIC, RACED
from policies.search.exploration import FixedEpsilon
from policies.search.methods import Method, method_named

PARTS = ("measuring", "building", "searching")
BASELINE = "XGBoost + SA + DE"


def schemes() -> dict[str, Method]:
    """Return the schemes by the paper's names: RFEI is a random forest with expected improvement, SA and CSA are
    simulated annealing and contextual simulated annealing, DE and AE are the deterministic and the adaptive
    evaluator."""
    adatune = method_named("adatune")
    return {
        BASELINE: replace(method_named("autotvm"), batch=adatune.batch),
        "RFEI + SA + DE": replace(adatune, exploration=FixedEpsilon(0.05), stop_rule=DETERMINISTIC),
        "RFEI + CSA + DE": replace(adatune, stop_rule=DETERMINISTIC),
        "RFEI + CSA + AE": adatune,
        "RFEI + CSA, our evaluator": replace(adatune, stop_rule=RACED),
    }


@dataclass(frozen=True)
class Timed:
    """One run on one task until it has arrived: trials, and seconds of each part."""

    trials: int
    measuring: float
    building: float
    searching: float

    @property
    def secs(self) -> float:
        return self.measuring + self.building + self.searching


TIMED: Kind[Timed] = Kind("timed", asdict, lambda line: Timed(line["trials"], *(float(line[part]) for part in PARTS)))


class RecordedTimer:
    """Simulates the timing of a recorded candidate, with a simulated clock that starts at 0 seconds.

    ``batches``: the recorded seconds per run of the candidate's micro-batches.
    """

    def __init__(self, batches: Sequence[float], rng: np.random.Generator) -> None:
        self._batches = batches
        self._rng = rng
        self._now = 0.0

    def clock(self) -> float:
        return self._now

    def run_batch(self, runs: int) -> float:
        """Return the seconds per run of a random recorded micro-batch, and advance the clock by ``runs`` such runs."""
        secs = float(self._rng.choice(self._batches))
        self._now += runs * secs
        return secs


def measured(
    batches: Sequence[float], rule: StopRule, incumbent_secs: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Measure a candidate with these recorded micro-batches by ``rule``, and once more if its cost needs a confirmation
    (:func:`policies.measuring.adaptive_stopping.confirmation`). Return its cost and the seconds of the measurement."""

    def by(chosen: StopRule, beside_secs: float) -> Evaluation:
        timer = RecordedTimer(batches, rng)
        return evaluate(timer.run_batch, chosen, beside_secs, decide, timer.clock)

    found = by(following(rule, incumbent_secs), incumbent_secs)
    cost_secs, secs = statistics.median(found.run_secs), found.device_secs
    confirm = confirmation(rule, incumbent_secs)
    if confirm is not None and cost_secs < confirm.below_secs:
        again = by(confirm.rule, math.inf)
        cost_secs, secs = statistics.median(again.run_secs), secs + again.device_secs
    return cost_secs, secs


def run_scheme(task: RecordedTask, method: Method, seed: int) -> Timed:
    """Run ``method`` on one task until the run has arrived. Raises :class:`BenchError` if it never does."""
    data, search = task.data, task.search(method, seed)
    rng = np.random.default_rng([seed, 1011, *data.task.id.encode()])
    goal_secs, incumbent_secs = data.best_secs * (1 + TOLERANCE), math.inf
    trials, measuring, building, searching = 0, 0.0, 0.0, 0.0
    while not search.exhausted:
        began = time.process_time()
        proposals = search.propose(method.batch)
        searching += time.process_time() - began
        outcomes = []
        for proposal in proposals:
            row = task.row(proposal)
            recorded, batches = task.outcome(proposal), data.batches(row)
            cost_secs, secs = (
                measured(batches, method.stop_rule, incumbent_secs, rng)
                if batches
                else (math.inf, float(data.measure_secs[row]))
            )
            trials, measuring, building = trials + 1, measuring + secs, building + recorded.build_secs
            if cost_secs < incumbent_secs:
                incumbent_secs = cost_secs
                if recorded.cost_secs <= goal_secs:
                    return Timed(trials, measuring, building, searching)
            outcomes.append(replace(recorded, cost_secs=cost_secs, measure_secs=secs))
        began = time.process_time()
        search.observe(outcomes)
        search.use_model(search.train(seed))
        searching += time.process_time() - began
    raise BenchError(f"{method.name} measured all {trials} candidates and did not find the best")


def _one(method: Method, at: int, seed: int) -> Timed:
    return run_scheme(replay_pool.tasks[at], method, seed)


def run(dataset: Path, tasks: Sequence[str], seeds: int, jobs: int, parts: Path | None = None) -> BenchResult:
    """Return the lines of :func:`figures`. ``ours`` and ``peer``: median seconds of AdaTune and of AutoTVM; ``parts``:
    a file that caches runs."""
    names = labels(read(dataset))
    chosen = pick(names, tasks)
    began = time.perf_counter()
    calls = {
        (name, at, seed): Call(method, names[at], seed, _one, (method, at, seed))
        for seed in range(seeds)
        for name, method in schemes().items()
        for at in chosen
    }
    runs = played(dataset, jobs, RunCache(parts, dataset, TIMED, cache_code(parts, __name__)), calls)
    lines = figures({name: [[runs[name, at, seed] for at in chosen] for seed in range(seeds)] for name in schemes()})
    details = {
        "tasks": [names[at] for at in chosen],
        "seeds": seeds,
        "lines": lines,
        "dataset": dataset.name,
        "elapsed_secs": time.perf_counter() - began,
    }
    ours, peer = (lines[name]["secs"]["median"] for name in ("RFEI + CSA + AE", BASELINE))
    return BenchResult("adatune-schemes", ours, peer, peer / ours, "s", details)


def figures(runs: Mapping[str, Sequence[Sequence[Timed]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each scheme (``runs[scheme][seed][task]``) the quartiles over the seeds of the sums over the tasks:
    of the trials, of the seconds of each part, and of all seconds."""
    return {
        name: {
            what: quartiles([float(sum(getattr(run, what) for run in seed)) for seed in by_seed])
            for what in ("trials", *PARTS, "secs")
        }
        for name, by_seed in runs.items()
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]

    rows = [
        (
            name,
            median_and_quartiles(line["trials"]),
            *(f"{line[part]['median']:.0f}" for part in PARTS),
            median_and_quartiles(line["secs"]),
        )
        for name, line in details["lines"].items()
    ]
    what = f"to within 5%, sum of {len(details['tasks'])} tasks, {details['seeds']} seeds"
    return markdown((what, "trials (figure 10)", *(f"s of {part}" for part in PARTS), "s in all (figure 11)"), rows)


BENCHMARK = Benchmark(
    name="adatune-schemes",
    help="AdaTune's figures 10 and 11 by replay: its model, its epsilon and its evaluator, in trials and in seconds.",
    options=(
        options.dataset(),
        options.tasks("all tasks"),
        options.count("--seeds", 5),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--seeds", "1"),
    run=run,
    table=table,
)
