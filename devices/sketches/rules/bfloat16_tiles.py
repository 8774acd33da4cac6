"""Products of bfloat16 on tensor cores: TVM's sketch rule, with WMMA instructions that TVM does not register.

TVM registers these instructions for float16 and bytes only. The instructions for bfloat16 differ only in the type; GPUs
have them from compute capability 8.0 on. Sums are float32.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

_FIRST = 80
"""Compute capability, times ten, of the first GPU with the instructions."""
_TYPE, _SUMS = "bfloat16", "float32"
_SIZE = (16, 16, 16)
_SCOPE = "shared.dyn"
_NAME = "wmma_{}_16x16x16_bf16"


def bfloat16_rules(module: tvm.IRModule, target: Target) -> list[ms.ScheduleRule]:
    """Return the rule if the program has arguments of bfloat16 and the GPU multiplies them on tensor cores; else an
    empty list."""
    found = re.fullmatch(r"sm_(\d+)[a-z]?", str(target.attrs.get("arch", ""))) if target.kind.name == "cuda" else None
    if found is None or int(found[1]) < _FIRST:
        return []
    if not any(str(getattr(each, "dtype", "")) == _TYPE for each in module["main"].params):
        return []
    reuse = ms.schedule_rule.ReuseType
    return [
        # As TVM's own rule for float16, except that TVM's code generator supports vectors of up to eight bfloat16
        # numbers.
        ms.schedule_rule.MultiLevelTilingTensorCore(
            [_group(""), _group("_trans")],
            "SSSRRSRS",
            ["blockIdx.y", "blockIdx.x", "threadIdx.y"],
            4,
            [1, 2, 4, 8],
            reuse("must", [4], _SCOPE),
            reuse("must", [2], _SCOPE),
            False,
        )
    ]


def _group(b: str) -> dict[str, str]:
    """Return the names of the instructions. ``b``: suffix of the names that concern the right operand."""
    return {
        "init": "wmma_fill_16x16x16_f32",
        "load_a": f"{_NAME.format('load')}_a_shared_dyn",
        "load_b": f"{_NAME.format('load')}_b{b}_shared_dyn",
        "compute": f"{_NAME.format('sync')}bf16f32{b}",
        "store": "wmma_store_16x16x16_f32_shared_dyn",
    }


def has_bfloat16_tiles() -> bool:
    """Return true if the instructions are registered."""
    return TensorIntrin.get(_group("")["compute"], allow_missing=True) is not None


def register_bfloat16_tiles(cuda: Any) -> None:
    """Register the instructions. ``cuda``: TVM's module of CUDA intrinsics, already loaded."""
    for b, transposed in (("", False), ("_trans", True)):
        group = _group(b)
        TensorIntrin.register(group["load_b"], *cuda.get_wmma_load_intrin(*_SIZE, _TYPE, _SCOPE, True, transposed))
        TensorIntrin.register(group["compute"], *cuda.get_wmma_sync_intrin(*_SIZE, _TYPE, _SUMS, transposed))
    load_a = _group("")["load_a"]
    TensorIntrin.register(load_a, *cuda.get_wmma_load_intrin(*_SIZE, _TYPE, _SCOPE, False, False))
