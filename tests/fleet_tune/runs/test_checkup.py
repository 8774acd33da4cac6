"""``fleet-tune doctor``: what is in the way of runs on this machine, and what to do."""

from __future__ import annotations

import importlib.metadata
import json
import socket
from pathlib import Path

import pytest

from fleet_tune.base.config.fleet_file import default_fleet
from fleet_tune.base.diagnosis import Severity
from fleet_tune.runs import checkup
from fleet_tune.runs.fleet.device_check import DeviceCheck
from tests.helpers.commands import fleet_tune_here


def test_the_versions_of_this_environment_are_right() -> None:
    python, packages = checkup.packages()
    assert (python.severity, packages.severity) == (Severity.GOOD, Severity.GOOD)
    assert importlib.metadata.version("apache-tvm") in packages.found


def test_a_package_of_another_version_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = checkup._installed
    versions = {"apache-tvm": "0.19.0", "ray": None}
    monkeypatch.setattr(checkup, "_installed", lambda name: versions.get(name, installed(name)))
    diagnosis = list(checkup.packages())[-1]
    assert diagnosis.severity is Severity.PROBLEM
    assert "apache-tvm 0.19.0, not ==0.27" in diagnosis.found
    assert "ray is missing" in diagnosis.found
    assert "torch" not in diagnosis.found
    assert "pip install" in diagnosis.next_step


@pytest.mark.parametrize(
    ("place", "severity", "found"),
    [("", Severity.WARNING, "none"), ("folder", Severity.PROBLEM, "is a folder"), ("new.db", Severity.GOOD, "new.db")],
)
def test_the_store_is_looked_at(
    place: str, severity: Severity, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("FLEET_TUNE_STORE", str(tmp_path / place) if place else "")
    (diagnosis,) = checkup.store()
    assert diagnosis.severity is severity
    assert found in diagnosis.found


def test_a_token_that_others_may_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    assert [each.severity for each in checkup.ray_token(tmp_path)] == [Severity.PROBLEM]
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    assert [each.severity for each in checkup.ray_token(tmp_path)] == [Severity.WARNING]
    token.chmod(0o600)
    (diagnosis,) = checkup.ray_token(tmp_path)
    assert diagnosis.severity is Severity.GOOD
    assert "secret" not in diagnosis.found


def test_a_gpu_without_a_compiler_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkup.gpu(tmp_path).found == "no driver of NVIDIA's"
    driver = tmp_path / "proc" / "driver" / "nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n")
    monkeypatch.setattr("devices.cuda.compiler.find_compiler", lambda: None)
    diagnosis = checkup.gpu(tmp_path)
    assert diagnosis.severity is Severity.PROBLEM
    assert "580.65.06" in diagnosis.found
    assert diagnosis.next_step


def test_devices_that_do_not_answer_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        DeviceCheck("lost", "h:1", "lost", "connection refused", None),
        DeviceCheck("there", "h:2", "good", "", 0.001),
    ]
    monkeypatch.setattr(checkup, "check_devices", lambda *_: iter(checks))
    lost, there = checkup.devices(default_fleet(), None)
    assert (lost.severity, lost.found) == (Severity.PROBLEM, "it is lost: connection refused")
    assert "device serve" in lost.next_step
    assert there.severity is Severity.GOOD


def test_the_command_tells_each_finding_and_ends_with_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_TUNE_STORE", str(tmp_path))
    done = fleet_tune_here("doctor", "--json")
    assert done.returncode == 2
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["schema"] == 1
    by_subject = {each["subject"]: each for each in told["diagnoses"]}
    assert by_subject["store"]["severity"] == "problem"
    assert by_subject["Python"]["severity"] == "good"
    text = " ".join(done.stderr.split())
    assert "problem store" in text
    assert "-> give another file with --store" in text

    monkeypatch.setenv("FLEET_TUNE_STORE", str(tmp_path / "store.db"))
    alone = fleet_tune_here("doctor")
    assert alone.returncode == 0
    assert "Python:" in alone.stdout


def test_a_port_that_is_taken_is_a_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        diagnosis = checkup.port(number)
        assert (diagnosis.subject, diagnosis.severity) == ("ports", Severity.WARNING)
        assert f"port {number} of device servers is taken" in diagnosis.found
    assert checkup.port(number).severity is Severity.GOOD
