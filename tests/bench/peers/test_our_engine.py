"""Our builder and device behind MetaSchedule's interfaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from bench.peers import our_engine
from bench.peers.our_engine import WarmBuilder, _BuildProcess, compile_program
from devices.sketches.generation import generated
from devices.sketches.inlining import blocks_of
from devices.sketches.intrinsics import load_intrinsics
from devices.targets import NATIVE, parse_target, resolve_target


def _packed_product() -> tuple[tvm.IRModule, Any]:
    """A matrix product whose schedule wants its weights in tiles, and the arguments that it then takes."""
    data, weight = te.placeholder((32, 64), name="data"), te.placeholder((64, 32), name="weight")
    function = te.create_prim_func([data, weight, topi.matmul(data, weight)]).with_attr("layout_free_buffers", [1])
    schedule = Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock(blocks_of(schedule)[0].name_hint, "main")
    i, j, k = schedule.get_loops(block)
    j0, j1 = schedule.split(j, [None, 8])
    k0, k1 = schedule.split(k, [None, 16])
    schedule.reorder(i, j0, k0, k1, j1)
    schedule.enter_postproc()
    load_intrinsics(resolve_target(NATIVE, 1))
    context, _, _ = generated(schedule.mod, parse_target(resolve_target(NATIVE, 1)))
    rewrites = [each for each in context.space_generator.postprocs if isinstance(each, ms.postproc.RewriteLayout)]
    assert rewrites[0].apply(schedule)
    return schedule.mod, ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)


def test_weights_come_in_the_layout_of_the_schedule(tmp_path: Path) -> None:
    module, arguments = _packed_product()
    shapes = [tuple(int(extent) for extent in each.shape) for each in arguments]
    assert len(shapes[1]) == 4
    path = tmp_path / "kernel.so"
    path.write_bytes(compile_program(tvm.ir.save_json(module), resolve_target(NATIVE, 1)))
    rng = np.random.default_rng(0)
    data, weight = (rng.random(shape, dtype=np.float32) for shape in shapes[:2])
    result = tvm.runtime.tensor(np.zeros(shapes[2], np.float32))
    tvm.runtime.load_module(str(path))["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), result)
    # Tiles of 16 x 8, by columns of tiles first: as the loops go.
    plain = weight.transpose(1, 2, 0, 3).reshape(64, 32)
    np.testing.assert_allclose(result.numpy(), data @ plain, rtol=1e-4)


def _end(text: str, _target: str) -> bytes:
    if text == "ends":
        os._exit(3)
    if text == "fails":
        raise ValueError("no such loop")
    return text.encode()


def test_a_build_process_that_ends_fails_its_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(our_engine, "compile_program", _end)
    monkeypatch.setattr(our_engine, "use_our_passes", _nothing)
    process = _BuildProcess("")
    try:
        assert process.build("one") == b"one"
        assert process.build("fails") == "ValueError: no such loop"
        assert str(process.build("ends")).startswith("the build process ended: ")
        assert process.build("two") == b"two"
    finally:
        process.close()
        process.close()


def _nothing() -> None:
    pass


def test_each_program_has_a_file_in_a_folder_of_its_own(tmp_path: Path) -> None:
    builder = WarmBuilder(tmp_path, 1, 1)
    try:
        module, _ = _packed_product()
        target = parse_target(resolve_target(NATIVE, 1))
        one, other = builder.build([ms.builder.BuilderInput(module, target)] * 2)
        assert Path(one.artifact_path).parent != Path(other.artifact_path).parent
        assert Path(one.artifact_path).read_bytes() == Path(other.artifact_path).read_bytes()
    finally:
        builder.close()
