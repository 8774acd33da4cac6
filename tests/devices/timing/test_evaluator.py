"""The evaluator's loop on a virtual clock: how batches are sized, and what ends them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tvm.runtime.module import BenchmarkResult

from devices.protocol import Artifact, MeasureRequest
from devices.timing.evaluator import (
    Evaluation,
    EvaluationRequest,
    batch_timer,
    confirmed,
    decode_evaluation,
    encode_evaluation,
    evaluate,
    load_decide,
)
from fleet_tune.base.domain import Candidate, Confirmation, StopRule

RULE = StopRule(micro_batch_secs=0.01, min_batches=3, max_batches=5, timeout_secs=10.0)


class Kernel:
    """Runs take ``run_secs`` of virtual time, the first one ``cold`` times as long."""

    def __init__(self, run_secs: float, cold: float = 1.0) -> None:
        self.run_secs = run_secs
        self.cold = cold
        self.now = 0.0
        self.batches: list[int] = []

    def __call__(self, runs: int) -> float:
        secs = self.run_secs * (self.cold if not self.batches else 1.0)
        self.batches.append(runs)
        self.now += runs * secs
        return secs

    def clock(self) -> float:
        return self.now


def race(run_secs: Sequence[float], rule: StopRule, incumbent_secs: float) -> str | None:
    return "raced" if run_secs[0] > rule.race_factor * incumbent_secs else None


def after_three(run_secs: Sequence[float], rule: StopRule, _incumbent_secs: float) -> str | None:
    return "converged" if len(run_secs) == rule.min_batches else None


def test_batches_have_as_many_runs_as_the_rule_says() -> None:
    for run_secs in (1e-6, 0.02):
        kernel = Kernel(run_secs)
        rule = replace(RULE, micro_batch_runs=7)
        assert EvaluationRequest.from_json(EvaluationRequest(rule, math.inf, "cpu").to_json()).rule == rule
        evaluate(kernel, rule, math.inf, after_three, kernel.clock)
        assert kernel.batches == [1, 7, 7, 7]


def test_a_batch_is_no_longer_than_half_of_the_timeout() -> None:
    kernel = Kernel(0.5)
    evaluate(kernel, replace(RULE, micro_batch_runs=50, timeout_secs=3.0), math.inf, after_three, kernel.clock)
    assert set(kernel.batches) == {1, 3}


def test_batches_last_as_long_as_the_rule_says() -> None:
    kernel = Kernel(0.001, cold=5.0)
    result = evaluate(kernel, RULE, math.inf, None, kernel.clock)
    # The cold first run of 5 ms suggests batches of two; the first batch shows that ten are needed.
    assert kernel.batches == [1, 2, 10, 10, 10, 10]
    assert (result.run_secs, result.stopped) == ((0.001,) * 5, "maximum")
    assert result.device_secs == pytest.approx(0.005 + 0.002 + 4 * 0.01)


def test_a_run_longer_than_a_micro_batch_is_a_batch_of_its_own() -> None:
    kernel = Kernel(0.05)
    evaluate(kernel, RULE, math.inf, after_three, kernel.clock)
    assert kernel.batches == [1, 1, 1, 1]


def test_the_decision_ends_it() -> None:
    kernel = Kernel(0.001)
    result = evaluate(kernel, RULE, math.inf, after_three, kernel.clock)
    assert (result.run_secs, result.stopped) == ((0.001,) * 3, "converged")


def test_hopeless_candidates_are_given_up_after_their_first_run() -> None:
    kernel = Kernel(1.0)
    assert evaluate(kernel, RULE, 0.1, race, kernel.clock) == Evaluation((1.0,), "raced", 1.0)
    assert kernel.batches == [1]


def test_a_cold_run_is_never_the_result() -> None:
    def one_batch(run_secs: Sequence[float], rule: StopRule, _incumbent_secs: float) -> str | None:
        return "maximum" if len(run_secs) >= rule.max_batches else None

    kernel = Kernel(0.02, cold=2.0)
    rule = replace(RULE, min_batches=1, max_batches=1)
    assert evaluate(kernel, rule, math.inf, one_batch, kernel.clock).run_secs == (0.02,)


def test_a_slow_first_run_alone_does_not_end_a_candidate_that_may_be_good() -> None:
    kernel = Kernel(0.02, cold=1.9)
    assert evaluate(kernel, RULE, 0.015, race, kernel.clock).stopped == "maximum"


def test_a_quick_first_run_is_never_judged() -> None:
    kernel = Kernel(0.004)
    assert evaluate(kernel, RULE, 0.001, race, kernel.clock) == Evaluation((0.004,), "raced", 0.016)
    assert kernel.batches == [1, 3]


def test_no_batch_begins_after_the_timeout() -> None:
    kernel = Kernel(6.0)
    assert evaluate(kernel, RULE, math.inf, None, kernel.clock) == Evaluation((6.0,), "maximum", 12.0)
    assert kernel.now == 12.0


@pytest.mark.parametrize("incumbent_secs", [0.5, math.inf])
def test_requests_and_results_survive_the_wire(incumbent_secs: float) -> None:
    request = EvaluationRequest(RULE, incumbent_secs, "cpu", (1, 3))
    assert EvaluationRequest.from_json(request.to_json()) == request
    result = Evaluation((0.1, 0.2), "raced", 0.7, 0.25, "gpu-throttle-alert, oc3")
    assert decode_evaluation(encode_evaluation(result)) == result
    assert decode_evaluation('{"run_secs": [0.1], "stopped": "raced"}') == Evaluation(
        (0.1,), "raced"
    )  # an older server


def test_a_server_reads_the_request_of_a_newer_client() -> None:
    request = json.loads(EvaluationRequest(RULE, 0.5, "cpu").to_json())
    request["rule"]["something_new"] = 1
    del request["weights"]  # nor does an older client name them
    assert EvaluationRequest.from_json(json.dumps(request)) == EvaluationRequest(RULE, 0.5, "cpu")


def test_warming_up_lasts_as_long_as_the_rule_says() -> None:
    kernel = Kernel(0.01, cold=3.0)
    evaluate(kernel, replace(RULE, warm_up_secs=0.05), math.inf, after_three, kernel.clock)
    # 30 ms and two times 10 ms that are not counted.
    assert kernel.batches == [1, 1, 1, 1, 1, 1]
    assert kernel.now == pytest.approx(0.03 + 5 * 0.01)


def test_a_warm_up_is_over_when_the_time_is() -> None:
    kernel = Kernel(1.0)
    evaluate(kernel, replace(RULE, warm_up_secs=100.0, timeout_secs=3.0), math.inf, None, kernel.clock)
    assert kernel.batches == [1, 1, 1, 1]


def test_flushed_micro_batches_are_short() -> None:
    kernel = Kernel(1e-5)
    evaluate(kernel, replace(RULE, flush_bytes=1 << 20), math.inf, after_three, kernel.clock)
    assert kernel.batches == [1, 10, 10, 10]


ARTIFACT = Artifact("task", Candidate("task", 0, "sketch", ()), b"", (), (), (), (), "", 0.0)
PRECISE = replace(RULE, max_batches=9)


@pytest.mark.parametrize("first", [0.9, 1.0, 1.1])
def test_only_what_would_be_the_new_incumbent_is_confirmed_and_the_second_result_counts(first: float) -> None:
    asked: list[tuple[StopRule, float]] = []

    def measure(rule: StopRule, incumbent_secs: float) -> Evaluation:
        asked.append((rule, incumbent_secs))
        return Evaluation((first,), "converged", 2.0) if rule is RULE else Evaluation((1.2, 1.2), "maximum", 5.0)

    request = MeasureRequest(ARTIFACT, 1.0, RULE, Confirmation(1.0, PRECISE))
    if first < 1.0:
        assert confirmed(measure, measure, request) == Evaluation((1.2, 1.2), "maximum", 7.0)
        assert asked == [(RULE, 1.0), (PRECISE, math.inf)]
    else:
        assert confirmed(measure, measure, request) == Evaluation((first,), "converged", 2.0)
        assert asked == [(RULE, 1.0)]


class Module:
    """Notes how a loaded module is timed."""

    def __init__(self) -> None:
        self.calls = 0
        self.evaluators: list[dict[str, int]] = []

    def __getitem__(self, _entry: str) -> Callable[[], None]:
        def kernel() -> None:
            self.calls += 1

        return kernel

    def time_evaluator(self, _entry: str, _device: object, **settings: int) -> Callable[[], BenchmarkResult]:
        self.evaluators.append(settings)
        return lambda: BenchmarkResult([0.001] * settings.get("repeat", 1))


# DLPack's numbers: 1 is this process' CPU, 2 a GPU; a session's devices have its number times 128 on top.
@pytest.mark.parametrize(("kind", "called"), [(1, True), (2, False), (129, False), (130, False)])
def test_only_this_process_cpu_is_timed_by_the_clock_all_else_by_tvm_where_the_kernel_is(
    kind: int, called: bool
) -> None:
    module = Module()
    device = SimpleNamespace(dlpack_device_type=lambda: kind, sync=lambda: None)
    run_batch = batch_timer(module, "main", device, [()])
    run_batch(1)
    assert (module.calls, module.evaluators) == ((1, []) if called else (0, [{"number": 1}]))
    assert run_batch(7) > 0
    # The kernel took no time at all when it was called: it is too quick for that.
    assert module.evaluators[-1] == {"number": 7}


def test_sets_of_arguments_take_turns_over_all_batches() -> None:
    seen: list[str] = []
    module = {"main": seen.append}
    device = SimpleNamespace(dlpack_device_type=lambda: 1, sync=lambda: None)
    run_batch = batch_timer(module, "main", device, [("a",), ("b",), ("c",)])
    run_batch(1)
    run_batch(4)
    assert seen == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("kind", [1, 2, 129])
def test_with_a_flush_every_run_is_timed_by_itself(kind: int) -> None:
    module = Module()
    device = SimpleNamespace(dlpack_device_type=lambda: kind, sync=lambda: None)
    assert batch_timer(module, "main", device, [()], 1 << 20)(5) == 0.001
    assert module.evaluators == [{"number": 1, "repeat": 5, "cache_flush_bytes": 1 << 20}]


def test_tvm_empties_the_caches_before_every_run(make_artifact: Callable[..., Artifact], tmp_path: Path) -> None:
    import tvm

    (tmp_path / "kernel.so").write_bytes(make_artifact("ok", n=1 << 16).library)
    module = tvm.runtime.load_module(str(tmp_path / "kernel.so"))
    device = tvm.cpu()
    tensors = [tvm.runtime.empty((1 << 16,), "float32", device) for _ in range(2)]
    for flush_bytes in (0, 1 << 20):
        assert 0 < batch_timer(module, "main", device, [tensors], flush_bytes)(3) < 1.0


def test_the_stopping_function_is_found_by_its_name() -> None:
    assert load_decide("math:sqrt") is math.sqrt
    assert load_decide(None) is None
    with pytest.raises(AttributeError):
        load_decide("math:no_such_function")
    with pytest.raises(ImportError):
        load_decide("no_such_module:decide")
