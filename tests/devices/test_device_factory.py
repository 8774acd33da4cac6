"""What is wrong with a device is told with its place in the fleet file; opening one loads TVM only where needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devices.device_factory import fleet_file_errors, open_device
from fleet_tune.base.config.fleet_file import FleetConfig, default_fleet, load_fleet
from fleet_tune.base.errors import DatasetError, DeviceUnreachableError, FleetFileError, UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetConfig:
    path = tmp_path / "fleet.toml"
    path.write_text('[[device]]\nname = "a"\nconnect = "recorded:none.ftd"\ntarget = "native"\n')
    return load_fleet(path)


@pytest.mark.parametrize(
    ("error", "line", "told"),
    [
        (UserError("no such target", "give another"), 4, "no such target"),
        (DatasetError("no such dataset", "give another"), 3, "no such dataset"),
        (DeviceUnreachableError("a", "no route to host"), 3, "no route to host"),
    ],
)
def test_an_error_names_the_device_and_its_line(fleet: FleetConfig, error: Exception, line: int, told: str) -> None:
    with pytest.raises(FleetFileError, match=told) as caught, fleet_file_errors(fleet, "a"):
        raise error
    assert f"line {line}: device 'a'" in caught.value.problem


def test_one_that_does_not_answer_may_pass(fleet: FleetConfig) -> None:
    with pytest.raises(DeviceUnreachableError), fleet_file_errors(fleet, "a", unreachable=False):
        raise DeviceUnreachableError("a", "no route to host")


def test_what_names_its_place_already_stays_as_it_is() -> None:
    told = FleetFileError("fleet.toml, line 7: wrong", "mend it")
    with pytest.raises(FleetFileError) as caught, fleet_file_errors(default_fleet(), "local"):
        raise told
    assert caught.value is told


def test_a_dataset_that_is_not_there_is_told(fleet: FleetConfig) -> None:
    (device,) = fleet.devices
    with pytest.raises(FleetFileError, match="line 3"), fleet_file_errors(fleet, "a"), open_device(device):
        pass


@pytest.mark.parametrize("module", ["devices.device_factory", "fleet_tune.runs.fleet.device_check"])
def test_neither_tvm_nor_ray_is_loaded_by_the_import(module: str) -> None:
    code = f"import sys, {module}\nassert not {{'tvm', 'ray', 'torch', 'actors'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
