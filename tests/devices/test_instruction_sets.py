"""What this machine offers against what code for a CPU uses: machines are given as their /proc/cpuinfo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tvm.target import codegen

from devices.instruction_sets import missing_here, native_cpu, offered_here
from devices.targets import resolve_target

_V3 = (
    "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm sse4a bmi1 avx2 bmi2 "
    "adx sha_ni vaes vpclmulqdq pni"
)
_AVX512 = (
    "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512vbmi avx512_vbmi2 gfni avx512_vnni "
    "avx512_bitalg avx512_vpopcntdq"
)


@pytest.fixture
def zen4(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's names of the CPU of this test, whatever it runs on."""
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "znver4")
    monkeypatch.setattr(codegen, "llvm_get_system_x86_vendor", lambda: "amd")


def machine(root: Path, line: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: AMD EPYC\n{line}\n")
    return root


@pytest.mark.usefixtures("zen4")
@pytest.mark.parametrize(
    ("flags", "cpu"),
    [
        (f"{_V3} {_AVX512}", "znver4"),
        (_V3, "znver3"),
        (f"{_V3} avx512f", "znver3"),
        (_V3.replace("adx", ""), "x86-64-v3"),
        (_V3.replace("avx2", ""), "x86-64-v2"),
        ("fpu sse sse2", "x86-64"),
    ],
)
def test_the_native_cpu_uses_nothing_that_is_hidden(tmp_path: Path, flags: str, cpu: str) -> None:
    root = machine(tmp_path, f"flags\t\t: {flags}")
    assert native_cpu(root) == cpu
    assert missing_here(json.dumps({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"}), root) == ()


@pytest.mark.usefixtures("zen4")
def test_a_machine_that_tells_nothing_is_what_llvm_says(tmp_path: Path) -> None:
    assert native_cpu(tmp_path / "none") == "znver4"
    arm = machine(tmp_path, "Features\t: fp asimd")
    assert offered_here(arm) is None
    assert native_cpu(arm) == "znver4"


def test_what_a_target_needs_and_the_machine_lacks(tmp_path: Path) -> None:
    root = machine(tmp_path, f"flags\t\t: {_V3}")

    def missing(**attributes: object) -> tuple[str, ...]:
        return missing_here(json.dumps({"kind": "llvm", "mtriple": "x86_64-linux-gnu", **attributes}), root)

    assert missing(mcpu="skylake-avx512") == ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
    assert missing(mcpu="skylake-avx512", mattr=["-avx512f"]) == ()
    assert missing(mcpu="haswell", mattr=["+avx512f"]) == ("avx512f",)
    assert missing() == ()
    assert missing_here(json.dumps({"kind": "llvm", "mcpu": "cortex-a78", "mtriple": "aarch64-linux-gnu"}), root) == ()
    host = {"kind": "llvm", "mcpu": "znver5", "mtriple": "x86_64-linux-gnu"}
    assert "avx512f" in missing_here(json.dumps({"kind": "cuda", "arch": "sm_90", "host": host}), root)


def test_what_a_board_lacks(tmp_path: Path) -> None:
    def missing(root: Path, cpu: str) -> tuple[str, ...]:
        return missing_here(json.dumps({"kind": "llvm", "mcpu": cpu, "mtriple": "aarch64-linux-gnu"}), root)

    a72 = machine(tmp_path, "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid")
    assert missing(a72, "cortex-a72") == ()
    assert missing(a72, "cortex-a78") == ("dotprod", "fullfp16", "lse", "rdm")
    assert set(missing(a72, "neoverse-v1")) >= {"bf16", "dotprod", "i8mm", "sve"}
    (a72 / "proc/cpuinfo").write_text("Features\t: fp asimd atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp\n")
    assert missing(a72, "cortex-a78") == ()


def test_this_machine_offers_what_its_own_code_needs() -> None:
    assert missing_here(resolve_target("native")) == ()
