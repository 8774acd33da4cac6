"""Measures each candidate of one task in three ways, one after the other: see :mod:`bench.devices.measure_cost`.

``python -m bench.devices.measure_cost_process DATASET FOLDER TASK --candidates N --build`` compiles the candidates into
the folder. Without ``--build`` it measures them through a device server of its own, as a tuning run does, and prints
one JSON object.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from actors.processes.duels import run_shoot_out
from bench.datasets import labels, pick, read
from bench.machine import cores
from bench.processes import die_with_parent
from bench.result import BenchError
from devices.builds.builder import BuildWorker
from devices.client.session import RpcSession
from devices.client.workbench import Workbench
from devices.device_factory import STOP_DECISION
from devices.protocol import Artifact, BuildRequest, MeasureRequest, TensorSpec
from devices.server.server import DeviceServer
from devices.timing.evaluator import Evaluation, EvaluationRequest, confirmed, decode_evaluation
from fleet_tune.base.domain import Incumbent, Measurement, Outcome, StopRule
from fleet_tune.base.task_data import TaskData
from policies.measuring.adaptive_stopping import confirmation, following
from policies.measuring.duel import run_rule
from policies.measuring.shootout import CostEstimate, finalists

FIXED_RUNS = 500
# If 500 runs of a candidate take longer, only as many runs are made as fit. Its device seconds are then computed from
# the mean of these runs, for 501 runs: TVM's evaluator begins with one run that it does not count.
FIXED_SECS = 1.0
# Share of the candidates that are chosen among the fastest, and the share of all that counts as the fastest.
_GOOD_SHARE, _FASTEST = 0.25, 0.05
_CONNECT_SECS = 30.0


def choose_rows(cost_secs: Sequence[float], count: int, seed: int = 0) -> list[int]:
    """Return the rows of ``count`` candidates in the order in which they are measured: a quarter of them drawn from the
    fastest 5 %, the others drawn from the rest.

    Raises :class:`BenchError` if too few candidates run.
    """
    rng = np.random.default_rng(seed)
    order = [int(row) for row in np.argsort(cost_secs, kind="stable") if math.isfinite(cost_secs[int(row)])]
    fastest = max(1, round(_FASTEST * len(order)))
    good = min(fastest, round(_GOOD_SHARE * count))
    if len(order) - fastest < count - good:
        raise BenchError(f"{len(order)} candidates run, not {count}")
    rows = [*rng.choice(order[:fastest], good, False), *rng.choice(order[fastest:], count - good, False)]
    return [int(row) for row in rng.permutation(rows)]


def build(data: TaskData, rows: Sequence[int], folder: Path) -> None:
    """Compile those candidates at ``rows`` that ``folder`` lacks. The file ``built`` marks a complete folder.

    Raises :class:`BenchError` if a candidate cannot be built.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with BuildWorker() as worker:
        for row in rows:
            if (folder / f"{row}.json").is_file():
                continue
            built = worker.build(BuildRequest(data.task, data.candidate(row)))
            if not isinstance(built, Artifact):
                raise BenchError(f"candidate {row} of {data.task.workload.name}: {built.detail}")
            (folder / f"{row}.so").write_bytes(built.library)
            specs = {name: [asdict(spec) for spec in getattr(built, name)] for name in ("args", "original_args")}
            about = {**specs, "outputs": built.outputs, "packed": built.packed, "build_secs": built.build_secs}
            (folder / f"{row}.json").write_text(json.dumps(about))
    (folder / "built").touch()


def load(data: TaskData, row: int, folder: Path) -> Artifact:
    """Return the artifact of the candidate at ``row``, which :func:`build` compiled."""
    about = json.loads((folder / f"{row}.json").read_text())
    return Artifact(
        task_id=data.task.id,
        candidate=data.candidate(row),
        library=(folder / f"{row}.so").read_bytes(),
        args=tuple(TensorSpec(tuple(spec["shape"]), spec["dtype"], spec["holds"]) for spec in about["args"]),
        original_args=tuple(
            TensorSpec(tuple(spec["shape"]), spec["dtype"], spec["holds"]) for spec in about["original_args"]
        ),
        outputs=tuple(about["outputs"]),
        packed=tuple(about["packed"]),
        trace="",
        build_secs=about["build_secs"],
    )


