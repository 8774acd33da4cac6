"""``fleet-tune scale`` on a real fleet: which parts of it, and what is told of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.errors import RequestError
from fleet_tune.cli import main as cli
from fleet_tune.scaling import real_fleet
from fleet_tune.scaling.real_fleet import fleet_scale_request, part

ROOT = Path(__file__).parents[3]
NETWORK = f"{ROOT}/examples/networks.py:mlp"


def board(name: str, port: int, more: str = "") -> str:
    return f'[[device]]\nname = "{name}"\nconnect = "127.0.0.1:{port}"\nthreads = 1\n{more}'


def test_a_part_of_a_fleet_has_devices_of_each_kind(tmp_path: Path) -> None:
    orin = 'target = { kind = "cuda", arch = "sm_87" }\n'
    file = tmp_path / "fleet.toml"
    file.write_text(
        board("a", 1)
        + board("b", 2)
        + board("c", 3, orin)
        + board("d", 4, 'device_class = "slow"\n')
        + board("e", 5, orin)
    )
    fleet = load_fleet(file)
    parts = [{device.name for device in part(fleet, count).devices} for count in range(1, 6)]
    assert parts == [{"a"}, {"a", "c"}, {"a", "c", "d"}, {"a", "b", "c", "d"}, {"a", "b", "c", "d", "e"}]
    assert part(fleet, 2).where("c", "connect") == f"{file}, line 11"


def test_what_a_fleet_does_not_have_is_told(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(board("a", 1) + board("b", 2))
    with pytest.raises(RequestError, match=r"--devices has 4, and .*fleet.toml has 2; give counts from 1 to 2"):
        fleet_scale_request("net.onnx", "1,4", fleet=file, secs=1.0)
    file.write_text('[[device]]\nname = "a"\nconnect = "recorded:a.ftd"\n')
    with pytest.raises(RequestError, match="recorded devices, which take no time"):
        fleet_scale_request("net.onnx", "1", fleet=file, secs=1.0)


@contextlib.contextmanager
def served(port: int) -> Iterator[None]:
    """A device server."""
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--no-key", "--port", str(port), "--threads", "1"]
    serving = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_cluster")
def test_a_network_is_tuned_on_a_part_and_then_on_all_of_a_fleet(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_fleet, "WARM_UP_SECS", 1.0)
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[[device]]\nname = "cpu"\nthreads = 1\ndevice_class = "cpu"\n' + board("b", free_port, 'device_class = "b"\n')
    )
    command = ["scale", NETWORK, "--fleet", str(file), "--devices", "1,2", "--seconds", "6", "--json"]
    with served(free_port):
        assert cli.main(command) == 0
    one, two = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (one["devices"], two["devices"]) == (1, 2)
    assert (one["busy_by_class"].keys(), two["busy_by_class"].keys()) == ({"cpu"}, {"cpu", "b"})
    assert two["bound"].keys() == {"cpu", "b"}
    for row in (one, two):
        assert row["trials_a_second"] > 0
        assert 0 < row["busy"] <= 1
        assert row["demand"] is None
        roles = row["roles"]
        assert {"scheduler", "recorder", "searchers", "learner", "builders", "builds", "devices"} <= roles.keys()
        assert roles["builds"]["cpu_secs_a_record"] > 0
        assert row["cpu_secs_a_record"] < sum(role["cpu_secs_a_record"] for role in roles.values())

    # Without its server there is no second device.
    assert cli.main([*command[:5], "2", *command[6:]]) == 2
    assert "b: no answer, or out of use" in capsys.readouterr().err
