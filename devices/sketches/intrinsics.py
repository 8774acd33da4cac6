"""Tensor intrinsics of the targets in use, without those of all others.

MetaSchedule imports ``tvm.s_tir.tensor_intrin`` whenever it makes a context, and that package parses the intrinsics of
every target TVM knows: 10 to 25 s of CPU in each fresh process, of which x86 needs half a second. Importing this
module puts an empty package in its place (unless the whole is loaded already), and :func:`load_intrinsics` fills in
what a target needs.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import tvm.s_tir

_PACKAGE = "tvm.s_tir.tensor_intrin"
_MODULES = {
    "x86_64": ("dot_product_common", "x86"),
    "aarch64": ("dot_product_common", "arm_cpu"),
    "arm": ("dot_product_common", "arm_cpu"),
    "riscv64": ("riscv_cpu",),
    "cuda": ("cuda",),
}


def load_intrinsics(target: str) -> None:
    """Register the intrinsics that MetaSchedule's rules for a canonical ``target`` may name. Cheap when repeated."""
    attributes = json.loads(target)
    kind = attributes["kind"]
    architecture = str(attributes.get("mtriple", "")).split("-")[0]
    for module in _MODULES.get(architecture if kind == "llvm" else kind, ()):
        importlib.import_module(f"{_PACKAGE}.{module}")


def _install() -> None:
    if _PACKAGE in sys.modules:
        return
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[_PACKAGE] = package
    tvm.s_tir.tensor_intrin = package


_install()