class Loaded:
    """A candidate on the device, and the ways to measure it. The figures of each way have its ``device_secs``."""

    def __init__(self, bench: Workbench, artifact: Artifact) -> None:
        self._bench = bench
        self._artifact = artifact
        self._module = bench.load(artifact.library)
        self.place()

    def place(self) -> None:
        """Place the tensors at other addresses, as the device does for a confirmation and for each run of a duel."""
        self._arguments = self._bench.place_anew(self._artifact, self._module, False)

    def evaluation(self, rule: StopRule, incumbent_secs: float) -> Evaluation:
        """Measure with the adaptive evaluator, which runs on the device server beside the kernel."""
        evaluate = self._bench.session.function("fleet_tune.evaluate")
        text = EvaluationRequest(rule, incumbent_secs, self._bench.kind).to_json()
        return decode_evaluation(evaluate(self._module, "main", text, *self._arguments))

    def ours(self, rule: StopRule, best_secs: float) -> dict[str, Any]:
        confirm = confirmation(rule, best_secs)
        request = MeasureRequest(self._artifact, best_secs, following(rule, best_secs), confirm)
        again = False

        def measure(by: StopRule, incumbent_secs: float) -> Evaluation:
            nonlocal again
            again = True
            self.place()
            return self.evaluation(by, incumbent_secs)

        result = confirmed(self.evaluation, measure, request)
        measurement = Measurement(Outcome.OK, result.run_secs)
        return {
            "cost_secs": measurement.cost_secs,
            "spread": measurement.spread,
            "error": measurement.error,
            "batches": len(result.run_secs),
            "device_secs": result.device_secs,
            "stopped": result.stopped,
            "confirmed": again,
        }

    def metaschedule(self) -> dict[str, Any]:
        """Measure as MetaSchedule's RPCRunner does, with the defaults of its EvaluatorConfig."""
        from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

        config = EvaluatorConfig()
        timed = self._timed(config.number, repeat=config.repeat, min_repeat_ms=config.min_repeat_ms)
        return {**timed, "config": config._asdict()}

    def fixed(self, about_secs: float) -> dict[str, Any]:
        """Measure 500 runs, or as many as fit into ``FIXED_SECS`` if a run takes ``about_secs`` seconds."""
        runs = max(1, min(FIXED_RUNS, math.floor(FIXED_SECS / about_secs)))
        timed = self._timed(runs)
        if runs < FIXED_RUNS:
            timed["device_secs"] = timed["cost_secs"] * (FIXED_RUNS + 1)
        return {**timed, "runs": runs}

    def _timed(self, number: int, **settings: int) -> dict[str, Any]:
        evaluator = self._module.time_evaluator("main", self._bench.device, number=number, **settings)
        began = time.perf_counter()
        results = evaluator(*self._arguments).results
        return {"cost_secs": statistics.fmean(results), "device_secs": time.perf_counter() - began}


def measure(
    bench: Workbench, artifact_of: Callable[[int], Artifact], rows: Sequence[int], rounds: int
) -> dict[str, Any]:
    """Measure all rows in all ways. Return the measurements, the row that each way chooses, and the judged times."""
    rule, best_secs = StopRule(), math.inf
    measured: list[dict[str, Any]] = []
    for at, row in enumerate(rows):
        loaded = Loaded(bench, artifact_of(row))
        # This evaluation also warms the kernel up, so that no way has the disadvantage of being the first.
        about = loaded.evaluation(StopRule(max_batches=1, min_batches=1), math.inf).run_secs[-1]
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "ours": partial(loaded.ours, rule, best_secs),
            "metaschedule": loaded.metaschedule,
            "fixed": partial(loaded.fixed, about),
        }
        names = list(sides)
        names = names[at % 3 :] + names[: at % 3]
        figures = {name: sides[name]() for name in names}
        best_secs = min(best_secs, figures["ours"]["cost_secs"])
        measured.append({"row": row, **figures})
    peers = ("metaschedule", "fixed")
    chosen: dict[str, int] = {side: min(measured, key=_cost_by(side))["row"] for side in peers}
    chosen["ours"], shoot_out_secs = shoot_out(bench, artifact_of, measured, rule)
    judged = judge(bench, artifact_of, to_judge(measured, chosen), rounds)
    return {"rows": measured, "chosen": chosen, "shoot_out_secs": shoot_out_secs, "judged": judged}


