"""Two versions of a network in turn on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from devices.networks.compiled.network_folder import compile_network
from devices.networks.compiled.tensor_file import write
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import FleetTuneError
from fleet_tune.retuning.service import baselines_of, verdict_of
from fleet_tune.retuning.timing import Timer, compare_versions, time_with_probe, timer_on
from fleet_tune.retuning.version_repository import INPUTS
from policies.measuring.duel import MAX_PAIRS
from policies.retuning.slowdown import Baseline, Finding, found

pytestmark = pytest.mark.timeout(120)


class Rows(nn.Module):
    """Sums over so many products: as many times the work."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.full((128, 128), 0.01) for _ in range(times))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            rows = rows @ weight
        return rows


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By how many products they take."""
    folder, of_class = tmp_path_factory.mktemp("versions"), DeviceClass("cpu", resolve_target("native", 1))
    made = {}
    for times in (1, 4):
        rows = torch.ones(32, 128)
        lowered = import_network(load_network((Rows(times).eval(), (rows,))), of_class)
        made[times] = compile_network(lowered, {}, folder / str(times))
        write(made[times] / INPUTS, [rows.numpy()])
    return made


@pytest.fixture(scope="module")
def timer() -> Iterator[Timer]:
    with timer_on(DeviceConfig(name="here", target="native", threads=1)) as opened:
        yield opened


def test_a_version_of_a_quarter_of_the_work_is_faster_and_never_the_other_way(
    timer: Timer, versions: dict[int, Path]
) -> None:
    comparison = compare_versions(timer, versions[4], versions[1], to_the_end=False)
    verdict = verdict_of(comparison)
    assert verdict.faster
    assert verdict.ratio < 0.7
    before, after = baselines_of(comparison)
    assert after.network_secs < before.network_secs
    assert after.probe_secs == before.probe_secs > 0
    assert not verdict_of(compare_versions(timer, versions[1], versions[4], to_the_end=False)).faster


def test_on_a_further_device_the_same_version_is_timed_to_the_end(timer: Timer, versions: dict[int, Path]) -> None:
    comparison = compare_versions(timer, versions[1], versions[1], to_the_end=True)
    assert len(comparison.turns) == MAX_PAIRS or verdict_of(comparison).faster


def test_a_version_that_runs_no_more_is_told_and_a_device_that_runs_nothing_is_none(
    timer: Timer, versions: dict[int, Path], tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    for path in versions[1].iterdir():
        (torn / path.name).write_bytes(path.read_bytes())
    (torn / "network.so").write_bytes(b"\0" * 4096)
    comparison = compare_versions(timer, torn, versions[1], to_the_end=False)
    assert comparison.last_problem
    assert not comparison.turns
    with pytest.raises(FleetTuneError):
        compare_versions(timer, versions[1], torn, to_the_end=False)
    assert timer.secs(versions[1]) > 0, "the device is as it was"


def test_what_takes_four_times_as_long_as_its_baseline_is_seen(timer: Timer, versions: dict[int, Path]) -> None:
    pairs = time_with_probe(timer, versions[1], None, slower=0.05, drift=0.25)
    secs = [pair.network_secs for pair in pairs]
    fast = Baseline(min(secs) / 4, pairs[0].probe_secs)
    seen = time_with_probe(timer, versions[1], fast, slower=0.05, drift=0.25)
    assert found(seen, fast, 0.05, 0.25) in (Finding.SLOWER, Finding.DRIFTED)
