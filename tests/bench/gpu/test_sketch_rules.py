"""The check of sketch rules: which candidates, what is counted, and that nothing is checked twice."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.kept_lines import KeptLines
from bench.gpu.kernel_tasks import kernel_tasks
from bench.gpu.sketch_rules import Chosen, check, choose, described, keep_chosen, read_chosen
from bench.machine import bench_env
from bench.processes import run_json
from bench.result import BenchError
from devices.builds.builder import BuildWorker
from devices.cuda.compiler import find_compiler
from devices.protocol import Artifact, BuildRequest, BuildResult, Device, MeasureRequest
from devices.sketches.spaces import DesignSpace
from fleet_tune.base.domain import DeviceAbstraction, Measurement, Outcome, Task
from fleet_tune.base.sketch import Choice, Sketch
from tests.helpers.gpu_target import H200
from tests.helpers.records import failed, ok
from tests.helpers.tasks import make_candidate, make_task

TINY = "bench/networks/gpu_kernels.py:tiny"
GPU = DeviceAbstraction(
    "cuda", 132, 32, 65536, 48 << 10, 60 << 20, 0, 5.2e13, 3.3e12, 1024, tensor_cores=4, tensor_flops=1e15
)
TASKS = make_task("one"), make_task("two")


def sketch(rule: str, text: str, choices: int = 100) -> Sketch:
    return Sketch(0, rule, text, (Choice("n", tuple(range(choices))),), (), "not described")


def artifact(task: Task, candidate: Any) -> Artifact:
    return Artifact(task.id, candidate, b"", (), (), (), (), "", 0.0)


class FakeBuilder:
    """Builds all but the candidates with an odd decision."""

    def __init__(self) -> None:
        self.asked: list[BuildRequest] = []

    def build(self, request: BuildRequest) -> BuildResult:
        self.asked.append(request)
        if request.candidate is not None and request.candidate.decisions[0] % 2:
            return failed(detail="too much shared memory")
        return artifact(request.task, request.candidate)


class FakeDevice:
    """Gives each candidate the outcome of its decision."""

    def __init__(self, outcomes: dict[int, Measurement], problem: str = "") -> None:
        self._outcomes = outcomes
        self._problem = problem
        self.oracles: list[str] = []
        self.measured: list[MeasureRequest] = []

    def add_oracle(self, artifact: Artifact) -> None:
        self.oracles.append(artifact.task_id)

    def run_oracle(self, _task_id: str) -> str:
        return self._problem

    def measure(self, request: MeasureRequest) -> Measurement:
        self.measured.append(request)
        assert request.artifact.candidate is not None
        return self._outcomes.get(request.artifact.candidate.decisions[0], ok(1e-5))


def checked(chosen: Sequence[Chosen], device: Any, kept: KeptLines, builder: Any = None) -> dict[str, Any]:
    return check(chosen, [builder or FakeBuilder(), FakeBuilder()], device, kept)


def chosen(*decisions: int, rule: str = "loops", task: Task = TASKS[0]) -> list[Chosen]:
    return [Chosen(rule, task, make_candidate(task, decision)) for decision in decisions]


def test_each_rule_has_as_many_candidates_of_all_of_its_sketches() -> None:
    first = [sketch("loops", "a"), sketch("loops", "b"), sketch("loops", "threadIdx.x"), sketch("tensorize", "c", 3)]
    found = choose([(TASKS[0], first), (TASKS[1], [sketch("loops", "d")])], GPU, 8)
    of_rule = {rule: [each for each in found if each.rule == rule] for rule in {each.rule for each in found}}
    counted = {rule: len(each) for rule, each in of_rule.items()}
    assert counted == {"loops": 8, "loops, reduction across threads": 8, "tensorize": 3}
    by_sketch = [each.candidate.sketch_id for each in of_rule["loops"]]
    assert sorted(map(by_sketch.count, set(by_sketch))) == [2, 3, 3]
    assert len({each.candidate.id for each in found}) == len(found)
    assert [each.task for each in found] == sorted((each.task for each in found), key=TASKS.index)
    assert found == choose([(TASKS[0], first), (TASKS[1], [sketch("loops", "d")])], GPU, 8)


def test_verdicts_are_counted_by_rule(tmp_path: Path) -> None:
    wrong, broken = failed(Outcome.WRONG_OUTPUT, "3 values differ"), failed(Outcome.RUN_ERROR, "illegal address")
    device = FakeDevice({2: wrong, 4: broken, 6: ok(1e-5, verified=False)})
    some = [*chosen(0, 1, 2, 3), *chosen(4, 6, 8, rule="tensorize", task=TASKS[1])]
    found = checked(some, device, KeptLines(tmp_path / "kept"))
    assert found["rules"] == {
        "loops": {"right": 1, "wrong": 1, "refused": 2, "failed": 0, "unchecked": 0},
        "tensorize": {"right": 1, "wrong": 0, "refused": 0, "failed": 1, "unchecked": 1},
    }
    assert [fault["detail"] for fault in found["faults"]] == ["3 values differ", "run_error: illegal address"]
    assert found["refusals"] == {"too much shared memory": 2}
    assert device.oracles == [TASKS[0].id, TASKS[1].id]
    assert all(request.incumbent_secs == float("inf") for request in device.measured)  # each is compared


def test_what_was_checked_is_not_checked_again(tmp_path: Path) -> None:
    kept = KeptLines(tmp_path / "kept")
    checked(chosen(0, 2), FakeDevice({}), kept)
    builder, device = FakeBuilder(), FakeDevice({})
    found = check(chosen(0, 2, 4), [builder], device, KeptLines(tmp_path / "kept"))  # type: ignore[arg-type]
    assert found["rules"]["loops"]["right"] == 3
    assert [request.artifact.candidate.decisions for request in device.measured] == [(4,)]  # type: ignore[union-attr]
    assert len(builder.asked) == 2  # the oracle and the one


def test_the_same_candidates_are_checked_in_the_next_process(tmp_path: Path) -> None:
    some = [*chosen(0, 3), *chosen(4, rule="tensorize", task=TASKS[1])]
    file = tmp_path / "out" / "chosen.json"
    keep_chosen(file, 2, some)
    assert read_chosen(file, 2, TASKS) == some
    assert [each.candidate.id for each in read_chosen(file, 2, TASKS)] == [each.candidate.id for each in some]
    with pytest.raises(BenchError, match="the candidates of another check: name another folder"):
        read_chosen(file, 3, TASKS)
    with pytest.raises(BenchError, match="the candidates of another check: name another folder"):
        read_chosen(file, 2, TASKS[:1])


def test_an_oracle_that_does_not_run_leaves_its_candidates_unchecked(tmp_path: Path) -> None:
    device = FakeDevice({}, problem="it takes too long")
    found = checked(chosen(0, 1), device, KeptLines(tmp_path / "kept"))
    assert found["rules"]["loops"] == {"right": 0, "wrong": 0, "refused": 1, "failed": 0, "unchecked": 1}
    assert not device.measured


def test_the_loss_of_the_device_is_no_verdict(tmp_path: Path) -> None:
    kept = KeptLines(tmp_path / "kept")
    with pytest.raises(BenchError, match="the device is lost, the same command goes on: fell off the bus"):
        checked(chosen(0, 2, 4), FakeDevice({2: failed(Outcome.DEVICE_LOST, "fell off the bus")}), kept)
    assert len(kept.found) == 1


def test_candidates_for_a_gpu_are_built(tmp_path: Path) -> None:
    """All but the device: sketches, candidates and kernels of a GPU."""
    if find_compiler() is None:
        assert os.environ.get("CI") != "true"
        pytest.skip("this machine has no CUDA compiler")
    tasks = kernel_tasks(f"{TINY}_fp16", H200).values()
    found = choose([(task, described(DesignSpace(task))) for task in tasks], GPU, 2)
    assert {each.rule for each in found} == {"tensorize"}

    class Unopened(FakeDevice):
        def measure(self, request: MeasureRequest) -> Measurement:
            assert request.artifact.library.startswith(b"\x7fELF")
            return ok(1e-5)

    device: Device = Unopened({})  # type: ignore[assignment]
    with BuildWorker() as worker:
        counted = check(found, [worker], device, KeptLines(tmp_path / "kept"))
    verdicts = counted["rules"]["tensorize"]
    assert verdicts["right"] >= 1, counted
    assert sum(verdicts.values()) == 2


def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[[device]]\nname = "cpu"\n')
    args = ["-m", "bench.gpu.sketch_rules", TINY, str(tmp_path / "out"), "--fleet", str(fleet), "--per-rule", "2"]
    found = run_json(args, env=bench_env(1), timeout_secs=240)
    kinds = [verdicts for verdicts in found["rules"].values() if verdicts["right"]]
    assert kinds, found
    assert not found["faults"]
    lines = (tmp_path / "out" / "checked.jsonl").read_text().splitlines()
    assert len(lines) == sum(sum(verdicts.values()) for verdicts in found["rules"].values())
    assert json.loads(lines[0])["value"]["verdict"] in ("right", "refused")
