"""The requests of a device's actor to its device, and its answers at the speed of that device."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import ray

from actors.clients.device import TaskArtifacts
from actors.processes.call_rounds import CallRounds
from actors.processes.device import DeviceActor
from devices.protocol import Artifact, Device, MeasureRequest, OracleOutputs
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import (
    Candidate,
    DeviceClass,
    Fingerprint,
    Incumbent,
    Measurement,
    Outcome,
    Record,
    StopRule,
)
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.codec import decode_record
from policies.runs.events import BatchMeasured, BatchPostponed, ShootOutMeasured
from tests.helpers.devices import make_fingerprint

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(autouse=True)
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor has a process of its own, in which torch may not be loaded; here other tests need it."""
    monkeypatch.setattr("actors.processes.device_connection.without_torch", lambda: None)


class Steady:
    """A device on which every kernel takes ``run_secs``, and the probe ``kernel_secs``."""

    def __init__(self) -> None:
        self.run_secs = 1.0
        self.kernel_secs = 1.0
        self.coming: list[float] = []  # of the next probes, instead of kernel_secs
        self.by_candidate: dict[str, float] = {}  # instead of run_secs
        self.asked: list[MeasureRequest] = []
        self.mode = ""
        self.rounds = []

    def fingerprint(self) -> Fingerprint:
        found = make_fingerprint(DeviceClass("class", "target"), SIMULATED_CPU, probe_secs=self.kernel_secs)
        return dataclasses.replace(found, power=self.mode)

    def ping(self) -> float:
        return 0.0

    def probe_secs(self) -> float:
        return self.coming.pop(0) if self.coming else self.kernel_secs

    def power(self) -> str:
        return self.mode

    def vitals(self) -> dict[str, float]:
        return {}

    def add_oracle(self, artifact: Artifact) -> None: ...

    longer_secs: float | None = None  # of a round of kernels
    rounds: list[int]  # kernels of each round

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:  # noqa: ARG002
        self.rounds.append(len(artifacts))
        return self.longer_secs

    is_gone = False
    failing = ""  # id of a candidate
    oracle_problem = ""
    oracles_run = 0
    outputs: OracleOutputs | None = None

    def run_oracle(self, task_id: str) -> str:  # noqa: ARG002
        if self.is_gone:
            raise DeviceUnreachableError("device", "gone")
        self.oracles_run += 1
        return self.oracle_problem

    def use_oracle_outputs(self, task_id: str, outputs: OracleOutputs) -> None:  # noqa: ARG002
        self.outputs = outputs

    def measure(self, request: MeasureRequest) -> Measurement:
        self.asked.append(request)
        assert request.artifact.candidate is not None
        if request.artifact.candidate.id == self.failing:
            return Measurement(Outcome.RUN_ERROR, detail="it fails")
        run_secs = self.by_candidate.get(request.artifact.candidate.id, self.run_secs)
        return Measurement(Outcome.OK, (run_secs,), verified=run_secs < request.incumbent_secs)


