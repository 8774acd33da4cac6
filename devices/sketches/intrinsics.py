"""Tensor intrinsics of the targets in use only.

MetaSchedule imports ``tvm.s_tir.tensor_intrin`` whenever it makes a context, and that package parses the intrinsics of
every target TVM knows: 10 to 25 s of CPU in each fresh process, of which x86 needs half a second. Importing this module
installs an empty package under that name (unless the real one is loaded already), and :func:`load_intrinsics` loads the
modules that a target needs.

For each intrinsic TVM's parser asks :mod:`inspect` for the source of every frame on the stack. For a frame without a
file (such as the import system's), :mod:`inspect` searches all loaded modules. So CUDA's intrinsics take 4 s from a
thread with an empty stack, and 10 to 20 s as an import.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import tvm.s_tir

from devices.sketches.rules.bfloat16_tiles import has_bfloat16_tiles, register_bfloat16_tiles

_PACKAGE = "tvm.s_tir.tensor_intrin"
_MODULES = {
    "x86_64": ("dot_product_common", "x86"),
    "aarch64": ("dot_product_common", "arm_cpu"),
    "arm": ("dot_product_common", "arm_cpu"),
    "riscv64": ("riscv_cpu",),
    "cuda": ("cuda",),
}
_loading = threading.Lock()


def load_intrinsics(target: str) -> None:
    """Register the intrinsics that MetaSchedule's rules for ``target`` (canonical JSON) may name. Repeated calls are
    cheap."""
    attributes = json.loads(target)
    kind = attributes["kind"]
    architecture = str(attributes.get("mtriple", "")).split("-")[0]
    names = [f"{_PACKAGE}.{name}" for name in _MODULES.get(architecture if kind == "llvm" else kind, ())]
    with _loading:
        steps: list[Callable[[], None]] = [partial(_load, name) for name in names if name not in sys.modules]
        cuda = f"{_PACKAGE}.cuda"
        if cuda in names and not has_bfloat16_tiles():
            steps.append(lambda: register_bfloat16_tiles(sys.modules[cuda]))
        if steps:
            with ThreadPoolExecutor(1) as empty_stack:
                for step in steps:
                    empty_stack.submit(step).result()


def _load(name: str) -> None:
    """Import a module of the package without frames of the import system on the stack."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"TVM has no module {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(Path(spec.origin).read_bytes(), spec.origin, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    setattr(sys.modules[_PACKAGE], name.rpartition(".")[2], module)


def _install() -> None:
    if _PACKAGE in sys.modules:
        return
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[_PACKAGE] = package
    tvm.s_tir.tensor_intrin = package


_install()
