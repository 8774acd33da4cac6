"""Thirty days of the service on simulated devices in virtual time: with everything that changes and goes wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fleet_tune.base.config.retune_file import load_retune
from fleet_tune.retuning.service import Service, held
from fleet_tune.retuning.state_file import STATE_FILE
from fleet_tune.retuning.version_repository import PublishedVersion, VersionRepository
from policies.retuning.allowance import WINDOW_SECS
from policies.retuning.state import MOST_EVENTS
from tests.helpers.retune_world import BEGIN, KilledError, World, WorldDevice

HOUR, DAY = 3600.0, 86400.0
SHARE = 0.1
DEVICES_EVERY = 6 * HOUR
FILE = """\
folder = "kept"
fleet = "fleet.toml"
hook = ["deploy"]
[[network]]
name = "resnet"
path = "resnet.onnx"
calls_per_day = 3_000_000
[[network]]
name = "bert"
path = "bert.onnx"
calls_per_day = 400_000
[[network]]
name = "rare"
path = "rare.onnx"
calls_per_day = 10
[time]
share = 0.1
span = "10m"
[watch]
files_every = "5m"
[publish]
versions = 3
"""


class Soak:
    """The service on a world, killed and started again; what is published is compared with what is true."""

    def __init__(self, folder: Path, world: World) -> None:
        (folder / "fleet.toml").write_text(
            "".join(f'[[device]]\nname = "{each.name}"\nconnect = "{each.name}:1"\n' for each in world.devices)
        )
        (folder / "retune.toml").write_text(FILE)
        self.config = load_retune(folder / "retune.toml")
        self.world = world
        self.restarts = 0
        self.worse: list[str] = []
        self.published = 0
        publish = VersionRepository.publish

        def compared(
            repository: VersionRepository, network: str, name: str, source: Path, provenance: dict[str, object]
        ) -> PublishedVersion:
            last = repository.current(network, name)
            if last is not None and (last.folder / "network.so").exists():
                made = provenance["network"]
                before = last.provenance["network"]
                assert isinstance(made, dict)
                if made["digest"] == before["digest"]:
                    for device in world.devices:
                        if device.device_class == name and not device.lost:
                            ratio = world.true_secs(source, device) / world.true_secs(last.folder, device)
                            if ratio > 1:
                                self.worse.append(f"{network} on {device.name}: {ratio}")
            self.published += 1
            return publish(repository, network, name, source, provenance)

        self.publish = compared

    def run(self, days: float) -> Service:
        self.world.until = BEGIN + days * DAY
        while True:
            with held(self.config):
                service = Service(self.config, self.world)
                try:
                    service.run()
                    return service
                except KilledError:
                    self.restarts += 1


def used_most(world: World, name: str, devices: int) -> float:
    """The largest share of the devices' time of a class that was used in any 24 hours."""
    spans = [each for each in world.usage if each.device_class == name]
    most = 0.0
    for at, last in enumerate(spans):
        begin, used = last.ended - WINDOW_SECS, 0.0
        for each in reversed(spans[: at + 1]):  # one after the other
            if each.ended <= begin:
                break
            used += (each.ended - max(each.began, begin)) * each.devices
        most = max(most, used)
    return most / (WINDOW_SECS * devices)


def tuned_after(world: World, at: float, network: str, name: str) -> float:
    """Seconds after which a run of a network and class began."""
    times = [begun - at for begun, *what in world.tuned if begun >= at and what == [network, name]]
    return min(times, default=math.inf)


@pytest.fixture
def soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Soak:
    devices = [WorldDevice(f"server-{n}", "server") for n in (1, 2, 3)] + [WorldDevice("board", "board")]
    world = World(devices, {"resnet": 20e-3, "bert": 60e-3, "rare": 5e-3}, seed=7)
    made = Soak(tmp_path, world)
    monkeypatch.setattr(VersionRepository, "publish", made.publish)
    monkeypatch.setattr("os.fsync", id)  # nobody pulls the plug here, and it takes half of the time
    return made


