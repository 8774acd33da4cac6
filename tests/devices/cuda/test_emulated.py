"""Candidates for a GPU compute what their programs do: their CUDA source runs on this CPU (tests/helpers/cuda_on_cpu).

``make gpu-emulated`` takes many of each sketch; with ``GPU_LOG=FILE`` it goes on where it was cut.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from devices.builds.checks.check_plan import plan_of
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.builds.passes.vector_math import use_vector_math
from devices.builds.worker import PASS_OPTIONS
from devices.client.output_check import OracleOutputs, all_runs, disagreement
from devices.networks.frontend import Network, load_network
from devices.networks.tasks.lowering import import_network
from devices.sketches.spaces import DesignSpace, Scheduled, ScheduleError, parse_module, unscheduled
from devices.targets import parse_target, resolve_target
from devices.timing.arguments import Array, poison
from devices.timing.checked_inputs import make_checked_inputs
from fleet_tune.base.domain import Candidate, DeviceAbstraction, DeviceClass, Task
from fleet_tune.base.precision import Precision
from policies.analysis.analyzer import feasible
from policies.space.sampling import sample
from tests.helpers.cuda_on_cpu import CpuProgram, EmulationError, launches, workspace_bytes
from tests.helpers.cuda_on_cpu.nvcc import precompile
from tests.helpers.emulated_log import REFUSED, RIGHT, EmulatedLog
from tests.helpers.gpu_target import H200
from tests.helpers.quantised_modules import QUANTISED
from tests.helpers.scheduled import run
from tests.helpers.small_operators import OPERATORS

pytestmark = pytest.mark.timeout(300)  # so that it begins early: others wait for what begins last

CANDIDATES = int(os.environ.get("GPU_CANDIDATES", "1"))
"""Of each sketch."""
LOG = EmulatedLog(Path(os.environ["GPU_LOG"]) if os.environ.get("GPU_LOG") else None)
SHORT = ("linear_of_odd_extents", "depthwise_convolution", "softmax", "layer_norm", "transpose")
SHORT_PRODUCTS = ("linear", "product_in_batches", "strided_convolution_of_one_point")
_TRIES = 8
CPU = DeviceClass("cpu", resolve_target("native", 1))
PRODUCTS = ("linear", "product", "convolution", "strided", "dilated", "grouped", "residual", "attention")
NARROWED = [
    (
        QUANTISED["convolution"],
        None,
        "conv2d_add_requantize 8x8x32",
        (2, 1, 1, 2, 1, 1, 1, 1, 1, 2, 3, 3, 1, 0, 3, 4, 2),
    ),
    (OPERATORS["linear"], Precision.FP16, "matmul_add 32x48", (1, 1, 2, 1, 1, 1, 1, 1, 3, 1, 2, 1, 2, 2, 0, 0, 0)),
]
ABSTRACTION = DeviceAbstraction(
    "cuda", 132, 32, 65536, 48 << 10, 60 << 20, 0, 5.2e13, 3.3e12, 1024, tensor_cores=4, tensor_flops=1e15
)


class EmulatedTask:
    """A task for a GPU, and the outputs of its program on this CPU."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.space = DesignSpace(task)
        self.task = task
        self._folder = folder
        program = parse_module(task.workload.module)["main"]
        self._names = [str(each.name) for each in program.params]
        self.plan = replace(plan_of(program), reproducible=False, compares_zeros=False)  # another processor
        self._oracle = unscheduled(replace(task, device_class=CPU))

    @cached_property
    def expected(self) -> OracleOutputs:
        """The outputs of the program."""
        return all_runs(
            lambda positive, special: run(self._oracle, self._inputs(positive, special), CPU.target), self.plan
        )

    def _inputs(self, positive: bool, special: bool) -> list[Array]:
        about = ("task", self._oracle.args, self._oracle.outputs)
        return make_checked_inputs(*about, positive, self.plan, special)

    def outcome(self, candidate: Candidate) -> str:
        """Emulate a candidate. Return RIGHT, REFUSED for one that cannot be built or emulated, or what is wrong."""
        try:
            scheduled = self.space.schedule(candidate)
            source = _source(scheduled)
        except (ScheduleError, tvm.error.InternalError):
            return REFUSED
        try:
            with closing(CpuProgram(source, self._folder)) as program:
                return self._disagreement(program, scheduled.module["main"].body) or RIGHT
        except EmulationError as error:
            return str(error)

    def _disagreement(self, program: CpuProgram, body: Any) -> str:
        """Return what is wrong; empty if nothing is. ``body``: of the scheduled program."""
        bound, spare_bytes = launches(body), workspace_bytes(body)
        for each in self.expected.runs:
            arrays = self._inputs(self.expected.positive and not each.special, each.special)
            for number, at in enumerate(self._oracle.outputs):
                arrays[at] = poison(self._oracle.args[at], each.outputs[number], infinite=each.special)
            named = dict(zip(self._names, arrays, strict=True))
            program.run(bound, named, spare_bytes)
            outputs = [named[self._names[at]] for at in self._oracle.outputs]
            rounded = self.expected.positive and not each.special
            text = disagreement(each.outputs, outputs, self.plan, rounded=rounded, special=each.special)
            if text:
                return f"{text}{' (special values)' * each.special}"
        return ""

    def candidates(self) -> Iterator[tuple[str, list[Candidate]]]:
        """Random feasible candidates of each sketch, with the name of its rule."""
        for sketch in self.space.sketches:
            rng = np.random.default_rng(zlib.crc32(self.task.workload.name.encode()))
            rows = sample(sketch, 4096, rng)
            rows = rows[feasible(sketch, rows, ABSTRACTION)]
            vectors = dict.fromkeys(tuple(int(value) for value in row) for row in rows)
            yield sketch.rule, [Candidate(self.task.id, sketch.index, sketch.id, vector) for vector in vectors]


