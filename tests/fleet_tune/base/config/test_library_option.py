"""The option ``library``: which devices of a fleet it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_tune.base.config.fleet_file import FleetConfig, load_fleet
from fleet_tune.base.config.request import RunRequest, run_request
from fleet_tune.base.errors import FleetFileError, RequestError, UserError

MIXED = """\
[[device]]
name = "here"

[[device]]
name = "gpu"
target = "nvidia/jetson-agx-orin-64gb"

[[device]]
name = "elsewhere"
via = "lab-pc"

[[device]]
name = "board"
connect = "10.0.0.1:9090"
"""


def _fleet(tmp_path: Path, text: str) -> FleetConfig:
    (tmp_path / "fleet.toml").write_text(text)
    return load_fleet(tmp_path / "fleet.toml")


def _libraries(request: RunRequest) -> dict[str, str | None]:
    return {device.name: device.library for device in request.fleet.devices}


def test_it_is_off_by_default() -> None:
    for given in ({}, {"library": None}, {"library": "none"}):
        request = run_request("net.onnx", out="o", **given)  # type: ignore[arg-type]
        assert _libraries(request) == {"local": None}
        assert request.fleet.library is None


def test_it_is_for_the_cpus_of_this_machine(tmp_path: Path) -> None:
    assert _libraries(run_request("net.onnx", out="o", library="onednn")) == {"local": "onednn"}
    request = run_request("net.onnx", out="o", fleet=_fleet(tmp_path, MIXED), library="onednn")
    assert _libraries(request) == {"here": "onednn", "gpu": None, "elsewhere": None, "board": None}
    assert request.fleet.library == "onednn"


def test_a_fleet_without_such_a_cpu_is_refused(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path, MIXED).only({"gpu", "elsewhere", "board"})
    with pytest.raises(FleetFileError, match="CPUs of this machine, and the fleet has none") as told:
        run_request("net.onnx", out="o", fleet=fleet, library="onednn")
    assert 'library = "onednn"' in told.value.next_step


def test_a_network_over_a_dynamic_dimension_is_refused(tmp_path: Path) -> None:
    board = _fleet(tmp_path, MIXED + 'library = "onednn"\n')
    for given in ({"library": "onednn"}, {"fleet": board}):
        with pytest.raises(RequestError, match="fixed shapes, and n is dynamic") as told:
            run_request("net.onnx", out="o", shapes="n=1..8, m=4", **given)  # type: ignore[arg-type]
        assert "omit --library" in told.value.next_step
        run_request("net.onnx", out="o", shapes="n=8, m=4", **given)  # type: ignore[arg-type]
    run_request("net.onnx", out="o", shapes="n=1..8")


def test_who_asks_for_xnnpack_is_told_why_not() -> None:
    with pytest.raises(RequestError, match="onednn or none, not 'xnnpack': PyPI has no package"):
        run_request("net.onnx", out="o", library="xnnpack")


def test_a_fleet_file_gives_it_to_any_device(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path, MIXED + 'library = "onednn"\n')
    assert _libraries(run_request("net.onnx", out="o", fleet=fleet)) == {
        "here": None,
        "gpu": None,
        "elsewhere": None,
        "board": "onednn",
    }
    with pytest.raises(UserError, match='library = "xnnpack" is not valid') as told:
        _fleet(tmp_path, MIXED + 'library = "xnnpack"\n')
    assert '"onednn"' in str(told.value)