def test_thirty_days(soak: Soak) -> None:
    world = soak.world
    server_2, server_3, board = world.devices[1], world.devices[2], world.devices[3]
    happened: list[tuple[float, str, str, float]] = []  # when, network, class, within how many seconds it is seen
    networks = ("resnet", "bert", "rare")
    again = 900.0

    def change_network(at: float, name: str) -> None:
        world.changes.append((at, lambda: world.digests.update({name: f"from {at}"})))
        happened.extend((at, name, device_class, 300.0) for device_class in ("server", "board"))

    def change_driver(at: float, device_class: str, text: str) -> None:
        def change() -> None:
            world.origins[device_class] = text
            world.penalties.append((world.now, device_class, 1.08))

        world.changes.append((at, change))
        happened.extend((at, name, device_class, DEVICES_EVERY) for name in networks)

    def slow_down(at: float, device_class: str, factor: float, devices: int) -> None:
        """Versions that are older are slower from then on; the probe is not."""
        world.changes.append((at, lambda: world.penalties.append((world.now, device_class, factor))))
        happened.extend((at, name, device_class, devices * DEVICES_EVERY + again) for name in networks)

    happened.extend((BEGIN, name, device_class, 300.0) for name in networks for device_class in ("server", "board"))
    change_network(BEGIN + 4.3 * DAY, "bert")
    change_network(BEGIN + 17.1 * DAY, "resnet")
    change_driver(BEGIN + 8.2 * DAY, "server", "driver 2")
    slow_down(BEGIN + 12.6 * DAY, "server", 1.2, 3)
    slow_down(BEGIN + 21.4 * DAY, "board", 1.15, 1)
    # The board gets hot for good: the probe too.
    world.changes.append((BEGIN + 25.2 * DAY, lambda: setattr(board, "speed", 1.5)))
    happened.extend((BEGIN + 25.2 * DAY, name, "board", DEVICES_EVERY + again) for name in networks)
    # One server alone is odd: nobody is tuned for that.
    odd_at = BEGIN + 27 * DAY
    world.changes.append((odd_at, lambda: setattr(server_3, "odd", 1.3)))
    # Devices are lost and come back.
    for day, device, hours in ((2.0, server_2, 30.0), (10.5, board, 5.0), (15.0, server_3, 200.0)):
        world.changes.append((BEGIN + day * DAY, lambda device=device: setattr(device, "lost", True)))  # type: ignore[misc]
        back = BEGIN + day * DAY + hours * HOUR
        world.changes.append((back, lambda device=device: setattr(device, "lost", False)))  # type: ignore[misc]
    world.changes.sort(key=lambda change: change[0])
    world.kills[:] = sorted(BEGIN + float(day) * DAY for day in world.rng.uniform(0, 30, 60))

    service = soak.run(30.0)

    assert soak.restarts == 60
    assert soak.worse == []
    assert soak.published >= 20
    # A span of each network fits into the share of a day: all that is pending is acted on in one.
    assert all(service.retuner.valuation.bound_secs(each) < 1.1 * DAY for each in service.retuner.view.active())
    late = [
        (at, name, device_class, tuned_after(world, at, name, device_class))
        for at, name, device_class, seen_secs in happened
        if tuned_after(world, at, name, device_class) > seen_secs + 1.1 * DAY
    ]
    assert late == []
    for name, count in (("server", 3), ("board", 1)):
        assert used_most(world, name, count) <= SHARE
    # What nobody calls is tuned when it is triggered, and for nothing else.
    triggers = sum(1 for _, name, *_ in happened if name == "rare")
    assert sum(1 for _, name, _ in world.tuned if name == "rare") <= triggers + soak.restarts // 10
    assert sum(1 for _, name, _ in world.tuned if name == "resnet") > 2 * triggers
    # The odd server is told, and no trigger of its class comes after it.
    assert any(event.kind == "device" and "look at server-3" in event.text for event in service.state.events)
    assert not [
        event
        for event in service.state.events
        if event.kind == "trigger" and event.device_class == "server" and event.at > odd_at
    ]
    assert not [each for each in service.retuner.view.active() if each.pending]
    # Everything that is kept is bounded.
    assert len(service.state.events) <= MOST_EVENTS
    assert (soak.config.folder / STATE_FILE).stat().st_size < 300_000
    for network, device_class in service.repository.places():
        versions = service.repository.versions(network, device_class)
        assert len(versions) <= 5
        current = service.repository.current(network, device_class)
        assert current is not None
        assert current.number == versions[-1].number
    assert len(world.hooks) == soak.published
