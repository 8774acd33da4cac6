"""What a session hands on from the fleet file, and what it asks of those it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from actors.clients.device import DeviceClient
from actors.clients.handles import ActorHandles
from actors.clusters.cluster import connected
from actors.host_actors import HostActors
from actors.run_hosts import AbsentDevices, RunHosts
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from actors.session_plan import SessionPlan
from actors.tuning_session import TuningSession
from devices.device_factory import open_device
from devices.host.versions import HostVersions
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.domain import Limits, StopRule
from fleet_tune.base.errors import FleetFileError, VersionsDifferError
from policies.search.methods.random import RANDOM
from tests.actors.conftest import search_task
from tests.helpers.devices import make_fingerprint


class Made:
    """Stands in for the Ray class of ``cls`` and for its actor, whose every call is answered with None."""

    made: dict[type, tuple[Any, ...]]

    def __init__(self, cls: type, **_options: Any) -> None:
        self._cls = cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Call()

    def remote(self, *arguments: Any) -> Made:
        Made.made[self._cls] = arguments
        return self


class Call:
    async def remote(self, *_arguments: Any) -> None:
        """Nothing happens."""


class LocalRunner:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node_id = "head"

    def here(self) -> str:
        return "here"


@pytest.mark.filterwarnings("ignore:coroutine 'Call.remote' was never awaited")  # one call's answer is not waited for
async def test_devices_measure_as_the_fleet_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = '[[device]]\nname = "a"\n[measure]\ncheck_every_secs = 7\nwarm_up_secs = 0.5\nflush_cache_bytes = 4096\n'
    fleet += "max_cv = 0.2\n"
    (tmp_path / "fleet.toml").write_text(fleet)
    monkeypatch.setattr(Made, "made", {}, raising=False)
    monkeypatch.setattr("actors.run_actors.remote_actor", Made)
    cluster, fleet_config = cast(Any, LocalRunner(tmp_path)), load_fleet(tmp_path / "fleet.toml")
    actors = HostActors(cluster, fleet_config, "run", None, open_device, None, None)
    hosts = RunHosts(cluster, fleet_config, "run", actors, {}, AbsentDevices())
    plan = SessionPlan("run", RANDOM, 0, (search_task("a"),), Limits(trials=10), StopRule(max_batches=7))
    await TuningSession.start(hosts, plan, tmp_path / "records.db", {})
    schedule: SchedulerPlan = Made.made[Scheduler][0]
    assert schedule.run.rule == StopRule(max_batches=7, max_cv=0.2, warm_up_secs=0.5, flush_bytes=4096)
    assert schedule.run.check_every_secs == 7


@pytest.mark.filterwarnings("ignore:coroutine 'Call.remote' was never awaited")
async def test_devices_are_measured_in_the_power_mode_in_which_they_or_their_class_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet.toml").write_text(
        '[[device]]\nname = "a"\n[[device]]\nname = "late"\n[[device]]\nname = "dumb"\n'
    )
    monkeypatch.setattr(Made, "made", {}, raising=False)
    monkeypatch.setattr("actors.run_actors.remote_actor", Made)
    cluster, fleet = cast(Any, LocalRunner(tmp_path)), load_fleet(tmp_path / "fleet.toml")
    actors = HostActors(cluster, fleet, "run", None, open_device, None, None)
    actors.devices.update(dict.fromkeys(("a", "late", "dumb"), Made(Scheduler)))
    entry = search_task("a")
    dumb = make_fingerprint(entry.task.device_class, SIMULATED_CPU)
    prints = {"dumb": dumb, "a": replace(dumb, power="MAXN (0)")}
    hosts = RunHosts(cluster, fleet, "run", actors, prints, AbsentDevices({"late": entry.task.device_class.name}))
    plan = SessionPlan("run", RANDOM, 0, (entry,), Limits(trials=10))
    await TuningSession.start(hosts, plan, tmp_path / "records.db", {})
    handles: ActorHandles = Made.made[Scheduler][2]
    powers = {name: cast(DeviceClient, device)._power for name, device in handles.devices.items()}
    assert powers == {"a": "MAXN (0)", "late": "MAXN (0)", "dumb": ""}


@pytest.mark.usefixtures("ray_cluster")
async def test_another_version_of_tvm_on_a_machine_of_the_cluster_is_told_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"
    (tmp_path / "fleet.toml").write_text(f'[[device]]\nname = "a"\nconnect = "recorded:{data}"\n[build]\nworkers = 1\n')
    monkeypatch.setattr("actors.host_actors.this_host_versions", lambda: HostVersions("desk", {"apache-tvm": "0.99.0"}))
    told = r"builder 0 on .* this machine has TVM 0\.99\.0"
    with connected(None) as cluster, pytest.raises(VersionsDifferError, match=told):
        await RunHosts.start(cluster, load_fleet(tmp_path / "fleet.toml"), "run")


@pytest.mark.usefixtures("ray_cluster")
async def test_a_host_that_is_no_node_of_the_cluster_is_told_with_those_that_are(tmp_path: Path) -> None:
    data = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"
    (tmp_path / "fleet.toml").write_text(f'[[device]]\nname = "a"\nconnect = "recorded:{data}"\nvia = "lab"\n')
    with connected(None) as cluster, pytest.raises(FleetFileError) as caught:
        await RunHosts.start(cluster, load_fleet(tmp_path / "fleet.toml"), "run")
    [node] = cluster.nodes()
    assert caught.value.problem == (
        f"{tmp_path / 'fleet.toml'}, line 4: device 'a': no node of the cluster has the name or address lab, or the "
        f"resource fleet-tune-host:lab (its nodes: {node})"
    )
    assert 1 <= node.free_cpus <= node.cpus
    assert node.free_bytes > 0
