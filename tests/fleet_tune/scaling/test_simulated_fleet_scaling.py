"""The real runtime around simulated devices, and what is shown of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fleet_tune.base.errors import ClusterError, RequestError
from fleet_tune.cli import main as cli
from fleet_tune.scaling import simulated_fleet
from fleet_tune.scaling.simulated_fleet import scale_request

pytestmark = pytest.mark.timeout(300)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_counts_of_devices_are_measured_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulated_fleet, "WARM_UP_SECS", 3.0)
    picture = tmp_path / "scale.svg"
    times = "--candidate 0.05 --build 0.05 --seconds 8"  # long enough for a machine that is busy
    assert cli.main(f"scale --devices 1,4 {times} --json --svg {picture}".split()) == 0
    shown = capsys.readouterr()
    one, four = json.loads(shown.out.splitlines()[-1])["rows"]
    assert (one["devices"], four["devices"]) == (1, 4)
    assert list(one["busy_by_class"]) == ["board"]
    assert list(four["busy_by_class"]) == list(four["bound"]) == ["board", "server", "card"]
    for row in (one, four):
        assert row["trials_a_second"] > 0
        assert 0 < row["busy"] < 2  # a batch that ends just inside of the time counts whole
        assert {"scheduler", "recorder", "searchers", "devices (simulated)", "this command"} <= row["roles"].keys()
        assert row["roles"]["scheduler"]["cpu_secs_a_record"] > 0
        assert row["roles"]["recorder"]["memory_bytes"] > 2**20
        assert row["cpu_secs_a_record"] < sum(role["cpu_secs_a_record"] for role in row["roles"].values())
    assert "trials/s" in shown.err
    text = "".join(ElementTree.parse(picture).getroot().itertext())
    assert "trials/s" in text
    assert "memory," in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--devices 1,x", "--devices has counts from 1 to 100000, not 'x'"),
        ("--devices 0", "--devices has counts from 1 to 100000, not '0'"),
        ("--devices 1,,2", "--devices has counts from 1 to 100000, not ''"),
        ("--devices 4,4", "--devices has a count twice: 4,4"),
        ("--devices 1 --candidate 0", "what a candidate takes is a positive, finite number of seconds"),
        ("--devices 1 --build nan", "what a build takes is a positive, finite number of seconds"),
        ("--devices 1 --seconds -3", "the time for each count is a positive, finite number of seconds"),
        ("--devices 1 --address local", "the address of a Ray cluster is HOST:PORT, or auto"),
        ("--devices 1 --faults 2", "the share of faults is a number from 0 to 1, not 2.0"),
        ("--devices 1 --svg /nowhere/at/all.svg", "--svg: /nowhere/at/all.svg cannot be written"),
        ("--devices 64 --candidate 0.01 --build 3600", "a fleet of 64 needs more than 200,000 builders with"),
        ("--devices 1 --candidate 1e-300 --build 1e9", "a fleet of 1 needs more than 200,000 builders with"),
        ("net.onnx --devices 1", "a fleet is measured while it tunes a network, and --fleet is not given"),
        ("--devices 1 --fleet f.toml", "a fleet is measured while it tunes a network, and NETWORK is not given"),
        ("--devices 1 --trust-model", "simulated devices tune no network: --inputs, --shapes and --trust-model are"),
        ("--devices 1 --shapes n=1..8", "simulated devices tune no network: --inputs, --shapes and --trust-model are"),
        ("n.onnx --fleet f.toml --devices 1 --faults 0", "--candidate, --build and --faults are of simulated devices"),
        ("n.onnx --fleet /no/f.toml --devices 1", "cannot read the fleet file /no/f.toml: No such file or directory"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_anything_starts(
    options: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["scale", *options.split()]) == 2
    error, next_step = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {told}")
    assert next_step.startswith("next: ")


def test_a_cluster_that_is_lost_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Run:
        """Goes on for ever."""

        def __init__(self, *_args: object) -> None:
            self.goes_on = asyncio.Event()

        async def start(self) -> None:
            did.append("started")
            await self.goes_on.wait()

        async def stop(self) -> None:
            did.append("stopped")

    class Lost:
        folder = tmp_path

        async def lost(self) -> str:
            while not did:
                await asyncio.sleep(0)
            return "nobody listens at it any more"

    monkeypatch.setattr(simulated_fleet, "connected", lambda _address: contextlib.nullcontext(Lost()))
    monkeypatch.setattr(simulated_fleet, "SimulatedRun", Run)
    request = scale_request("1", candidate_secs=0.5, build_secs=0.6, faults=0.02, secs=20.0)
    with pytest.raises(ClusterError, match="the Ray cluster of this run is lost: nobody listens at it any more"):
        simulated_fleet.run_scaling(request, lambda _count: None)
    assert did == ["started", "stopped"]


def test_counts_may_stand_apart() -> None:
    request = scale_request(" 1, 2,16", candidate_secs=0.5, build_secs=0.6, faults=0.02, secs=20.0)
    assert request.devices == (1, 2, 16)
    with pytest.raises(RequestError, match="give counts as 1,2,4,8"):
        scale_request("1;2", candidate_secs=0.5, build_secs=0.6, faults=0.02, secs=20.0)