class Stored:
    """Stands in for the recorder's client."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.units: dict[str, float] = {}
        self.speeds: dict[str, float] = {}
        self.calls: list[CallSecs] = []

    def get(self) -> Stored:
        """Return it as it is: all is in one process."""
        return self

    def probed_and_wait(self, device_id: str, device_class: str, usual_secs: float) -> tuple[float, float]:
        unit_secs = self.units.setdefault(device_id, usual_secs)
        return unit_secs, self.speeds.setdefault(device_class, unit_secs / usual_secs)

    def calls_timed_and_wait(self, device_class: str, timed: CallSecs) -> None:
        del device_class
        self.calls.append(timed)

    def append_and_wait(self, records: Sequence[Record], epoch: int | None = None) -> None:
        del epoch
        self.records += records


class Bench:
    """An actor (in this process) with its device and its recorder."""

    def __init__(self, stored: Stored | None = None) -> None:
        self.device, self.stored = Steady(), stored or Stored()
        self.actor = DeviceActor("device", self._open, "run", None)
        self._built = 0

    @contextlib.contextmanager
    def _open(self) -> Iterator[Device]:
        yield cast(Device, self.device)

    def batch(self, artifacts: Sequence[Artifact], places: TaskArtifacts, power: str = "") -> BatchMeasured:
        """The report of a batch, of which the records are stored."""
        references = [ray.put(each) for each in artifacts]
        report = self.actor.measure(references, {"task": places}, StopRule(), self.stored, 1, power)
        self.stored.records += [decode_record(body) for body in report.records]
        self.last = report
        return report

    def measure(self, told_secs: float, run_secs: float, limit_secs: float | None = None) -> MeasureRequest:
        """Return the request to the device for a candidate that takes ``run_secs``, with an incumbent of
        ``told_secs``."""
        self._built += 1
        self.device.run_secs = run_secs
        artifact = Artifact("task", Candidate("task", 0, "s", (self._built,)), b"", (), (), (), (), "", 0.0)
        oracle = ray.put(Artifact("task", None, b"", (), (), (), (), "", 0.0))
        incumbent = Incumbent("" if math.isinf(told_secs) else "told", told_secs, told_secs)
        before = len(self.device.asked)
        places = TaskArtifacts([oracle], incumbent, limit_secs=limit_secs)
        self.batch([artifact], places)
        return self.device.asked[before]


def test_what_the_scheduler_says_of_the_incumbent_holds_in_both_directions() -> None:
    bench = Bench()
    assert bench.measure(math.inf, 3.0).incumbent_secs == math.inf
    assert bench.measure(3.0, 0.5).incumbent_secs == 3.0
    # That one was measured on a device that was off: it does not count any more.
    assert bench.measure(3.0, 2.0).incumbent_secs == 3.0
    assert bench.stored.records[-1].measurement.verified


def test_a_candidate_may_take_what_its_task_is_allowed_on_the_device() -> None:
    bench = Bench()
    assert bench.measure(math.inf, 3.0).rule.timeout_secs == StopRule().timeout_secs
    assert bench.measure(math.inf, 3.0, limit_secs=70.0).rule.timeout_secs == 70.0
    assert bench.measure(0.1, 0.2, limit_secs=70.0).rule.timeout_secs == 20.0, "it follows the incumbent"


def test_a_device_that_is_faster_is_as_good_as_it_was() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.kernel_secs = 0.5
    # It races against what the incumbent would take now.
    asked = bench.measure(3.0, 1.0)
    assert asked.incumbent_secs == 1.5
    assert asked.confirm is not None
    assert asked.confirm.below_secs == 1.5
    measured = bench.stored.records[-1].measurement
    assert (measured.run_secs, measured.speed, measured.cost_secs, measured.verified) == ((1.0,), 2.0, 2.0, True)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_device_in_another_power_mode_than_that_of_the_run_does_nothing_until_it_is_set_back(
    is_restarted: bool,
) -> None:
    """Whether its process has seen the mode of the run, or Ray has started it again since."""
    bench = Bench()
    bench.device.mode = "MAXN (0)"
    joined_in = bench.actor.fingerprint().power
    if is_restarted:
        bench = Bench(bench.stored)
    bench.device.mode = "30W (2)"
    artifact = Artifact("task", Candidate("task", 0, "s", (1,)), b"", (), (), (), (), "", 0.0)
    oracle = ray.put(dataclasses.replace(artifact, candidate=None))
    places = TaskArtifacts([oracle], Incumbent("told", 9.0, 9.0))
    told = "its power mode is 30W (2), and this run measures it in MAXN (0): set it back"
    assert told in bench.batch([artifact], places, joined_in).detail
    fought = bench.actor.shoot_out([([ray.put(artifact)], 1)], places, StopRule(), bench.stored, 1, joined_in)
    assert isinstance(fought, ShootOutMeasured)
    assert told in fought.detail
    with pytest.raises(ProbeError, match=re.escape(told)):
        bench.actor.probe("target", joined_in)
    assert not bench.device.asked
    for same in ("MAXN (0), clock held", "MAXN (0), clock lowered by heat", ""):
        bench.device.mode = same
        assert bench.actor.probe("target", joined_in) == 1.0
    assert not bench.batch([artifact], places, joined_in).detail


def test_a_device_that_told_no_power_mode_is_not_asked_for_it() -> None:
    bench = Bench()
    bench.device.mode = "30W (2)"
    assert bench.actor.probe("target", "") == 1.0


def test_what_is_usual_is_found_by_several_probes_before_anything_is_measured() -> None:
    """The first probes of a window are slow: those who worked on the host have just been stopped."""
    bench = Bench()
    bench.device.coming = [2.0, 1.5, 1.4, 1.3]
    bench.measure(math.inf, 3.0)
    assert not bench.device.coming
    assert bench.stored.units == {"device": 1.0}
    assert bench.last.vitals == {"speed": 1.0, "shown_speed": 1.0}
    # It is told once: what people see does not follow the device.
    bench.device.kernel_secs = 0.5
    bench.measure(3.0, 3.0)
    assert bench.last.vitals == {"speed": 2.0, "shown_speed": 1.0}


def test_a_run_is_shown_at_the_speed_that_its_store_knows() -> None:
    bench = Bench()
    bench.stored.units["device"], bench.stored.speeds[""] = 2.0, 4.0
    bench.device.kernel_secs = 0.25  # a speed of 8
    bench.measure(math.inf, 3.0)
    assert bench.last.vitals == {"speed": 2.0, "shown_speed": 4.0}


def test_the_seconds_of_a_store_have_one_unit_also_in_another_process() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    later = Bench(bench.stored)
    later.device.kernel_secs = 0.25
    assert later.measure(3.0, 5.0).incumbent_secs == 0.75
    assert bench.stored.records[-1].measurement.cost_secs == 20.0


def test_what_was_measured_while_the_speed_changed_is_measured_again() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.coming = [1.0, 2.0, 2.0]
    bench.measure(3.0, 5.0)
    assert [each.incumbent_secs for each in bench.device.asked] == [math.inf, 3.0, 6.0]
    measured = bench.stored.records[-1].measurement
    assert measured.speed == 0.5
    # Of the probes 1, 1, 1, 2, 2 the usual one is 1: a quarter of ln 2.
    assert measured.speed_error == pytest.approx(0.1733, abs=1e-4)
    assert len(bench.stored.records) == 2


def test_where_it_changes_again_the_error_says_so() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.coming = [1.0, 2.0, 1.0]
    bench.measure(3.0, 5.0)
    measured = bench.stored.records[-1].measurement
    assert measured.speed == pytest.approx(2**-0.5)
    # Half of ln 2, and a quarter of half of it: sqrt(0.3466^2 + 0.0866^2).
    assert measured.speed_error == pytest.approx(0.3572, abs=1e-4)


def test_what_is_verified_is_not_measured_again() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.coming = [1.0, 2.0]
    bench.measure(3.0, 1.0)
    assert len(bench.device.asked) == 2
    measured = bench.stored.records[-1].measurement
    assert measured.verified
    assert measured.speed_error > 0.3
    # What it took then is no bar for others: 1.0 would have been one.
    assert bench.measure(3.0, 5.0).incumbent_secs == 3.0


def test_what_would_be_the_new_incumbent_meets_the_one_there_is() -> None:
    bench = Bench()
    oracle = ray.put(Artifact("task", None, b"", (), (), (), (), "", 0.0))
    artifacts = [
        Artifact("task", Candidate("task", 0, "s", (number,)), b"", (), (), (), (), "", 0.0) for number in (4, 2, 3)
    ]
    bench.device.by_candidate = {
        each.candidate.id: float(each.candidate.decisions[0]) for each in artifacts if each.candidate
    }
    report = bench.batch(artifacts, TaskArtifacts([oracle]))
    assert list(report.outcomes.values()) == [Outcome.OK] * 3
    first, second, third = (record.measurement for record in bench.stored.records)
    assert first.comparison is None
    assert second.comparison is not None
    assert (second.comparison.against, second.comparison.faster) == (bench.stored.records[0].candidate.id, True)
    assert second.comparison.against_rank_secs == first.rank_secs
    assert second.rank_secs == pytest.approx(first.rank_secs / 2)
    assert third.comparison is None  # it was slower at once
    assert not third.verified


def test_the_incumbent_of_another_device_is_fetched() -> None:
    bench = Bench()
    oracle = ray.put(Artifact("task", None, b"", (), (), (), (), "", 0.0))
    rival, artifact = (
        Artifact("task", Candidate("task", 0, "s", (number,)), b"", (), (), (), (), "", 0.0) for number in (4, 2)
    )
    assert rival.candidate is not None
    assert artifact.candidate is not None
    bench.device.by_candidate = {rival.candidate.id: 4.0, artifact.candidate.id: 2.0}
    places = TaskArtifacts([oracle], Incumbent(rival.candidate.id, 4.0, 5.0), [ray.put(rival)])
    bench.batch([artifact], places)
    [record] = bench.stored.records
    assert record.measurement.comparison is not None
    assert record.measurement.rank_secs == pytest.approx(2.5)


def test_a_shoot_out_in_which_the_speed_changes_says_so() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    finalists = [
        Artifact("task", Candidate("task", 0, "s", (number,)), b"", (), (), (), (), "", 0.0) for number in (4, 2)
    ]
    bench.device.by_candidate = {
        each.candidate.id: float(each.candidate.decisions[0]) for each in finalists if each.candidate
    }
    bench.device.coming = [1.0, 2.0]
    oracle = ray.put(Artifact("task", None, b"", (), (), (), (), "", 0.0))
    entered = [([ray.put(each)], 1) for each in finalists]
    told = Incumbent("told", 9.0, 9.0)
    bench.actor.shoot_out(entered, TaskArtifacts([oracle], told), StopRule(), bench.stored, 1)
    assert not bench.device.coming
    first, second = (record.measurement for record in bench.stored.records[-2:])
    for each in (first, second):
        # From 1 to 2, whose middle is sqrt 2 times what is usual (1, of 1, 1, 1, 2).
        assert each.speed == pytest.approx(2**-0.5)
        assert each.speed_error == pytest.approx(0.3572, abs=1e-4)
    assert first.comparison is None
    assert first.cost_secs == pytest.approx(4.0 * 2**-0.5)
    assert second.comparison is not None
    assert second.comparison.faster
    assert second.comparison.against_rank_secs == first.rank_secs


def test_candidates_whose_oracle_is_too_slow_are_measured_and_compared_with_nothing() -> None:
    bench = Bench()
    bench.device.oracle_problem = "its unscheduled program did not end within 150 s"
    request = bench.measure(told_secs=2.0, run_secs=1.0)
    assert request.incumbent_secs == 0.0
    assert bench.last.unchecked == {"task": "its unscheduled program did not end within 150 s"}
    assert set(bench.last.outcomes.values()) == {Outcome.OK}
    assert bench.last.detail == "", "the device is not to blame"
    assert not bench.stored.records[-1].measurement.verified
    bench.device.oracle_problem = ""  # it had more time
    assert bench.measure(told_secs=2.0, run_secs=1.0).incumbent_secs == 2.0
    assert bench.last.unchecked == {"task": ""}
    bench.measure(told_secs=2.0, run_secs=1.0)
    assert bench.last.unchecked == {}


class HostOracle:
    """Stands in for :class:`devices.client.host_oracle.HostOracles`, at one oracle."""

    def __init__(self) -> None:
        self.begun = 0
        self.computing = False
        self.found: OracleOutputs | None = None
        self.reason = ""

    def begin(self, artifact: Artifact, window: object) -> None:  # noqa: ARG002
        self.begun += 1
        self.computing = True

    def is_computing(self, task_id: str) -> bool:  # noqa: ARG002
        return self.computing

    def outputs(self, task_id: str) -> OracleOutputs | None:  # noqa: ARG002
        return self.found

    def failure(self, task_id: str) -> str:  # noqa: ARG002
        return self.reason

    def wait(self, task_id: str, secs: float) -> None: ...


def with_slow_oracle() -> tuple[Bench, HostOracle]:
    bench, host = Bench(), HostOracle()
    bench.actor._oracles._on_host = cast(Any, host)
    bench.device.oracle_problem = "its unscheduled program did not end within 150 s"
    return bench, host


def test_an_oracle_that_is_too_slow_for_the_device_runs_on_the_host_and_is_used_from_then_on() -> None:
    bench, host = with_slow_oracle()
    for _ in range(2):
        assert bench.measure(told_secs=2.0, run_secs=1.0).incumbent_secs == 0.0
        assert bench.last.unchecked == {"task": f"{bench.device.oracle_problem}: this machine runs it now"}
    assert (host.begun, bench.device.oracles_run) == (1, 1), "the device is not asked meanwhile"
    host.computing, host.found = False, OracleOutputs(False, ())
    assert bench.measure(told_secs=2.0, run_secs=1.0).incumbent_secs == 2.0
    assert bench.device.outputs is host.found
    assert bench.last.unchecked == {"task": ""}
    assert bench.stored.records[-1].measurement.verified


def test_an_oracle_that_the_host_cannot_run_either_is_told() -> None:
    bench, host = with_slow_oracle()
    bench.measure(told_secs=2.0, run_secs=1.0)
    host.computing, host.reason = False, "it is no program"
    bench.measure(told_secs=2.0, run_secs=1.0)
    told = f"{bench.device.oracle_problem}, nor can this machine run it: it is no program"
    assert bench.last.unchecked == {"task": told}


@pytest.mark.parametrize("begun", [True, False])
def test_a_shoot_out_is_postponed_while_its_oracle_runs_on_the_host(begun: bool) -> None:
    """Also where it turns out only then that the device is too slow."""
    bench, host = with_slow_oracle()
    host.computing = begun
    oracle = ray.put(Artifact("task", None, b"", (), (), (), (), "", 0.0))
    finalist = Artifact("task", Candidate("task", 0, "s", (4,)), b"", (), (), (), (), "", 0.0)
    entered = [([ray.put(finalist)], 1)]
    places = TaskArtifacts([oracle], Incumbent())
    postponed = bench.actor.shoot_out(entered, places, StopRule(), bench.stored, 1)
    reason = "" if begun else f"{bench.device.oracle_problem}: "
    told = f"{reason}this machine runs it{'s unscheduled program' if begun else ''} now"
    assert postponed == BatchPostponed("device", 1, {"task": told})
    assert host.begun == (not begun)
    assert not bench.stored.records
    host.computing, host.found = False, OracleOutputs(False, ())
    measured = bench.actor.shoot_out(entered, places, StopRule(), bench.stored, 2)
    assert measured == ShootOutMeasured("device", 2, unchecked={"task": ""})
    assert [each.measurement.verified for each in bench.stored.records] == [True]


def _of_task(task_id: str, secs: float, bench: Bench) -> Artifact:
    artifact = Artifact(task_id, Candidate(task_id, 0, "s", (int(secs),)), b"", (), (), (), (), "", 0.0)
    assert artifact.candidate is not None
    bench.device.by_candidate[artifact.candidate.id] = secs
    return artifact


def _measure_tasks(bench: Bench, *artifacts: Artifact) -> BatchMeasured:
    places = {
        each.task_id: TaskArtifacts([ray.put(Artifact(each.task_id, None, b"", (), (), (), (), "", 0.0))])
        for each in artifacts
    }
    references = [ray.put(each) for each in artifacts]
    return bench.actor.measure(references, places, StopRule(), bench.stored, 1)


def test_incumbents_run_in_a_round_each_time_that_there_are_twice_as_many() -> None:
    bench = Bench()
    bench.device.longer_secs = 3.0
    first = _measure_tasks(bench, _of_task("a@board", 4.0, bench)).calls
    bench.device.longer_secs = 2.0
    second = _measure_tasks(bench, _of_task("b@board", 2.0, bench)).calls
    assert (first, second) == (CallSecs(3.0, 1), CallSecs(1.0, 2))
    assert _measure_tasks(bench, _of_task("c@board", 1.0, bench)).calls is None
    bench.device.longer_secs = -1.0
    report = _measure_tasks(bench, _of_task("d@board", 1.0, bench))
    assert report.calls == CallSecs(0.0, 4), "nothing is faster in a round than alone"
    assert bench.device.rounds == [1, 2, 4]
    assert bench.stored.calls == [first, second, report.calls]


def test_the_least_of_the_rounds_counts() -> None:
    bench = Bench()
    found = []
    secs = {1: 5.0, 9: 6.0, 17: 4.0, 25: 9.0}
    for number in range(1, 33):
        bench.device.longer_secs = secs.get(number, -1.0)
        report = _measure_tasks(bench, _of_task("a@board", 4.0, bench))
        found += [(number, report.calls)] if report.calls else []
    assert bench.device.rounds == [1] * len(secs), "every eight batches"
    assert found == [(1, CallSecs(5.0, 1)), (17, CallSecs(4.0, 1))]


def test_rounds_of_less_than_half_of_the_kernels_do_not_count() -> None:
    rounds = CallRounds()
    assert [rounds.is_due(kernels) for kernels in (0, 1, 1, 2, 3, 4)] == [False, True, False, True, False, True]
    assert rounds.timed(1.0, 1) == CallSecs(1.0, 1)
    assert rounds.timed(2.0, 2) == CallSecs(1.0, 2)
    assert rounds.timed(5.0, 4) == CallSecs(2.0, 4)
    assert rounds.timed(3.0, 5) == CallSecs(3.0, 5)
    assert rounds.timed(3.0, 5) is None


def test_the_extra_time_is_at_the_usual_speed() -> None:
    bench = Bench()
    bench.device.longer_secs = 50.0
    _measure_tasks(bench, _of_task("a@board", 4.0, bench))
    bench.device.kernel_secs = 0.5
    bench.device.longer_secs = 5.0
    assert _measure_tasks(bench, _of_task("b@board", 1.0, bench)).calls == CallSecs(pytest.approx(5.0), 2)


def test_a_device_that_cannot_run_kernels_in_a_round_is_seldom_asked() -> None:
    bench = Bench()
    for number in range(1, 18):
        assert _measure_tasks(bench, _of_task("a@board", float(number), bench)).calls is None
    assert bench.device.rounds == [1, 1, 1]
    assert bench.stored.calls == []


def test_without_an_incumbent_there_is_no_round() -> None:
    bench = Bench()
    bench.device.longer_secs = 5.0
    for number in range(12):
        _measure_tasks(bench, _of_task("a@board", 4.0, bench))
        if number == 2:
            bench.actor._leave()  # another run takes its turn
        if number > 2:
            # The incumbent is another one, which is not at hand.
            bench.measure(0.5, 9.0)
    assert 0 not in bench.device.rounds


def test_what_meets_the_incumbent_is_not_confirmed_before() -> None:
    bench = Bench()
    _measure_tasks(bench, _of_task("a@board", 4.0, bench))
    rival = bench.device.asked[0].artifact
    assert rival.candidate is not None
    told = Incumbent(rival.candidate.id, 4.0, 4.2)
    oracle = ray.put(Artifact("a@board", None, b"", (), (), (), (), "", 0.0))
    asked = len(bench.device.asked)
    places = {"a@board": TaskArtifacts([oracle], told)}
    bench.actor.measure([ray.put(_of_task("a@board", 2.0, bench))], places, StopRule(), bench.stored, 1)
    assert bench.device.asked[asked].confirm is None
    assert all(each.placed_anew for each in bench.device.asked[asked + 1 :])
    # Where nothing is verified, it meets nobody.
    bench.device.oracle_problem = "too slow"
    asked = len(bench.device.asked)
    bench.actor.measure([ray.put(_of_task("a@board", 1.0, bench))], places, StopRule(), bench.stored, 1)
    assert bench.device.asked[asked].confirm is not None


def test_a_device_that_is_gone_runs_no_oracle() -> None:
    bench = Bench()
    bench.device.is_gone = True
    report = _measure_tasks(bench, _of_task("a@board", 4.0, bench))
    assert (report.outcomes, report.detail) == ({}, "gone")
    assert bench.device.oracles_run == 0


def test_where_the_incumbent_fails_in_the_duel_the_candidate_is_measured_again() -> None:
    bench = Bench()
    rival = _of_task("a@board", 4.0, bench)
    _measure_tasks(bench, rival)
    assert rival.candidate is not None
    bench.device.failing = rival.candidate.id
    oracle = ray.put(Artifact("a@board", None, b"", (), (), (), (), "", 0.0))
    places = {"a@board": TaskArtifacts([oracle], Incumbent(rival.candidate.id, 4.0, 4.2))}
    bench.actor.measure([ray.put(_of_task("a@board", 2.0, bench))], places, StopRule(), bench.stored, 1)
    last = bench.device.asked[-1]
    assert last.artifact.candidate != rival.candidate
    assert last.placed_anew
    assert last.rule.race_factor == math.inf
