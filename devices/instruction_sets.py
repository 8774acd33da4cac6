"""Instruction sets that a CPU target's code may use, and those that this machine offers.

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
    use and this machine does not offer. Empty where this machine does not say what it offers."""
    attributes = json.loads(target)
    host = attributes.get("host") or attributes
    offered = offered_here(root)
    if offered is None or not str(host.get("mtriple", "x86_64")).startswith("x86_64"):
        return ()
    needed = _needed(str(host.get("mcpu", "")), tuple(host.get("mattr", ())))
    return tuple(sorted(needed - offered))


def offered_here(root: Path = Path("/")) -> frozenset[str] | None:
    """Return the instruction sets of an x86 CPU that Linux lists, by LLVM's names; None on other machines."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), None)
    if flags is None:
        return None
    linux = {_plain(flag) for flag in flags}
    return frozenset(linux | {llvm for llvm, name in _LINUX_NAMES.items() if name in linux})


@functools.cache
def _needed(cpu: str, attributes: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the instruction sets that LLVM may use in code for ``cpu``."""
    config = {"kind": "llvm", **({"mcpu": cpu} if cpu else {}), **({"mattr": list(attributes)} if attributes else {})}
    return frozenset(filter(_USED.fullmatch, map(_plain, map(str, codegen.llvm_get_cpu_features(Target(config))))))


def _plain(name: str) -> str:
    return re.sub(r"[_.-]", "", name)
