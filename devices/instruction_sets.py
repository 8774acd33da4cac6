"""Instruction sets that the code of a CPU target may use, and those that this machine offers.

LLVM names a CPU by its family and model. A virtual machine may hide instruction sets that the CPU of that name has (a
Zen 4 without AVX-512 is common): code for the name would end in an illegal instruction.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

from tvm.target import Target, codegen

# Sets that a compiler uses by itself. Others are for the kernel, for cryptography, or are hints.
_USED = re.compile(r"s?sse.*|avx.*|fma4?|f16c|bmi2?|lzcnt|popcnt|movbe|adx|gfni|tbm|xop")
# Names in Linux that differ from LLVM's by more than punctuation.
_LINUX_NAMES = {"bmi": "bmi1", "lzcnt": "abm", "sse3": "pni"}
# The same for AArch64: all sets that a compiler uses by itself and that not every such CPU has.
_ARM_LINUX_NAMES = {
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
    "rdm": "asimdrdm",
    **{name: name for name in ("bf16", "i8mm", "sve", "sve2")},
}

# CPUs by vendor, the newest first: code for one runs on those before it, as long as nothing of its own is hidden.
_GENERATIONS = {
    "amd": ("znver5", "znver4", "znver3", "znver2", "znver1"),
    "intel": ("sapphirerapids", "icelake-server", "cascadelake", "skylake-avx512", "skylake", "haswell"),
}
_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64")


def native_cpu(root: Path = Path("/")) -> str:
    """Return LLVM's name of this machine's CPU; where instruction sets of it are hidden here, the newest earlier CPU
    that needs none of these."""
    name = str(codegen.llvm_get_system_cpu())
    offered = offered_here(root)
    if offered is None or offered.issuperset(_needed(name)):
        return name
    earlier = (*_GENERATIONS.get(str(codegen.llvm_get_system_x86_vendor()), ()), *_LEVELS)
    return next((cpu for cpu in earlier if offered.issuperset(_needed(cpu))), _LEVELS[-1])


def missing_here(target: str, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the instruction sets, by LLVM's names, that code for a canonical CPU ``target`` of this architecture may
    use and this machine does not offer. Empty if this machine does not tell what it offers."""
    attributes = json.loads(target)
    host = attributes.get("host") or attributes
    cpu, given = str(host.get("mcpu", "")), tuple(host.get("mattr", ()))
    triple = str(host.get("mtriple", "x86_64"))
    if triple.startswith("x86_64"):
        offered, needed = offered_here(root), _needed(cpu, given)
    elif triple.startswith(("aarch64", "arm64")):
        offered, needed = _offered_by_arm(root), _needed_by_arm(triple, cpu, given)
    else:
        return ()
    return () if offered is None else tuple(sorted(needed - offered))


def offered_here(root: Path = Path("/")) -> frozenset[str] | None:
    """Return the instruction sets of an x86 CPU that Linux lists, by LLVM's names. None on other machines."""
    flags = _listed(root, "flags")
    if flags is None:
        return None
    linux = {_plain(flag) for flag in flags}
    return frozenset(linux | {llvm for llvm, name in _LINUX_NAMES.items() if name in linux})


def _offered_by_arm(root: Path) -> frozenset[str] | None:
    features = _listed(root, "Features")
    return None if features is None else frozenset(llvm for llvm, name in _ARM_LINUX_NAMES.items() if name in features)


def _listed(root: Path, name: str) -> list[str] | None:
    """Return the words of the first line of that name in ``/proc/cpuinfo``. None if there is none."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].split() for line in lines if line.startswith(name)), None)


@functools.cache
def _needed(cpu: str, attributes: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the instruction sets that LLVM may use in code for the x86 CPU ``cpu``."""
    return frozenset(filter(_USED.fullmatch, map(_plain, _features("", cpu, attributes))))


@functools.cache
def _needed_by_arm(triple: str, cpu: str, attributes: tuple[str, ...]) -> frozenset[str]:
    return _features(triple, cpu, attributes) & _ARM_LINUX_NAMES.keys()


def _features(triple: str, cpu: str, attributes: tuple[str, ...]) -> frozenset[str]:
    """Return LLVM's features of a CPU."""
    given = {"mtriple": triple, "mcpu": cpu, "mattr": list(attributes)}
    target = Target({"kind": "llvm", **{name: value for name, value in given.items() if value}})
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


def _plain(name: str) -> str:
    return re.sub(r"[_.-]", "", name)
