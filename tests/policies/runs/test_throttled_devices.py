"""A device under a CPU quota, or whose hardware lowers its clock: the run says so once."""

from __future__ import annotations

from dataclasses import replace

from fleet_tune.base.domain import Record
from policies.runs.events import RecordsCommitted
from policies.runs.plan import RunPlan
from policies.runs.state import RunState
from policies.search.bandits import TaskBandit
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate


def record(seq: int, device: str, throttled: float, run: str = "run") -> Record:
    measured = replace(ok(1e-3), throttled=throttled)
    return replace(make_record(make_candidate("w@zen5", seq), measured, device=device), run_id=run, seq=seq)


def test_a_throttled_device_is_told_once() -> None:
    state = RunState(RunPlan("run", (), {}, 1), TaskBandit(0))
    state.handle(RecordsCommitted([record(1, "quiet", 0.0), record(2, "almost", 0.04)]), 1.0)
    state.handle(RecordsCommitted([record(3, "earlier", 0.9, "another run")]), 1.0)
    assert state.progress(1.0).notices == ()
    state.handle(RecordsCommitted([record(4, "half", 0.99), record(5, "half", 0.98)]), 2.0)
    state.handle(RecordsCommitted([record(6, "half", 1.0)]), 1e4)
    (notice,) = state.progress(2.0).notices
    assert notice.text.startswith("device half is throttled: the CPU quota of its control group stopped it in 99% of")
    assert notice.times == 1


def test_a_device_whose_hardware_lowers_its_clock_is_told_once() -> None:
    def slowed(seq: int, device: str, by: str) -> Record:
        made = record(seq, device, 0.0)
        return replace(made, measurement=replace(made.measurement, slowed_by=by))

    state = RunState(RunPlan("run", (), {}, 1), TaskBandit(0))
    state.handle(RecordsCommitted([slowed(1, "cool", ""), slowed(2, "orin", "gpu-throttle-alert, oc3")]), 1.0)
    state.handle(RecordsCommitted([slowed(3, "orin", "oc3")]), 2.0)
    (notice,) = state.progress(2.0).notices
    assert notice.text.startswith("the hardware of device orin lowers its clock (gpu-throttle-alert, oc3)")
    assert notice.times == 1