def _source(scheduled: Scheduled) -> str:
    use_vector_math()
    use_kernel_passes()
    with tvm.transform.PassContext(config=PASS_OPTIONS):
        module = tvm.tirx.build(scheduled.module, target=parse_target(H200.target))
    return str(module.imports[0].inspect_source())


def _marked(names: Sequence[str], short: Sequence[str]) -> list[Any]:
    """Names as parameters; those that are not in ``short`` have a target of their own."""
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.exhaustive]) for name in names]


@pytest.fixture(scope="module")
def emulation_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated")
    precompile(folder)
    return folder


@pytest.mark.parametrize("name", _marked(list(OPERATORS), SHORT))
def test_candidates_of_every_sketch_are_right(name: str, emulation_folder: Path) -> None:
    check(load_network(OPERATORS[name]()), emulation_folder)


@pytest.mark.parametrize("name", _marked([name for name in OPERATORS if name.startswith(PRODUCTS)], SHORT_PRODUCTS))
def test_candidates_on_tensor_cores_are_right(name: str, emulation_folder: Path) -> None:
    check(load_network(OPERATORS[name]()).in_precision(Precision.FP16), emulation_folder)


@pytest.mark.parametrize("name", _marked(list(QUANTISED), ("linear", "attention")))
def test_products_of_bytes_are_right(name: str, emulation_folder: Path) -> None:
    """On tensor cores where rows, columns and terms are multiples of theirs, by ``__dp4a`` otherwise."""
    use_kernel_passes()
    rules = check(load_network(QUANTISED[name]()), emulation_folder)
    assert ("tensorize" in rules) is not name.endswith("of_odd_extents")


@pytest.mark.parametrize("name", _marked([name for name in OPERATORS if name.startswith(PRODUCTS)], SHORT_PRODUCTS[:2]))
def test_products_of_bfloat16_are_right(name: str, emulation_folder: Path) -> None:
    """On tensor cores, but for extents that do not fit them, and convolutions that TVM's rule refuses."""
    rules = check(load_network(OPERATORS[name]()).in_precision(Precision.BF16), emulation_folder)
    without = ("grouped", "attention", "dilated", "residual")
    assert "tensorize" in rules or "odd" in name or name.startswith(without)


@pytest.mark.parametrize(("make", "precision", "name", "decisions"), NARROWED, ids=("bytes", "halves"))
def test_candidates_whose_vectors_tvm_makes_wrongly_are_right(
    make: Any, precision: Precision | None, name: str, decisions: tuple[int, ...], emulation_folder: Path
) -> None:
    """From a transposed matrix, bytes eight at a time; across the ends of rows, three at a time."""
    use_kernel_passes()
    network = load_network(make())
    tasks = import_network(network.in_precision(precision) if precision else network, H200).tasks
    program = EmulatedTask(next(task for task in tasks if task.workload.name == name), emulation_folder)
    sketch = next(each for each in program.space.sketches if each.rule == "tensorize")
    assert program.outcome(Candidate(program.task.id, sketch.index, sketch.id, decisions)) == RIGHT


def check(network: Network, emulation_folder: Path) -> set[str]:
    """Emulate candidates of each sketch of each task, and return the rules of the sketches."""
    emulated, rules, wrong = 0, set[str](), list[str]()
    for task in import_network(network, H200).tasks:
        program = EmulatedTask(task, emulation_folder)
        for rule, candidates in program.candidates():
            rules.add(rule)
            found = 0
            for candidate in candidates[: _TRIES * CANDIDATES]:
                outcome = LOG.outcome(candidate)
                if not outcome:
                    outcome = program.outcome(candidate)
                    LOG.add(candidate, task.workload.name, rule, outcome)
                if outcome not in (RIGHT, REFUSED):
                    wrong.append(f"{task.workload.name}, {rule}, {candidate.decisions}: {outcome}")
                found += outcome != REFUSED
                if found == CANDIDATES:
                    break
            emulated += found
    assert not wrong, "\n".join(wrong)
    assert emulated
    return rules
