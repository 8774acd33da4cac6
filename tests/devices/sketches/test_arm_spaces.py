"""64-bit ARM CPUs: their sketches, what is known of their vector units, and candidates compiled for them."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import tvm
from tvm import te

from devices.sketches.spaces import DesignSpace
from devices.targets import architecture, is_native, parse_target, resolve_target, vector_bits, vector_registers
from fleet_tune.base.domain import Candidate, Task
from policies.space.sampling import sample
from tests.helpers.programs import program_task
from tests.helpers.workloads import WORKLOADS

# What boards of these kinds are: Jetson Orin, Raspberry Pi 5, Raspberry Pi 4.
BOARDS = {"orin": "cortex-a78ae", "pi5": "cortex-a76", "pi4": "cortex-a72"}


def target(board: str) -> str:
    return resolve_target({"kind": "llvm", "mcpu": BOARDS[board], "mtriple": "aarch64-linux-gnu", "num-cores": 4})


def bytes_matmul(size: int = 64) -> tuple[te.Tensor, ...]:
    """Sums of products of bytes, as quantised networks have them."""
    a, b = te.placeholder((size, size), "int8", name="a"), te.placeholder((size, size), "int8", name="b")
    r = te.reduce_axis((0, size), "r")
    product = te.compute(
        (size, size), lambda i, j: te.sum(a[i, r].astype("int32") * b[j, r].astype("int32"), axis=r), name="c"
    )
    return a, b, product


@cache
def task(board: str, workload: str) -> Task:
    tensors = bytes_matmul() if workload == "bytes" else WORKLOADS[workload]()
    return program_task(tensors, target(board), name=workload, device_class=board)


@cache
def space(board: str, workload: str) -> DesignSpace:
    return DesignSpace(task(board, workload))


@pytest.mark.parametrize("board", BOARDS)
def test_what_is_known_of_the_vector_units(board: str) -> None:
    text = target(board)
    assert (vector_bits(text), vector_registers(text)) == (128, 32)
    assert architecture(text) == "aarch64"
    assert not is_native(text)


@pytest.mark.parametrize(("board", "intrinsic"), [("orin", "sdot"), ("pi5", "sdot"), ("pi4", "neon")])
def test_bytes_are_multiplied_by_the_instructions_that_the_cpu_has(board: str, intrinsic: str) -> None:
    """The older core has no dot product."""
    found = [sketch for sketch in space(board, "bytes").sketches if sketch.rule == "tensorize"]
    assert found
    assert all(f"dot_4x4_i8i8s32_{intrinsic}" in sketch.trace_text for sketch in found)


@pytest.mark.parametrize("workload", ["conv3", "matmul-relu", "depthwise"])
def test_a_candidate_of_every_sketch_is_machine_code_for_arm(workload: str) -> None:
    designs = space("orin", workload)
    rules = [sketch.rule for sketch in designs.sketches]
    assert {"register-blocked", "multi-level-tiling"} <= set(rules)
    for sketch in designs.sketches:
        assert not sketch.undescribed
        row = sample(sketch, 1, np.random.default_rng(3))[0]
        candidate = Candidate(task("orin", workload).id, sketch.index, sketch.id, tuple(int(value) for value in row))
        module = tvm.tirx.build(designs.schedule(candidate).module, target=parse_target(target("orin")))
        text = module.inspect_source("asm")
        assert re.search(r"\tfm(la|ul|add)\t", text), sketch.rule  # fused or not, of vectors or scalars


def test_the_same_program_for_every_board() -> None:
    sketches = {board: [sketch.rule for sketch in space(board, "conv3").sketches] for board in BOARDS}
    assert len(set(map(tuple, sketches.values()))) == 1
