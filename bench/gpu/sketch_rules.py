"""Checks random candidates of each sketch rule: compares the output of each with its task's oracle on the device.

``python -m bench.gpu.sketch_rules MODEL OUT --fleet FILE --per-rule 64`` builds the candidates as a tuning does, and
measures and checks each through a device server. It prints by rule how many are right, wrong, refused (not built),
failed (built, but did not run) and unchecked (:mod:`bench.gpu.verdicts`). ``OUT/chosen.json`` has the candidates. Each
result is written to ``OUT/checked.jsonl`` at once: the same command resumes from there.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import click
import numpy as np

from bench.gpu.kept_lines import KeptLines
from bench.gpu.kernel_tasks import device_class_of
from bench.gpu.verdicts import VERDICTS
from bench.machine import cores
from bench.processes import die_with_parent
from bench.result import BenchError
from devices.builds.builder import BuildWorker
from devices.describing.worker import TASK_SECS
from devices.device_factory import open_device
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.protocol import Artifact, BuildRequest, BuildResult, Device, MeasureRequest
from devices.sketches.spaces import DesignSpace
from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.domain import Candidate, DeviceAbstraction, Measurement, Outcome, StopRule, Task
from fleet_tune.base.precision import Precision
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import feasible
from policies.space.sampling import sample

_DRAWN = 512
"""Candidates that are drawn from a sketch. Those that do not fit the device are dropped."""
_RULE = StopRule(micro_batch_secs=1e-3, min_batches=1, max_batches=1)
_SHOWN = 20


@dataclass(frozen=True)
class Chosen:
    """A candidate to check."""

    rule: str
    task: Task
    candidate: Candidate


class Builder(Protocol):
    """Builds one candidate, or the oracle of a task."""

    def build(self, request: BuildRequest) -> BuildResult:
        """Return the artifact or the failure. A request without a candidate is for the oracle."""


def rule_of(sketch: Sketch) -> str:
    """Return the rule of a sketch. Reductions across the threads of a block count as a separate rule, which TVM does
    not mark."""
    return "loops, reduction across threads" if sketch.rule == "loops" and _across(sketch) else sketch.rule


def _across(sketch: Sketch) -> bool:
    return "threadIdx" in sketch.trace_text


def described(space: DesignSpace) -> list[Sketch]:
    """Return the sketches of a task. As in a search, they are described in order until ``TASK_SECS`` have passed, and
    the rest stay undescribed."""
    began = time.process_time()
    return [
        space.described(at) if time.process_time() - began < TASK_SECS else sketch
        for at, sketch in enumerate(space.undescribed)
    ]


def choose(sketches: Iterable[tuple[Task, Sequence[Sketch]]], device: DeviceAbstraction, per_rule: int) -> list[Chosen]:
    """Return up to ``per_rule`` random candidates of each rule that fit the device, in the order of the tasks.

    The candidates of a rule come from its sketches in turn, so that as many sketches as possible have one. The same
    sketches give the same candidates.
    """
    rows: dict[str, list[list[Chosen]]] = defaultdict(list)
    places: dict[str, int] = {}
    for task, of_task in sketches:
        places[task.id] = len(places)
        for sketch in of_task:
            drawn = _drawn(task, sketch, device, per_rule)
            rows[rule_of(sketch)].append([Chosen(rule_of(sketch), task, candidate) for candidate in drawn])
    chosen = [each for of_rule in rows.values() for each in list(_in_turn(of_rule))[:per_rule]]
    return sorted(chosen, key=lambda each: places[each.task.id])


def keep_chosen(path: Path, per_rule: int, chosen: Sequence[Chosen]) -> None:
    """Write the candidates of a check. A resumed check cannot choose them again: the number of described sketches
    depends on the machine's speed, and another choice of candidates would follow."""
    entries = [
        {
            "rule": each.rule,
            "task": each.task.id,
            "sketch": each.candidate.sketch,
            "sketch_id": each.candidate.sketch_id,
            "decisions": list(each.candidate.decisions),
        }
        for each in chosen
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"per_rule": per_rule, "chosen": entries}).encode() + b"\n")


def read_chosen(path: Path, per_rule: int, tasks: Sequence[Task]) -> list[Chosen]:
    """Return the candidates that :func:`keep_chosen` has written. Raise BenchError if they belong to another check."""
    kept = json.loads(path.read_text())
    of_id = {task.id: task for task in tasks}
    if kept["per_rule"] != per_rule or not {each["task"] for each in kept["chosen"]} <= set(of_id):
        raise BenchError(f"{path} has the candidates of another check: name another folder")
    return [
        Chosen(
            each["rule"],
            of_id[each["task"]],
            Candidate(each["task"], each["sketch"], each["sketch_id"], tuple(each["decisions"])),
        )
        for each in kept["chosen"]
    ]


def _drawn(task: Task, sketch: Sketch, device: DeviceAbstraction, count: int) -> list[Candidate]:
    matrix = sample(sketch, _DRAWN, np.random.default_rng(zlib.crc32(sketch.id.encode())))
    matrix = matrix[feasible(sketch, matrix, device)]
    vectors = dict.fromkeys(tuple(int(value) for value in row) for row in matrix)
    return [Candidate(task.id, sketch.index, sketch.id, vector) for vector in list(vectors)[:count]]


