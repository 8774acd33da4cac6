"""Readiness of a device, and the patience with a class none of whose devices can work."""

from __future__ import annotations

from fleet_tune.base.device_state import Admin, DeviceState
from policies.runs.commands import Abort, Log, ProbeDevice, RestartDevice
from policies.runs.events import DeviceProbed, DeviceUnreachable
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.stages.class_patience import ClassPatience
from policies.runs.stages.leases import Leases
from policies.runs.stages.readiness import Readiness
from policies.runs.tasks import TaskTrials
from policies.runs.times.timers import Timers
from tests.helpers.tasks import make_task

PATIENCE_SECS = 60.0


class Stage:
    """One device of one class, with a task for it."""

    def __init__(self, admin: Admin = Admin.ACTIVE) -> None:
        planned = PlannedTask(make_task(), ("rule",), 1e-9)
        self.plan = RunPlan("run", (planned,), {"a": "board"}, builders=1, device_patience_secs=PATIENCE_SECS)
        self.fleet = Fleet(self.plan.devices, "run")
        self.fleet.restore({"a": DeviceState()}, {"a": (admin, "")}, 0.0, 0.0)
        self.timers, self.leases = Timers(), Leases(self.fleet)
        self.leases.add_class("board")
        self.leases.add_device("a", "board")
        tasks = {planned.task.id: TaskTrials(planned)}
        self.patience = ClassPatience(PATIENCE_SECS, self.fleet, tasks, self.leases, self.timers, (), None)
        self.readiness = Readiness(self.plan, self.fleet, self.leases, self.patience, self.timers)


def test_a_device_is_probed_before_it_is_idle_and_again_when_the_probe_is_due() -> None:
    stage = Stage()
    assert stage.readiness.look_at("a", 0.0) == [ProbeDevice("a")]
    assert stage.readiness.look_at("a", 0.0) == [], "the probe runs"
    assert stage.readiness.checked(DeviceProbed("a", 1e-3), 1.0) == []
    assert stage.readiness.look_at("a", 1.0) == []
    assert stage.leases.idle_devices("board") == ["a"]
    due = 1.0 + stage.plan.check_every_secs
    assert stage.readiness.look_at("a", due) == [ProbeDevice("a")]
    assert stage.leases.idle_devices("board") == []


def test_a_failed_check_is_retried_a_little_later_and_a_hanging_process_is_restarted() -> None:
    stage = Stage()
    stage.readiness.look_at("a", 0.0)
    commands = stage.readiness.checked(DeviceUnreachable("a", "no route", hangs=True), 1.0)
    assert RestartDevice("a") in commands
    assert stage.readiness.look_at("a", 1.5) == []
    assert stage.readiness.look_at("a", 1.0 + stage.plan.flow.backoff_secs) == [ProbeDevice("a")]


def test_a_hot_device_is_left_alone_until_its_rest_is_over_or_the_tuning_is() -> None:
    stage = Stage()
    stage.readiness.look_at("a", 0.0)
    stage.readiness.checked(DeviceProbed("a", 1e-3), 0.0)
    slot = stage.leases.slots["a"]
    assert stage.readiness.measured(slot, True, 1.0) == [Log("info", "device a is hot: it cools down for 10 s")]
    assert stage.readiness.look_at("a", 1.0) == []
    assert slot.detail == "it cools down"
    assert stage.leases.idle_devices("board") == []
    assert stage.timers.due(11.0) == ["a"]
    assert stage.readiness.look_at("a", 11.0) == []
    assert stage.leases.idle_devices("board") == ["a"]
    stage.readiness.measured(slot, True, 12.0)
    assert slot.cools_until == 32.0
    stage.readiness.end_tuning()
    stage.readiness.look_at("a", 13.0)
    assert stage.leases.idle_devices("board") == ["a"]
    stage.readiness.measured(slot, False, 14.0)
    stage.readiness.measured(slot, True, 15.0)
    assert slot.cools_until == 25.0  # it was cool in between


def test_a_class_that_stays_hopeless_ends_the_run() -> None:
    stage = Stage(Admin.MAINTENANCE)
    [warning] = stage.readiness.look_at("a", 0.0)
    assert isinstance(warning, Log)
    assert "no device of class board can work" in warning.text
    assert stage.readiness.look_at("a", PATIENCE_SECS - 1) == []
    [end] = stage.readiness.look_at("a", PATIENCE_SECS)
    assert isinstance(end, Abort)


def test_no_missing_device_ends_a_run_that_tunes_no_more() -> None:
    stage = Stage(Admin.MAINTENANCE)
    stage.readiness.end_tuning()
    assert stage.readiness.look_at("a", 10 * PATIENCE_SECS) == []


def test_a_class_without_devices_is_deserted_after_the_patience() -> None:
    stage = Stage()
    stage.leases.remove_device("a", 0.0)
    stage.patience.device_left("board")
    given_up, [warning] = stage.patience.deserted(1.0)
    assert given_up == []
    assert isinstance(warning, Log)
    assert stage.patience.deserted(PATIENCE_SECS) == ([], [])
    assert stage.patience.deserted(1.0 + PATIENCE_SECS) == (["board"], [])
    stage.patience.device_joins("board")
    stage.leases.add_device("a", "board")
    assert stage.patience.deserted(2.0 + PATIENCE_SECS) == ([], [])
