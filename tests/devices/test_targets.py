from __future__ import annotations

import json

import pytest

from devices.targets import (
    TargetError,
    default_device_class_name,
    device_kind,
    is_native,
    parse_target,
    resolve_target,
    vector_bits,
    vector_registers,
    without_late_optimisations,
)
from fleet_tune.base.cpus import usable_cpus

CORTEX = {"kind": "llvm", "mcpu": "cortex-a78", "mtriple": "aarch64-linux-gnu", "num-cores": 4}


def test_native_is_this_cpu_with_all_usable_cores() -> None:
    attributes = json.loads(resolve_target("native"))
    assert attributes["kind"] == "llvm"
    assert attributes["mcpu"]
    assert attributes["num-cores"] == usable_cpus()
    assert is_native(resolve_target("native"))


@pytest.mark.parametrize(
    "spec", ["native", "llvm", CORTEX, "nvidia/jetson-orin-nano", {"kind": "cuda", "arch": "sm_90"}]
)
def test_canonical_text_is_a_fixed_point_that_tvm_reads(spec: str | dict[str, object]) -> None:
    text = resolve_target(spec)
    assert resolve_target(text) == text
    assert resolve_target(json.loads(text)) == text
    assert parse_target(text).kind.name == json.loads(text)["kind"]


def test_threads_become_the_number_of_cores() -> None:
    assert json.loads(resolve_target(CORTEX))["num-cores"] == 4
    assert json.loads(resolve_target(CORTEX, threads=2))["num-cores"] == 2
    assert json.loads(resolve_target("native", threads=1))["num-cores"] == 1


def test_a_gpu_gets_a_host() -> None:
    attributes = json.loads(resolve_target({"kind": "cuda", "arch": "sm_90"}))
    assert attributes["host"]["kind"] == "llvm"
    jetson = json.loads(resolve_target("nvidia/jetson-orin-nano"))
    assert jetson["arch"] == "sm_87"
    assert jetson["host"]["mtriple"] == "aarch64-linux-gnu"
    assert not is_native(resolve_target("nvidia/jetson-orin-nano"))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("nonsense", "nonsense"),
        ({"kind": "llvm", "bogus": 1}, "bogus"),
        ({"kind": "llvm", "mcpu": "pentium-9"}, "pentium-9"),
        ('{"kind": "llvm"', "not valid JSON"),
        ("llvm -mcpu=skylake", "JSON dict form"),
        ({}, "kind"),
        ({"kind": "llvm", "num-cores": -1}, "num-cores = -1"),
        ({"kind": "llvm", "num-cores": 4097}, "num-cores = 4097"),
        ({"kind": "llvm", "num-cores": 10**400}, "num-cores"),
        ({"kind": "llvm", "vector-width": -5}, "vector-width = -5"),
        ({"kind": "cuda", "arch": "sm_87", "max_threads_per_block": -5}, "max_threads_per_block = -5"),
        ({"kind": "cuda", "arch": "sm_87", "host": {"kind": "llvm", "mcpu": "pentium-9"}}, "pentium-9"),
        ({"kind": "llvm", "mtriple": "nowhere"}, "mtriple 'nowhere'"),
        ({"kind": "llvm", "mcpu": "x" * 10_000}, "unknown target"),
    ],
)
def test_a_wrong_target_is_named(spec: str | dict[str, object], named: str) -> None:
    with pytest.raises(TargetError, match=named) as caught:
        resolve_target(spec)
    assert len(str(caught.value)) < 600


def test_default_names_tell_classes_apart() -> None:
    assert default_device_class_name(resolve_target(CORTEX)) == "cortex-a78-4"
    assert default_device_class_name(resolve_target(CORTEX, threads=1)) == "cortex-a78-1"
    assert default_device_class_name(resolve_target({"kind": "cuda", "arch": "sm_87"})) == "cuda-sm_87"


def test_device_kinds() -> None:
    assert device_kind(resolve_target(CORTEX)) == "cpu"
    assert device_kind(resolve_target("nvidia/jetson-orin-nano")) == "cuda"
    with pytest.raises(TargetError, match="opencl"):
        device_kind(resolve_target("opencl"))


def test_vector_width_is_the_cpus() -> None:
    assert vector_bits(resolve_target(CORTEX)) == 128
    x86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
    assert vector_bits(resolve_target({**x86, "mcpu": "haswell"})) == 256
    assert vector_bits(resolve_target({**x86, "mcpu": "znver5"})) == 512


def test_registers_follow_the_architecture() -> None:
    x86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 1}
    assert vector_registers(resolve_target({**x86, "mcpu": "haswell"})) == 16
    assert vector_registers(resolve_target({**x86, "mcpu": "znver5"})) == 32
    assert vector_registers(resolve_target(CORTEX)) == 32


def test_kernels_without_a_schedule_are_built_for_the_same_processor() -> None:
    target = resolve_target(CORTEX)
    quick = json.loads(without_late_optimisations(target))
    assert quick.pop("opt-level") == 2
    assert quick == json.loads(target)
    gpu = resolve_target("nvidia/jetson-orin-nano")
    assert without_late_optimisations(gpu) == gpu