def _in_turn(lists: Sequence[Sequence[Chosen]]) -> Iterator[Chosen]:
    for at in range(max(map(len, lists), default=0)):
        yield from (each[at] for each in lists if at < len(each))


def check(chosen: Sequence[Chosen], builders: Sequence[Builder], device: Device, kept: KeptLines) -> dict[str, Any]:
    """Check the candidates that have no result in ``kept``, and return the :func:`counts` of all. The device measures a
    candidate while ``builders`` build the next ones. Raise BenchError if the device is lost."""
    left = [each for each in chosen if each.candidate.id not in kept.found]
    free: SimpleQueue[Builder] = SimpleQueue()
    for builder in builders:
        free.put(builder)

    def build(task: Task, candidate: Candidate | None) -> BuildResult:
        builder = free.get()
        try:
            return builder.build(BuildRequest(task, candidate))
        finally:
            free.put(builder)

    with ThreadPoolExecutor(len(builders)) as pool:
        oracles: dict[str, Future[BuildResult]] = {}
        building: list[tuple[Chosen, Future[BuildResult]]] = []
        for each in left:
            if each.task.id not in oracles:
                oracles[each.task.id] = pool.submit(build, each.task, None)
            building.append((each, pool.submit(build, each.task, each.candidate)))
        problems: dict[str, str] = {}
        try:
            for each, built in building:
                if each.task.id not in problems:
                    problems[each.task.id] = _add_oracle(device, oracles[each.task.id].result())
                verdict, detail = _verdict(device, built.result(), problems[each.task.id])
                about = {"rule": each.rule, "task": each.task.workload.name, "sketch": each.candidate.sketch}
                about |= {"decisions": list(each.candidate.decisions), "verdict": verdict, "detail": detail}
                kept.add(each.candidate.id, about)
        finally:
            for _, future in building:
                future.cancel()
    return counts([kept.found[each.candidate.id] for each in chosen])


def _add_oracle(device: Device, built: BuildResult) -> str:
    """Give the device a task's oracle and run it. Return why it cannot check candidates; empty if it can."""
    if not isinstance(built, Artifact):
        return f"its oracle was not built: {built.detail}"
    device.add_oracle(built)
    return device.run_oracle(built.task_id)


def _verdict(device: Device, built: BuildResult, problem: str) -> tuple[str, str]:
    """Return the verdict on a candidate, and its reason. ``problem``: why candidates of its task cannot be checked."""
    if not isinstance(built, Artifact):
        return "refused", built.detail
    if problem:
        return "unchecked", problem
    measured: Measurement = device.measure(MeasureRequest(built, float("inf"), _RULE))
    if measured.outcome in (Outcome.DEVICE_LOST, Outcome.KILLED):  # says nothing about the candidate
        raise BenchError(f"the device is lost, the same command goes on: {measured.detail}")
    if measured.outcome is Outcome.WRONG_OUTPUT:
        return "wrong", measured.detail
    if measured.outcome is Outcome.OK:
        return ("right", "") if measured.verified else ("unchecked", "its oracle takes too long")
    return "failed", f"{measured.outcome.value}: {measured.detail}"


def counts(checked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of each verdict by rule, the first wrong or failed candidates (``faults``), and the most
    frequent reasons of refusals with their counts (``refusals``)."""
    rules: dict[str, Counter[str]] = defaultdict(Counter)
    for each in checked:
        rules[each["rule"]][each["verdict"]] += 1
    faults = [each for each in checked if each["verdict"] in ("wrong", "failed")]
    refusals = Counter(str(each["detail"])[:120] for each in checked if each["verdict"] == "refused")
    return {
        "rules": {rule: {verdict: of_rule[verdict] for verdict in VERDICTS} for rule, of_rule in sorted(rules.items())},
        "faults": faults[:_SHOWN],
        "refusals": dict(refusals.most_common(_SHOWN)),
    }


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--fleet", type=click.Path(path_type=Path), required=True, help="Fleet file with one device.")
@click.option("--precision", type=click.Choice([each.value for each in Precision]))
@click.option("--per-rule", type=click.IntRange(min=1), default=64, show_default=True)
def main(model: str, out: Path, fleet: Path, precision: str | None, per_rule: int) -> None:
    """Print the counts as one line of JSON, the last line of output."""
    die_with_parent()
    device_class = device_class_of(fleet)
    (config,) = load_fleet(fleet).devices
    network = load_network(model).in_precision(Precision(precision) if precision else None)
    tasks = import_network(network, device_class).tasks
    with ExitStack() as stack:
        device = stack.enter_context(open_device(config))
        file = out / "chosen.json"
        if not file.exists():
            abstraction = device.fingerprint().abstraction
            chosen = choose(((task, described(DesignSpace(task))) for task in tasks), abstraction, per_rule)
            if not chosen:
                raise BenchError(f"{model}: no sketch has a candidate that fits the device")
            keep_chosen(file, per_rule, chosen)
        chosen = read_chosen(file, per_rule, tasks)
        builders = [stack.enter_context(BuildWorker(workers=cores())) for _ in range(cores())]
        click.echo(json.dumps(check(chosen, builders, device, KeptLines(out / "checked.jsonl"))))


if __name__ == "__main__":
    main()
