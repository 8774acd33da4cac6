"""The deployment assets: alert rules that fire, on metrics that exist, and a unit that starts a real command."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet_tune.base.results import Progress
from fleet_tune.base.stages import StageProgress

CLUSTER = Path(__file__).parents[2] / "cluster"
PROMETHEUS = CLUSTER / "prometheus"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("check", "rules", "recording.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("test", "rules", "recording_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts(prometheus_dir: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [prometheus_dir / "promtool", *arguments],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text()))
    tested = set(re.findall(r"alertname: (\w+)", (PROMETHEUS / "alerts_test.yml").read_text()))
    assert alerts == tested


def test_every_alert_has_a_runbook() -> None:
    rules = (PROMETHEUS / "alerts.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    assert re.findall(r"runbook_url: cluster/prometheus/runbooks\.md#(\w+)", rules) == [each.lower() for each in alerts]
    assert re.findall(r"^## (\w+)$", (PROMETHEUS / "runbooks.md").read_text(), re.MULTILINE) == alerts


def test_every_recording_rule_has_a_test() -> None:
    recorded = set(re.findall(r"record: (\S+)", (PROMETHEUS / "recording.yml").read_text()))
    assert recorded == set(re.findall(r"- expr: (\S+)", (PROMETHEUS / "recording_test.yml").read_text()))


def test_alerts_use_metrics_that_a_run_and_the_service_export(tmp_path: Path) -> None:
    from urllib.request import urlopen

    from fleet_tune.runs.metrics import Metrics

    metrics = Metrics(0)
    stage = StageProgress()
    metrics.update(Progress("tuning", 1.0, None, None, 0, 0, {}, 0.0, {}, {"a": "good"}, (), stages={"build": stage}))
    try:
        with urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as reply:
            families = list(text_string_to_metric_families(reply.read().decode()))
    finally:
        metrics.close()
    exported = {family.name for family in families} | _of_the_service(tmp_path) | {"up"}
    used = set(re.findall(r"\bfleet_tune_\w+", "\n".join(re.findall(r"expr:.*(?:\n {10}.*)*", _rules()))))
    assert len(used) >= 3
    base_names = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used}
    assert base_names <= exported


def _of_the_service(folder: Path) -> set[str]:
    from fleet_tune.base.config.retune_file import load_retune
    from fleet_tune.retuning.metrics import RetuneMetrics
    from fleet_tune.retuning.service import Service
    from tests.helpers.retune_world import World, WorldDevice

    network = '[[network]]\nname = "net"\npath = "net.onnx"\ncalls_per_day = 1\n'
    (folder / "retune.toml").write_text(f'folder = "kept"\n{network}')
    world = World([WorldDevice("a", "server")], {"net": 20e-3})
    metrics = RetuneMetrics(Service(load_retune(folder / "retune.toml"), world), world, 0)
    try:
        return {family.name for family in metrics.collect()}
    finally:
        metrics.close()


def _rules() -> str:
    # Annotations speak of metrics too, but only expressions are evaluated.
    alerts, recorded = ((PROMETHEUS / f"{name}.yml").read_text() for name in ("alerts", "recording"))
    return re.sub(r"annotations:\n(?: {10}.*\n?)*", "", alerts) + recorded


def test_unit_starts_a_command_that_exists() -> None:
    from fleet_tune.cli import serve as cli_serve

    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(CLUSTER / "fleet-tune-device.service")
    program, *words = unit["Service"]["ExecStart"].split()
    assert program.endswith("/bin/fleet-tune")
    assert words[:2] == ["device", "serve"]
    known = {option for action in cli_serve.parser()._actions for option in action.option_strings}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_guide_names_options_that_exist() -> None:
    from fleet_tune.cli import serve as cli_serve

    known = {option for action in cli_serve.parser()._actions for option in action.option_strings}
    commands = re.findall(r"^.*device serve (.*)$", (CLUSTER / "devices.md").read_text(), re.MULTILINE)
    named = set(re.findall(r"(?<!\S)--[a-z-]+", " ".join(commands)))
    assert len(commands) >= 3
    assert named
    assert named <= known


def test_the_unit_of_the_service_starts_a_command_that_exists() -> None:
    from fleet_tune.cli.retune import retune

    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(CLUSTER / "fleet-tune-retune.service")
    program, command, file = unit["Service"]["ExecStart"].split()
    assert program.endswith("/bin/fleet-tune")
    assert command == retune.name
    assert file.endswith(".toml")
    assert unit["Service"]["SuccessExitStatus"] == "143"
