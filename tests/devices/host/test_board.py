"""What a Jetson's files tell of its power mode, clock and memory; JetPack 5 and 6 name them otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.host.board import board_name, gpu_clock_folder, is_board, shared_free_bytes
from devices.host.machine import describe, gpu_driver, processor_name
from devices.host.power_mode import power_mode
from fleet_tune.base.power_text import differ, mode_of, without_heat
from tests.helpers.jetson_files import SETTINGS, JetsonFiles


@pytest.fixture(params=[5, 6])
def orin(tmp_path: Path, request: pytest.FixtureRequest) -> JetsonFiles:
    return JetsonFiles(tmp_path, request.param)


def test_another_machine_has_no_power_mode(tmp_path: Path) -> None:
    assert not is_board(tmp_path)
    assert (board_name(tmp_path), power_mode(tmp_path), power_mode(tmp_path, "cuda")) == ("", "", "")
    assert gpu_clock_folder(tmp_path) is None
    assert shared_free_bytes(tmp_path) is None


def test_the_board_is_the_processor_and_tells_its_software(orin: JetsonFiles) -> None:
    assert processor_name(orin.root) == "NVIDIA Jetson AGX Orin Developer Kit"
    assert gpu_driver(orin.root) in ("L4T 35.4.1", "L4T 36.4.0")
    told = describe(orin.root, {"TVM_NUM_THREADS": "8"})
    assert told["power"]["cuda"].startswith("MAXN (0, ")
    assert told["cpu_model"] == board_name(orin.root)


def test_a_container_without_the_device_tree_is_a_board_too(orin: JetsonFiles) -> None:
    (orin.root / "proc/device-tree/compatible").unlink()
    assert power_mode(orin.root).startswith("MAXN (0, ")


def test_the_mode_changes_with_nvpmodel(orin: JetsonFiles) -> None:
    before = power_mode(orin.root)
    orin.mode(2)
    assert power_mode(orin.root).startswith("30W (2, ")
    orin.mode(0)
    assert power_mode(orin.root) == before


def test_before_its_first_change_the_default_mode_holds(orin: JetsonFiles) -> None:
    (orin.root / "var/lib/nvpmodel/status").unlink()
    assert power_mode(orin.root).startswith("30W (2, ")


def test_other_settings_under_the_same_name_are_another_mode(orin: JetsonFiles) -> None:
    orin.mode(2)
    before = power_mode(orin.root)
    orin.put("etc/nvpmodel.conf", SETTINGS.replace("GPU MAX_FREQ 612000000", "# as it was:\nGPU   MAX_FREQ 612000000"))
    assert power_mode(orin.root) == before
    orin.put("etc/nvpmodel.conf", SETTINGS.replace("612000000", "408000000"))
    assert power_mode(orin.root) != before
    assert power_mode(orin.root).startswith("30W (2, ")


@pytest.mark.parametrize(
    ("settings", "status", "told"),
    [
        ("", "pmode:0003 fmode:quiet", "mode 3"),
        (SETTINGS, "pmode:0007", "mode 7"),
        ("", "", ""),
        ("< POWER_MODEL ID=x NAME= >", "pmode:", ""),
    ],
)
def test_files_that_say_less_give_what_they_say(tmp_path: Path, settings: str, status: str, told: str) -> None:
    orin = JetsonFiles(tmp_path)
    orin.put("etc/nvpmodel.conf", settings)
    orin.put("var/lib/nvpmodel/status", status)
    assert power_mode(orin.root) == told


@pytest.mark.parametrize("limit", ["devfreq-17000000.gpu", "thermal-devfreq-0", "thermal-devfreq-17000000.gpu"])
def test_where_heat_leaves_the_clock_no_room_nobody_knows_whether_it_is_held(orin: JetsonFiles, limit: str) -> None:
    free = power_mode(orin.root, "cuda")
    orin.gpu_clock(306_000_000, 306_000_000, 306_000_000)
    orin.cooling(9, limit, 2)
    hot = power_mode(orin.root, "cuda")
    assert hot == f"{free}, clock lowered by heat"
    assert mode_of(hot) == without_heat(hot) == free
    orin.cooling(9, limit, 0)
    orin.cooling(2, "gpu-throttle-alert", 1)  # it lowers the clock, and not its limits
    held = power_mode(orin.root, "cuda")
    assert held == without_heat(held) == f"{free}, clock held"
    assert mode_of(held) == free
    orin.cooling(9, limit, 2)
    orin.gpu_clock(306_000_000, 306_000_000, 306_000_000, governor="performance")
    assert power_mode(orin.root, "cuda") == held  # people have set that


def test_heat_of_the_other_part_of_the_chip_is_none_of_this_clock(orin: JetsonFiles) -> None:
    orin.cooling(8, "cpufreq-cpu0", 3)
    orin.gpu_clock(1_300_500_000, 1_300_500_000, 1_300_500_000)
    assert power_mode(orin.root, "cuda").endswith(", clock held")
    for cores in (0, 4):
        orin.cpu_clock(cores, 729_600, 729_600)
    assert power_mode(orin.root, "cpu").endswith(", clock lowered by heat")


def test_a_clock_that_is_held_is_told_for_each_kind_of_device(orin: JetsonFiles) -> None:
    free = power_mode(orin.root, "cuda")
    orin.gpu_clock(1_300_500_000, 1_300_500_000, 1_300_500_000)
    assert power_mode(orin.root, "cuda") == f"{free}, clock held"
    assert power_mode(orin.root, "cpu") == free
    orin.gpu_clock(1_300_500_000, 306_000_000, 1_300_500_000, governor="performance")
    assert power_mode(orin.root, "cuda") == f"{free}, clock held"
    orin.cpu_clock(0, 2_201_600, 2_201_600)
    assert power_mode(orin.root, "cpu") == free  # the other cores' follows the load
    orin.cpu_clock(4, 2_201_600, 2_201_600)
    assert power_mode(orin.root, "cpu") == f"{free}, clock held"


def test_heat_does_not_change_the_mode(orin: JetsonFiles) -> None:
    held, free = (1_300_500_000, 1_300_500_000), (306_000_000, 1_300_500_000)
    for least, most in (held, free):
        orin.gpu_clock(most, least, most)
        before = power_mode(orin.root, "cuda")
        # The kernel lowers the highest clock, and the lowest one with it where it is above.
        orin.gpu_clock(408_000_000, min(least, 408_000_000), 408_000_000)
        orin.cooling(9, f"devfreq-{Path(orin.gpu).name}", 1)
        assert not differ(before, power_mode(orin.root, "cuda"))
        orin.cooling(9, f"devfreq-{Path(orin.gpu).name}", 0)


def test_the_clock_of_the_gpu_is_not_that_of_its_neighbours(orin: JetsonFiles) -> None:
    assert gpu_clock_folder(orin.root) == orin.root / orin.gpu


def test_the_gpu_may_have_what_the_host_has_available(orin: JetsonFiles) -> None:
    assert shared_free_bytes(orin.root) == 8 << 30
    (orin.root / "proc/meminfo").unlink()
    assert shared_free_bytes(orin.root) is None
