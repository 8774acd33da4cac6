"""What a checkup finds of a host, from files as the system has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.host import checkup
from fleet_tune.base.diagnosis import Severity

GOOD, WARNING, PROBLEM = Severity.GOOD, Severity.WARNING, Severity.PROBLEM


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("governors", "severity", "found"),
    [
        (["performance", "performance"], GOOD, "performance (2 CPUs)"),
        (["performance", "powersave"], WARNING, "performance (1 CPUs), powersave (1 CPUs)"),
        ([], GOOD, "the system does not tell"),
    ],
)
def test_a_clock_that_follows_the_load_is_told(
    governors: list[str], severity: Severity, found: str, tmp_path: Path
) -> None:
    for number, name in enumerate(governors):
        write(tmp_path, f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", f"{name}\n")
    diagnosis = checkup.governor(tmp_path)
    assert (diagnosis.severity, diagnosis.found.split(":")[0]) == (severity, found)
    assert bool(diagnosis.next_step) is (severity is WARNING)


@pytest.mark.parametrize(("name", "severity"), [("tsc", GOOD), ("hpet", WARNING), ("acpi_pm", WARNING)])
def test_a_slow_clock_is_told(name: str, severity: Severity, tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/system/clocksource/clocksource0/current_clocksource", f"{name}\n")
    assert checkup.clock(tmp_path).severity is severity


@pytest.mark.parametrize(("quota", "severity"), [("max 100000", GOOD), ("50000 100000", WARNING)])
def test_a_quota_is_told(quota: str, severity: Severity, tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "model name : A Processor\n")
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota}\n")
    diagnosis = checkup.processor(tmp_path)
    assert diagnosis.severity is severity
    assert ("a quota allows 0.5" in diagnosis.found) is (severity is WARNING)


@pytest.mark.parametrize(
    ("free", "severity"), [(100 << 30, GOOD), (1 << 30, WARNING), (1 << 20, PROBLEM)], ids=["much", "little", "none"]
)
def test_a_drive_that_is_nearly_full_is_told(
    free: int, severity: Severity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _: Usage(free))
    assert checkup.space(tmp_path / "made" / "later").severity is severity


class Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_folder_that_cannot_be_written_into_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    diagnosis = checkup.space(tmp_path / "file" / "folder")
    assert diagnosis.severity is PROBLEM
    assert "cannot be written into" in diagnosis.found


def test_little_memory_is_told(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:        2000000 kB\n")
    diagnosis = checkup.memory(tmp_path)
    assert (diagnosis.severity, diagnosis.found) == (WARNING, "1.9 GiB")


def test_every_check_of_this_host_says_something(tmp_path: Path) -> None:
    diagnoses = list(checkup.host_diagnoses([tmp_path]))
    assert len({each.subject for each in diagnoses}) == len(diagnoses) == 9
    assert all(each.found for each in diagnoses)
    assert all(bool(each.next_step) is (each.severity is not GOOD) for each in diagnoses)