def shoot_out(
    bench: Workbench, artifact_of: Callable[[int], Artifact], measured: Sequence[dict[str, Any]], rule: StopRule
) -> tuple[int, float]:
    """Return the row that our measurements choose in the end, and the device seconds of the shoot-out."""
    standings = [CostEstimate(str(each["row"]), each["ours"]["cost_secs"], each["ours"]["error"]) for each in measured]
    rows = [int(row) for row in finalists(standings)]
    if not rows:
        return min(measured, key=_cost_by("ours"))["row"], 0.0
    artifacts = [artifact_of(row) for row in rows]
    track = Track(bench)
    found = run_shoot_out(track.measure, artifacts, Incumbent(), rule)
    assert not isinstance(found, Measurement)
    best = min(found, key=lambda number: found[number].rank_secs)
    return rows[best], track.device_secs


class Track:
    """Measures candidates as a device does, but without checks. ``device_secs``: the sum over all measurements."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self.device_secs = 0.0

    def measure(self, request: MeasureRequest) -> Measurement:
        evaluation = Loaded(self._bench, request.artifact).evaluation(request.rule, math.inf)
        self.device_secs += evaluation.device_secs
        return Measurement(Outcome.OK, evaluation.run_secs, measure_secs=evaluation.device_secs, verified=True)


def _cost_by(side: str) -> Callable[[dict[str, Any]], float]:
    """Return the function that gives the cost of a measured candidate according to ``side``."""
    return lambda each: float(each[side]["cost_secs"])


def to_judge(measured: Sequence[dict[str, Any]], chosen: dict[str, int]) -> list[int]:
    """Return the chosen rows, and all rows that any of the three ways measured within 5 % of its best."""
    rows = set(chosen.values())
    for side in ("ours", "metaschedule", "fixed"):
        best = min(each[side]["cost_secs"] for each in measured)
        rows |= {each["row"] for each in measured if each[side]["cost_secs"] <= 1.05 * best}
    return sorted(rows)


def judge(
    bench: Workbench, artifact_of: Callable[[int], Artifact], rows: Sequence[int], rounds: int
) -> dict[int, list[float]]:
    """Return the seconds of each of ``rows``, one value per round: the median of two micro-batches. The rows are
    measured in turn, each time with the tensors at other addresses."""
    loaded = {row: Loaded(bench, artifact_of(row)) for row in rows}
    rule = run_rule(StopRule())
    samples: dict[int, list[float]] = {row: [] for row in rows}
    for at in range(rounds):
        for row in rows if at % 2 == 0 else rows[::-1]:
            loaded[row].place()
            samples[row].append(statistics.median(loaded[row].evaluation(rule, math.inf).run_secs))
    return samples


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("task")
@click.option("--candidates", type=int, required=True)
@click.option("--rounds", type=int, default=100)
@click.option("--build", "only_build", is_flag=True)
def main(dataset: Path, folder: Path, task: str, candidates: int, rounds: int, only_build: bool) -> None:
    die_with_parent()
    read_data = read(dataset)
    (at,) = pick(labels(read_data), [task])
    data = read_data.tasks[at]
    rows = choose_rows(data.cost_secs.tolist(), candidates)
    if only_build:
        build(data, rows, folder / f"{task}-{candidates}")
        click.echo(json.dumps({"built": len(rows)}))
        return
    with DeviceServer(threads=cores(), decide=STOP_DECISION) as server:
        session = RpcSession(server.host, server.port, timeout_secs=_CONNECT_SECS)
        bench = Workbench(session, "cpu", 1 << 30)
        click.echo(
            json.dumps(measure(bench, lambda row: load(data, row, folder / f"{task}-{candidates}"), rows, rounds))
        )
        session.close()


if __name__ == "__main__":
    main()
