"""Targets of code generation. A target travels as canonical JSON text; only this module parses or detects one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import tvm
from tvm.target import Target, codegen

from devices.instruction_sets import native_cpu
from fleet_tune.base.config.values import shown
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import UserError

NATIVE = "native"


class TargetError(UserError):
    """The target is not known to TVM or to LLVM: name another one."""


def resolve_target(spec: str | Mapping[str, object], threads: int | None = None) -> str:
    """Return the canonical JSON text of a target: all its attributes and its host, keys sorted.

    Args:
        spec: ``"native"`` (this machine's CPU), a tag that TVM knows (``"nvidia/jetson-orin-nano"``), a target kind
            (``"llvm"``, ``"cuda"``), or a mapping or JSON text of attributes.
        threads: number of cores that kernels are scheduled for (CPU targets). Default: the number in ``spec``, for
            ``"native"`` the CPUs that this process may use.

    Raises TargetError, which names the target or its wrong attribute.
    """
    config: Any = spec
    if spec == NATIVE:
        config = {
            "kind": "llvm",
            "mcpu": native_cpu(),
            "mtriple": codegen.llvm_get_system_triple(),
            "num-cores": threads or usable_cpus(),
            # Level 2 compiles in a fifth less time, but leaves loop-invariant conditions in inner loops: those of
            # padding (max pooling took 1.8 times as long) and of the parts of a concatenation.
            "opt-level": 3,
        }
    elif isinstance(spec, str) and spec.lstrip().startswith("{"):
        try:
            config = json.loads(spec)
        except json.JSONDecodeError as error:
            raise TargetError(
                f"target {shown(spec)} is not valid JSON ({error})", "write it as a JSON object"
            ) from error
    if isinstance(config, Mapping):
        config = {key: value for key, value in config.items() if key not in _DERIVED}
    target = _parse(config, shown(spec))
    if target.get_target_device_type() != int(tvm.cpu().dlpack_device_type()) and target.host is None:
        target = target.with_host(_parse(json.loads(resolve_target(NATIVE)), NATIVE))
    attributes = _plain(target.export())
    if attributes["kind"] == "llvm":
        attributes.pop("host", None)  # a CPU is its own host
        attributes["num-cores"] = threads or attributes.get("num-cores") or usable_cpus()
    _check_numbers(attributes, shown(spec))
    for cpu in (target, target.host):
        if cpu is not None and cpu.kind.name == "llvm":
            _check_cpu(cpu, shown(spec))
    return canonical(attributes)


def canonical(attributes: Mapping[str, Any]) -> str:
    """Return the JSON text of a target's attributes: equal for equal targets."""
    return json.dumps({k: v for k, v in attributes.items() if v != ""}, sort_keys=True, separators=(",", ":"))


def parse_target(text: str) -> Target:
    """Return TVM's target of a canonical JSON text (see :func:`resolve_target`)."""
    return Target({key: value for key, value in json.loads(text).items() if key not in _DERIVED})


def default_device_class_name(target: str) -> str:
    """Return the name of a target's device class if the user gave none: ``"znver5-2"``, ``"cuda-sm_87"``.

    The number of threads is part of a CPU's name: run times at different thread counts are not interchangeable.
    """
    attributes = json.loads(target)
    if attributes["kind"] == "llvm":
        parts = [attributes.get("mcpu") or "cpu", str(attributes["num-cores"]), library_of(target)]
    else:
        parts = [attributes["kind"], str(attributes.get("arch", ""))]
    return re.sub(r"[^a-z0-9._-]+", "-", "-".join(part for part in parts if part).lower())


def with_library(target: str, library: str) -> str:
    """Return a canonical target whose kernels may call ``library``. A target of a GPU, or of another processor than
    x86-64, is returned as it is: there is no library for it."""
    attributes = json.loads(target)
    if not library or attributes["kind"] != "llvm" or architecture(target) != "x86_64":
        return target
    return canonical({**attributes, "libs": [library]})


def library_of(target: str) -> str:
    """Return the library that kernels for a canonical target may call (TVM's attribute ``libs``); empty for none."""
    return str(next(iter(json.loads(target).get("libs", [])), ""))


def without_late_optimisations(target: str) -> str:
    """Return the canonical target for kernels without a schedule, of which only the results matter. With level 2 LLVM
    builds them for a CPU in less than half of the time, and ResNet-18 and BERT are as fast as with level 3."""
    attributes = json.loads(target)
    if device_kind(target) != "cpu" or attributes.get("opt-level", 3) <= 2:
        return target
    return canonical({**attributes, "opt-level": 2})


def device_kind(target: str) -> str:
    """Return the kind of device that a canonical target is for: ``"cpu"`` or ``"cuda"``.

    Raises TargetError for any other kind: no kernel space or device abstraction exists for it.
    """
    kind = json.loads(target)["kind"]
    if kind == "llvm":
        return "cpu"
    if kind == "cuda":
        return "cuda"
    raise TargetError(f"target kind {kind!r} is not supported", "use an llvm (CPU) or a cuda target")


def vector_bits(target: str) -> int:
    """Return the width in bits of the vector registers of a CPU target."""
    parsed = parse_target(target)
    if architecture(target) != "x86_64":
        return int(codegen.llvm_get_vector_width(parsed))
    # For x86, TVM's function says 512 whatever the CPU is.
    if codegen.target_has_features("avx512f", parsed):
        return 512
    return 256 if codegen.target_has_features("avx", parsed) else 128


def vector_registers(target: str) -> int:
    """Return the number of vector registers of a core: 32 with AVX-512 and on 64-bit ARM, 16 on other CPUs."""
    if architecture(target) in ("aarch64", "arm64"):
        return 32
    return 32 if codegen.target_has_features("avx512f", parse_target(target)) else 16


def architecture(target: str) -> str:
    """Return the architecture of a CPU target, or of a GPU target's host: ``"x86_64"``, ``"aarch64"``, ..."""
    attributes = json.loads(target)
    host = attributes.get("host") or attributes
    return str(host.get("mtriple") or codegen.llvm_get_system_triple()).split("-")[0]


def is_native(target: str) -> bool:
    """Return true if the code of a CPU target (or of a GPU target's host) is of this machine's architecture."""
    return architecture(target) == str(codegen.llvm_get_system_triple()).split("-")[0]


# Attributes that TVM derives from the others. Given back to the parser they would contradict these.
_DERIVED = ("tag",)


# Larger than any count of a device; TVM computes with these as with 32-bit numbers.
_MOST, _MOST_CORES = 2**31 - 1, 4096
_MOST_REASON = 300  # characters


def _parse(config: Any, named: str) -> Target:
    try:
        return Target(config)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[-1].split(" Target creation from")[0].rstrip(".")
        raise TargetError(
            f"unknown target {named} ({reason if len(reason) <= _MOST_REASON else reason[:_MOST_REASON] + '...'})",
            'use "native", a TVM target tag, or attributes such as {"kind": "llvm", "mcpu": "cortex-a78"}',
        ) from error


def _check_numbers(attributes: Mapping[str, Any], named: str) -> None:
    """Raise TargetError for a count (cores, threads, bytes) out of range: TVM does not check them."""
    for key, value in attributes.items():
        most = _MOST_CORES if key == "num-cores" else _MOST
        if isinstance(value, int) and not 0 <= value <= most:
            raise TargetError(
                f"target {named} has {key} = {shown(value)}", f"give {key} a whole number from 0 to {most}"
            )


def _check_cpu(target: Target, named: str) -> None:
    """Raise TargetError for a CPU that LLVM does not know, or one of another architecture.

    LLVM only prints a warning for an unknown CPU, and generates code for the oldest one. A CPU of another architecture
    fails only when something is built for it.
    """
    mtriple = str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    mcpu = str(target.attrs.get("mcpu", ""))
    try:
        codegen.llvm_get_vector_width(target)
    except RuntimeError as error:
        raise TargetError(
            f"unknown target {named} (LLVM builds nothing for mtriple {shown(mtriple)})",
            'give an mtriple as "aarch64-linux-gnu"',
        ) from error
    if mcpu and not codegen.llvm_is_valid_cpu(mcpu, mtriple):
        raise TargetError(
            f"unknown target {named} (LLVM knows no CPU {shown(mcpu)})",
            "give the CPU's LLVM name as mcpu, and its mtriple where it is of another architecture",
        )


def _plain(value: Any) -> Any:
    """Convert TVM containers to Python values."""
    if isinstance(value, Target):
        return _plain(value.export())
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items() if not (key == "tag" and item == "")}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    return [_plain(item) for item in value]
