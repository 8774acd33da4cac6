"""The service step by step, in virtual time: what it does when something goes wrong, and what it remembers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from fleet_tune.base.config.retune_file import RetuneConfig, load_retune
from fleet_tune.base.errors import RetuneError
from fleet_tune.report.retuning import render_status, status_json
from fleet_tune.retuning.running import ConfigWatch
from fleet_tune.retuning.service import Service, held, rules_of
from fleet_tune.retuning.state_file import STATE_FILE, load_state
from fleet_tune.retuning.step_runner import OtherNetworkError
from fleet_tune.retuning.version_repository import VersionRepository
from policies.retuning.retuner import Retuner
from policies.retuning.state import Trigger
from tests.helpers.commands import fleet_tune_here
from tests.helpers.retune_world import BEGIN, KilledError, World, WorldDevice

FILE = """\
folder = "kept"
fleet = "fleet.toml"
hook = ["deploy"]
[[network]]
name = "resnet"
path = "resnet.onnx"
calls_per_day = 1000
[time]
share = 0.2
payback = "1s"
"""
HOUR = 3600.0


@pytest.fixture
def config(tmp_path: Path) -> RetuneConfig:
    (tmp_path / "fleet.toml").write_text('[[device]]\nname = "a"\nconnect = "a:1"\n')
    (tmp_path / "retune.toml").write_text(FILE)
    return load_retune(tmp_path / "retune.toml")


@pytest.fixture
def world() -> World:
    return World([WorldDevice("a", "server")], {"resnet": 20e-3})


def _run(config: RetuneConfig, world: World, hours: float = 0.0) -> Service:
    world.until = world.now + hours * HOUR
    with held(config):
        service = Service(config, world)
        service.run(once=not hours)
    return service


def test_once_tunes_what_is_new_publishes_it_and_ends(config: RetuneConfig, world: World) -> None:
    world.until = BEGIN + HOUR
    with held(config):
        service = Service(config, world)
        service.run(once=True)
    [each] = service.retuner.view.active()
    assert each.version == 1
    assert not each.pending
    assert each.baselines.keys() == {"a"}  # taken by a check after it
    assert len(world.tuned) == 1  # what is not worth it is not done
    [about] = world.hooks
    assert about["FLEET_TUNE_NETWORK"] == "resnet"
    assert about["FLEET_TUNE_VERSION"] == "1"
    current = service.repository.current("resnet", "server")
    assert current is not None
    assert current.provenance["why"] == "the first version"
    assert current.provenance["triggers"] == ["new network"]


def test_a_hook_that_fails_is_told_and_changes_nothing(config: RetuneConfig, world: World) -> None:
    world.hook_problem = "it ended with code 3"
    service = _run(config, world, 1.0)
    assert service.state.hook_failures == 1
    assert any(event.kind == "hook" and "code 3" in event.text for event in service.state.events)
    assert service.repository.current_number("resnet", "server") == 1
    assert not service.retuner.view.active()[0].pending


@pytest.mark.parametrize("when", ["before it is noted", "before the hook"])
def test_a_service_that_is_killed_after_a_publish_runs_its_hook_when_it_starts_again(
    config: RetuneConfig, world: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    if when == "before the hook":
        hook = world.hook

        def killed(words: object, about: object) -> str:  # noqa: ARG001
            world.hook = hook  # type: ignore[method-assign]
            raise KilledError

        world.hook = killed  # type: ignore[method-assign,assignment]
    else:
        publish = VersionRepository.publish

        def published(*given: object) -> object:
            monkeypatch.setattr(VersionRepository, "publish", publish)
            publish(*given)  # type: ignore[arg-type]
            raise KilledError

        monkeypatch.setattr(VersionRepository, "publish", published)
    with pytest.raises(KilledError):
        _run(config, world, 1.0)
    assert not world.hooks
    service = _run(config, world, 1.0)
    assert (world.hooks[0]["FLEET_TUNE_VERSION"], world.hooks[0]["FLEET_TUNE_BEFORE"]) == ("1", "")
    assert not load_state(config.folder / STATE_FILE).untold
    assert len(world.hooks) == len(service.repository.versions("resnet", "server")), "each of them once"


def test_what_is_left_of_a_network_that_the_file_does_not_name_any_more_is_removed(
    config: RetuneConfig, world: World
) -> None:
    _run(config, world, 1.0)
    left = config.folder / "work" / "before" / "server" / "0"
    left.mkdir(parents=True)
    (left / "records.db").write_text("")
    _run(config, world, 1.0)
    assert [each.name for each in (config.folder / "work").iterdir()] == ["resnet"]


def test_a_restart_goes_on_where_it_was(config: RetuneConfig, world: World) -> None:
    world.kills.append(BEGIN + 100.0)  # while it tunes
    with pytest.raises(KilledError):
        _run(config, world, 1.0)
    state = load_state(config.folder / STATE_FILE)
    assert state.doing is not None
    assert state.doing.action.kind == "tune"
    service = _run(config, world, 1.0)
    assert [event.kind for event in service.state.events if event.kind == "restart"] == ["restart"]
    assert service.retuner.view.active()[0].version == 1
    runs = len(world.tuned)
    assert runs == 2  # the one that was killed, and once more
    assert _run(config, world, 1.0).retuner.view.active()[0].version == 1
    assert len(world.tuned) == runs  # what is known stays known


def test_what_fails_is_tried_again_later_and_later(config: RetuneConfig, world: World) -> None:
    world.changes.append((BEGIN + 50.0, lambda: setattr(world.devices[0], "lost", True)))
    world.changes.append((BEGIN + 5 * HOUR, lambda: setattr(world.devices[0], "lost", False)))
    service = _run(config, world, 4.0)
    [each] = service.retuner.view.active()
    assert each.failures == 1  # a device that is known to be lost is not tuned on
    assert each.problem == "a device was lost"
    assert any(event.kind == "lost" for event in service.state.events)
    service = _run(config, world, 3.0)
    [each] = service.retuner.view.active()
    assert each.version == 1
    assert each.failures == 0


def test_a_rollback_is_seen_and_the_same_is_not_published_again(config: RetuneConfig, world: World) -> None:
    service = _run(config, world, 1.0)
    world.digests["resnet"] = "second"
    service = _run(config, world, 2.0)
    assert service.repository.current_number("resnet", "server") == 2
    assert not service.repository.is_rolled_back("resnet", "server")
    service.repository.roll_back("resnet", "server")
    service = _run(config, world, 2.0)
    [each] = service.retuner.view.active()
    assert service.repository.is_rolled_back("resnet", "server")
    assert each.version == 1
    assert any(event.kind == "replaced" for event in service.state.events)
    world.origins["server"] = "driver 2"  # tunes it anew; the same comes out of it
    published = service.repository.versions("resnet", "server")[-1]
    tune = world.tune

    def the_same(*arguments: object) -> object:
        ran = tune(*arguments)  # type: ignore[arg-type]
        assert ran.folder is not None
        (ran.folder / "manifest.json").write_text(json.dumps(published.manifest))
        return ran

    world.tune = the_same  # type: ignore[method-assign,assignment]
    service = _run(config, world, 8.0)
    assert any(event.text.endswith("was rolled back") for event in service.state.events)
    assert service.repository.current_number("resnet", "server") == 1


def test_a_network_that_changed_without_its_file_is_published(config: RetuneConfig, world: World) -> None:
    _run(config, world, 1.0)
    world.origins["server"] = "driver 2"  # tunes it anew
    tune, refused = world.tune, []

    def other(*arguments: object) -> object:
        if not refused:
            refused.append(True)
            raise OtherNetworkError("the output folder belongs to another run")
        ran = tune(*arguments)  # type: ignore[arg-type]
        assert ran.folder is not None
        manifest = json.loads((ran.folder / "manifest.json").read_text())
        (ran.folder / "manifest.json").unlink()
        (ran.folder / "manifest.json").write_text(json.dumps({**manifest, "model_fingerprint": "other weights"}))
        return ran

    world.tune = other  # type: ignore[method-assign,assignment]
    service = _run(config, world, 8.0)
    current = service.repository.current("resnet", "server")
    assert current is not None
    assert current.number == 2
    assert current.provenance["why"] == "the network has changed, and its file has not"
    assert not service.retuner.view.active()[0].failures


def test_a_version_that_somebody_removed_is_made_again(config: RetuneConfig, world: World) -> None:
    import shutil

    service = _run(config, world, 1.0)
    shutil.rmtree(service.repository.place("resnet", "server"))
    service = _run(config, world, 2.0)
    assert service.repository.current_number("resnet", "server") == 1
    assert any(Trigger.NEW_NETWORK in event.text and "gone" in event.text for event in service.state.events)


@pytest.mark.parametrize("file", ["network.so", "manifest.json"])
def test_a_version_that_is_damaged_on_the_disk_is_made_again_at_once(
    config: RetuneConfig, world: World, file: str
) -> None:
    service = _run(config, world, 1.0)
    tuned = len(world.tuned)
    damaged = service.repository.place("resnet", "server") / "current" / file
    damaged.write_bytes(damaged.read_bytes()[:-2])
    assert service.repository.damage("resnet", "server").startswith(f"{file} of version 1 is damaged")
    service = _run(config, world, 1.0)
    assert len(world.tuned) == tuned + 1
    assert any(Trigger.NEW_NETWORK in event.text and "is damaged" in event.text for event in service.state.events)
    current = service.repository.current("resnet", "server")
    assert current is not None
    assert current.number == 2
    assert current.provenance["why"].startswith(f"{file} of version 1 is damaged")
    assert not service.repository.damage("resnet", "server", anew=True)
    assert service.retuner.view.active()[0].version == 2


def test_of_a_damaged_version_and_one_that_was_rolled_back_neither_is_published(
    config: RetuneConfig, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = _run(config, world, 1.0)
    (service.repository.place("resnet", "server") / "current" / "network.so").write_bytes(b"")
    monkeypatch.setattr(VersionRepository, "is_withdrawn", lambda *_: True)  # of what the run finds
    service = _run(config, world, 1.0)
    assert service.repository.current_number("resnet", "server") == 1
    assert "go back to a version that is whole" in service.retuner.view.active()[0].problem


def test_a_full_disk_is_waited_for(
    config: RetuneConfig, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fleet_tune.base.records.files import atomic_file

    replace = atomic_file.os.replace

    def full(source: object, target: object) -> None:
        is_ours = "/networks/" in str(target) or str(target).endswith(STATE_FILE)
        if is_ours and BEGIN + 10.0 < world.now < BEGIN + 3 * HOUR:
            raise OSError(28, "No space left on device")
        replace(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(atomic_file.os, "replace", full)
    service = _run(config, world, 6.0)
    assert "what is known is not written: no space left" in caplog.text
    assert any(event.kind == "problem" and "no space left" in event.text for event in service.state.events)
    assert service.retuner.view.active()[0].version == 1
    assert load_state(config.folder / STATE_FILE).deployments[0].version == 1


def test_two_services_refuse_each_other(config: RetuneConfig, tmp_path: Path) -> None:
    other = FILE.replace('"kept"', f'"other"\nstore = "{config.store}"')
    (tmp_path / "other.toml").write_text(other)
    with held(config):
        with pytest.raises(RetuneError, match=r"another service \(process \d+\) .* the folder"), held(config):
            pass
        with (
            pytest.raises(RetuneError, match="with the store"),
            held(load_retune(tmp_path / "other.toml")),
        ):
            pass
    with held(config):
        pass


def test_a_service_ends_when_the_store_is_another_ones_by_now(config: RetuneConfig, world: World) -> None:
    def check_sole_owner() -> None:
        if world.now > BEGIN + HOUR:
            raise RetuneError("another service keeps networks tuned", "end that one")

    world.until = world.now + 3 * HOUR
    with held(config), pytest.raises(RetuneError, match="another service"):
        Service(config, world, check_sole_owner=check_sole_owner).run()
    assert world.now < BEGIN + 2 * HOUR
    assert load_state(config.folder / STATE_FILE).deployments[0].version == 1, "what it did is kept"


def test_its_own_files_may_change_meanwhile(config: RetuneConfig, caplog: pytest.LogCaptureFixture) -> None:
    changes = ConfigWatch(config)
    assert not changes()
    fleet = config.fleet_path
    assert fleet is not None
    fleet.write_text(fleet.read_text() + '[[device]]\nname = "b"\nconnect = "b:1"\n')
    assert changes()
    assert [device.name for device in changes.config.fleet.devices] == ["a", "b"]
    assert not changes()
    config.source.path.write_text(FILE.replace("share = 0.2", "share = 2"))
    assert not changes()
    assert "used as it was" in caplog.text
    assert "share = 2 is not valid" in caplog.text
    config.source.path.write_text(FILE.replace('"kept"', '"elsewhere"'))
    assert not changes()
    assert "another folder or store" in caplog.text
    config.source.path.write_text(FILE.replace("share = 0.2", "share = 0.3"))
    assert changes()
    assert changes.config.time.share == 0.3


def test_what_changed_has_the_service_begin_anew(config: RetuneConfig, world: World) -> None:
    with held(config):
        service = Service(config, world, lambda: bool(world.tuned))
        service.run()
    assert len(world.tuned) == 1


def test_a_file_of_a_newer_version_or_no_file_at_all_is_told(config: RetuneConfig, world: World) -> None:
    _run(config, world, 1.0)
    path = config.folder / STATE_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema_version": 2}))
    with pytest.raises(RetuneError, match="newer version"):
        load_state(path)
    path.write_text("[")
    with pytest.raises(RetuneError, match="cannot be read"):
        load_state(path)


def test_the_command_line_shows_what_is_kept_and_goes_back(config: RetuneConfig, world: World) -> None:
    file = str(config.source.path)
    assert fleet_tune_here("retune", "versions", file).returncode == 0
    _run(config, world, 1.0)
    world.digests["resnet"] = "second"
    _run(config, world, 2.0)
    status = fleet_tune_here("retune", "status", file, "--json").json()
    assert status["running"] is False
    [each] = status["deployments"]
    assert each["version"] == 2
    assert each["next_hour"]["saved_secs"] > 0
    assert each["worth"] is False
    assert "not pay" in fleet_tune_here("retune", "status", file).stdout
    [found] = fleet_tune_here("retune", "versions", file, "resnet", "--json").json()["deployments"]
    assert [version["version"] for version in found["versions"]] == [1, 2]
    done = fleet_tune_here("retune", "rollback", file, "resnet")
    assert done.returncode == 0
    assert "version 1 is the current one now, instead of 2" in done.stdout
    assert "warning: the hook failed: deploy" in done.stderr  # there is no such program
    done = fleet_tune_here("retune", "rollback", file, "bert")
    assert done.returncode == 2
    assert "bert has no version" in done.stderr
    done = fleet_tune_here("retune", file + "x")
    assert done.returncode == 2
    assert "cannot read the file" in done.stderr
    done = fleet_tune_here("retune", file)
    assert "no network of" in done.stderr  # there is no such file
    assert "no such file" in done.stderr


def test_the_status_says_what_is_being_done(config: RetuneConfig, world: World) -> None:
    world.kills.append(BEGIN + 100.0)
    with pytest.raises(KilledError):
        _run(config, world, 1.0)
    file = str(config.source.path)
    assert "the service does not run;" in fleet_tune_here("retune", "status", file).stdout
    with held(config):
        shown = fleet_tune_here("retune", "status", file).stdout
        assert "the service runs, tunes resnet on server since" in shown
        assert "(new network)" in shown
        said = fleet_tune_here("retune", "status", file, "--json").json()
        assert (said["doing"]["action"]["kind"], said["waits_for"]) == ("tune", None)


def test_the_status_says_why_nothing_is_done(config: RetuneConfig, world: World) -> None:
    file = str(config.source.path)
    config.source.path.write_text(FILE.replace("share = 0.2", "share = 0.001"))
    tiny = load_retune(config.source.path)
    _run(tiny, world, 1.0)
    why = "the share of 0.1% is too small for any run of resnet on server"
    with held(tiny):
        state = load_state(tiny.folder / STATE_FILE)
        assert state.looked_at < world.now
        retuner = Retuner(rules_of(tiny), state, lambda *_: "")
        assert json.loads(status_json(retuner, world.moment(), True))["waits_for"] == why
        assert f"and waits: {why}" in _printed(render_status(retuner, world.moment(), True))
        # By the clock of today the devices were asked long ago.
        shown = fleet_tune_here("retune", "status", file).stdout
        assert "the service runs and begins something; it may use 0.1% of the time" in shown


def _printed(what: RenderableType) -> str:
    with io.StringIO() as text:
        Console(file=text, width=200).print(what)
        return text.getvalue()


def test_what_takes_longer_than_it_may_is_late(config: RetuneConfig, world: World) -> None:
    late: list[list[float]] = []
    tune, hook, wait = world.tune, world.hook, world.wait

    def noted(limit_secs: float) -> None:
        late.append([service.late_secs(world.now + limit_secs + over) for over in (0.0, 301.0)])

    def tunes(*arguments: object) -> object:
        noted(float(str(arguments[-1])))
        return tune(*arguments)  # type: ignore[arg-type]

    def hooks(*arguments: object) -> str:
        noted(300.0)
        return hook(*arguments)  # type: ignore[arg-type]

    def waits(secs: float) -> None:
        noted(secs)
        wait(secs)

    world.tune, world.hook, world.wait = tunes, hooks, waits  # type: ignore[method-assign,assignment]
    world.until = BEGIN + HOUR
    with held(config):
        service = Service(config, world)
        assert service.late_secs(world.now) == 0
        service.run()
    assert len(late) > 10
    assert all(in_time == 0 for in_time, _ in late)
    assert all(1 <= over <= 1.5 for _, over in late)


def test_metrics_tell_what_is_known(config: RetuneConfig, world: World) -> None:
    from urllib.request import urlopen

    from fleet_tune.retuning.metrics import RetuneMetrics

    service = _run(config, world, 1.0)
    metrics = RetuneMetrics(service, world, 0)
    try:
        with urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
    finally:
        metrics.close()
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    of = '{device_class="server",network="resnet"}'
    assert float(series[f"fleet_tune_retune_version{of}"]) == 1
    assert 0 < float(series[f"fleet_tune_retune_latency_seconds{of}"]) < 20e-3
    assert float(series['fleet_tune_retune_used_ratio{device_class="server"}']) < 0.2
    assert float(series["fleet_tune_retune_share_ratio"]) == 0.2
    assert float(series["fleet_tune_retune_late_seconds"]) == 0
    assert float(series[f"fleet_tune_retune_rolled_back{of}"]) == 0
    assert float(series[f"fleet_tune_retune_bound_seconds{of}"]) > 86400
    assert float(series['fleet_tune_retune_unreadable{network="resnet"}']) == 0
    assert float(series["fleet_tune_retune_published_total"]) == 1
    documented = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    for name in {line.partition("{")[0].partition(" ")[0] for line in series}:
        assert f"`{name}`" in documented
