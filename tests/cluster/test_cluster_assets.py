"""The deployment assets: alert rules that fire, on metrics that exist, and a unit that starts a real command."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

CLUSTER = Path(__file__).parents[2] / "cluster"


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_accepts(prometheus_dir: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [prometheus_dir / "promtool", *arguments], cwd=CLUSTER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (CLUSTER / "alerts.yml").read_text()))
    tested = set(re.findall(r"alertname: (\w+)", (CLUSTER / "alerts_test.yml").read_text()))
    assert alerts == tested


def test_alerts_use_metrics_that_a_run_exports() -> None:
    from urllib.request import urlopen

    from fleet_tune.metrics import Metrics

    metrics = Metrics(0)
    try:
        with urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as reply:
            families = list(text_string_to_metric_families(reply.read().decode()))
    finally:
        metrics.close()
    exported = {family.name for family in families}
    used = set(re.findall(r"\bfleet_tune_\w+", "".join(re.findall(r"expr:.*(?:\n {10}.*)*", _rules()))))
    assert len(used) >= 3
    base_names = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used}
    assert base_names <= exported


def _rules() -> str:
    # Annotations speak of metrics too, but only expressions are evaluated.
    return re.sub(r"annotations:\n(?: {10}.*\n?)*", "", (CLUSTER / "alerts.yml").read_text())


def test_unit_starts_a_command_that_exists() -> None:
    import click

    from fleet_tune.cli import cli

    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(CLUSTER / "fleet-tune-device.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[0].endswith("/bin/fleet-tune")
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(1))
        assert found is not None
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
