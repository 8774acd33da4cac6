from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.client.output_check import EXACT, MOST_TRIES, ROUNDED, Oracle, all_finite, disagreement, tolerance
from devices.protocol import Artifact, CheckedRun, CheckPlan, TensorSpec
from devices.sketches.rules.library import LIBRARY
from devices.sketches.rules.winograd import OUTPUTS
from devices.timing.arguments import FLOATS, make_inputs, poison
from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.timeouts import DeviceTimeouts
from policies.measuring.deadline import oracle_secs
from tests.helpers.kernels import MakeArtifact

CPU_OF_192_GFLOPS = DeviceAbstraction("cpu", 2, 8, 16, 32 << 10, 1 << 20, 0, 192e9, 2e10)


def test_the_time_of_an_oracle_follows_its_operations_and_the_speed_of_the_device(make_artifact: MakeArtifact) -> None:
    artifact = make_artifact("ok", oracle=True, flop=2e10)
    # One core of two with vectors of 8: a 16th of 192 GFLOP/s, and a 30th of that; on three kinds of inputs.
    assert Oracle(artifact, CPU_OF_192_GFLOPS).timeout_secs == pytest.approx(150 + 3 * 2e10 / (12e9 / 30), abs=1)
    slow = dataclasses.replace(CPU_OF_192_GFLOPS, peak_flops=1.92e9)
    assert Oracle(artifact, slow).timeout_secs == pytest.approx(150 + 3 * 2e10 / (12e7 / 30), abs=1)
    assert Oracle(artifact).timeout_secs == pytest.approx(150 + 3 * 2e10 / 2e7, abs=1)
    assert Oracle(make_artifact("ok", oracle=True), slow).timeout_secs == pytest.approx(150, abs=1)
    # Tensors of 1 GB are sent three times, and outputs come back; over a link of 1 MB/s.
    large = dataclasses.replace(artifact, flop=0.0, original_args=(TensorSpec((250, 1000, 1000), "float32"),))
    assert Oracle(large, slow).timeout_secs == pytest.approx(150 + 6 * 1000, abs=1)
    assert Oracle(large, slow, DeviceTimeouts(oracle_secs=690)).timeout_secs == pytest.approx(690 + 6 * 1000, abs=1)
    # It is a limit of its own: one of uploads that is meant for a fast link does not make it shorter.
    hasty = DeviceTimeouts(upload_secs=2)
    assert Oracle(make_artifact("ok", oracle=True), slow, hasty).timeout_secs == pytest.approx(150, abs=1)


@given(patience_secs=st.floats(0.1, 3600), flop=st.floats(0, 1e13))
def test_all_tries_of_an_oracle_fit_the_deadline_of_its_batch(patience_secs: float, flop: float) -> None:
    """Else the device would count as lost for what its oracle takes."""
    artifact = Artifact("task", None, b"", (), (), (), (), "", 0.0, flop=flop)
    first_secs = Oracle(artifact, CPU_OF_192_GFLOPS, DeviceTimeouts(oracle_secs=patience_secs)).timeout_secs
    tries_secs = sum(first_secs * 2**number for number in range(MOST_TRIES))
    assert tries_secs == pytest.approx(oracle_secs(patience_secs, CPU_OF_192_GFLOPS.unscheduled_secs(flop)))


def test_every_float_type_has_its_tolerance() -> None:
    assert tuple(EXACT) == tuple(ROUNDED) == FLOATS


def test_agreement_is_relative_to_each_value_and_to_the_largest() -> None:
    oracle = np.array([100.0, 0.25], np.float32)
    assert disagreement([oracle], [oracle + np.float32(0.005)]) == ""
    assert disagreement([oracle], [oracle + np.float32([0.02, 0])]) == ""
    assert disagreement([oracle], [oracle + np.float32([0, 0.0625])]) == (
        "1 of 2 values differ, one by 0.0625 where the oracle has 0.25 (its largest: 100)"
    )


def test_the_tolerance_follows_the_narrowest_type_and_whether_sums_are_rounded() -> None:
    plan = CheckPlan("float16", exact=True)
    assert tolerance(plan, "float32") == EXACT["float16"]
    assert tolerance(plan, "float32", rounded=True) == ROUNDED["float16"]
    assert tolerance(CheckPlan("float16", exact=True, sums=False), "float32", rounded=True) == EXACT["float16"]
    assert tolerance(CheckPlan(), "bfloat16") == ROUNDED["bfloat16"]


def test_integers_made_of_floats_may_be_rounded_otherwise_now_and_then() -> None:
    oracle = np.arange(2000, dtype=np.int32)
    plan = CheckPlan(rounds=True)
    few, far, many = oracle.copy(), oracle.copy(), oracle.copy()
    few[:2] += 1
    far[0] += 2
    many[:3] -= 1
    assert disagreement([oracle], [few], plan) == ""
    assert disagreement([oracle], [few]) == "2 of 2000 values differ"
    assert disagreement([oracle], [far], plan) == "1 of 2000 values differ"
    assert disagreement([oracle], [many], plan) == "3 of 2000 values differ"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_agree_in_the_same_places_only(value: float) -> None:
    special, plain = np.array([1.0, value], np.float32), np.array([1.0, 2.0], np.float32)
    assert disagreement([special], [special.copy()]) == ""
    assert "NaN or infinite" in disagreement([special], [plain])
    assert "NaN or infinite" in disagreement([plain], [special])
    assert "NaN or infinite" in disagreement([np.array([np.inf, 1], np.float32)], [np.array([-np.inf, 1], np.float32)])


def test_a_winograd_kernel_may_round_and_spread_special_values(make_artifact: MakeArtifact) -> None:
    plan = CheckPlan(precision="float32", exact=True, reproducible=True, compares_zeros=True)
    oracle = Oracle(dataclasses.replace(make_artifact("ok", oracle=True), check=plan))
    whole = np.array([1.0, 2.0, 1000.0], np.float32)
    plain, special = CheckedRun(False, (whole,)), CheckedRun(True, (np.array([np.nan, 2.0, 3.0], np.float32),))
    trace = f'[[["Annotate", ["b1", 4], ["{OUTPUTS}"], []]], []]'
    rounded, spread = np.array([1.01, 2.0, 1000.0], np.float32), np.full(3, np.nan, np.float32)
    assert oracle.disagreement(plain, [rounded], trace) == ""
    assert "differ" in oracle.disagreement(plain, [rounded], "[[], []]")
    assert "differ" in oracle.disagreement(plain, [np.array([1.5, 2.0, 1000.0], np.float32)], trace)
    assert not oracle.compares(special, trace)
    assert "special values" in oracle.disagreement(special, [spread])


def test_a_library_may_leave_out_the_zeros_around_an_image(make_artifact: MakeArtifact) -> None:
    """They are multiplied by an infinite weight. Everything else must agree."""
    oracle = Oracle(make_artifact("ok", oracle=True))
    run = CheckedRun(True, (np.array([np.nan, np.inf, 3.0], np.float32),))
    trace = f'[[["Annotate", ["b1", "onednn"], ["{LIBRARY}"], []]], []]'
    right, other, lost = (
        np.array([1.0, value, last], np.float32) for value, last in ((np.inf, 3), (np.inf, 4), (2, 3))
    )
    assert oracle.disagreement(run, [right], trace) == ""
    assert "special values" in oracle.disagreement(run, [right])
    for wrong in (other, lost, np.full(3, np.nan, np.float32)):
        assert "special values" in oracle.disagreement(run, [wrong], trace)
    plain = CheckedRun(False, (np.array([1.0, 2.0, 3.0], np.float32),))
    assert oracle.disagreement(plain, [np.array([np.nan, 2.0, 3.0], np.float32)], trace)


def test_integers_must_be_equal() -> None:
    assert disagreement([np.array([1, 2])], [np.array([1, 2])]) == ""
    assert disagreement([np.array([1, 2])], [np.array([1, 3])]) == "1 of 2 values differ"


def test_the_wrong_output_of_several_is_named() -> None:
    one, two = np.ones(2, np.float32), np.zeros(2, np.float32)
    assert disagreement([one, one], [one, two]).startswith("output 1: ")


def test_another_shape_or_type_disagrees() -> None:
    assert "instead of" in disagreement([np.ones(2, np.float32)], [np.ones(3, np.float32)])
    assert "instead of" in disagreement([np.ones(2, np.float32)], [np.ones(2, np.float64)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32"])
def test_what_is_left_unwritten_disagrees(dtype: str) -> None:
    spec = TensorSpec((7,), dtype)
    (written,) = make_inputs("t", (spec,), (), False)
    assert disagreement([written], [poison(spec)]) != ""


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int64", "bool"])
def test_poison_differs_from_the_oracle_in_every_value(dtype: str) -> None:
    spec = TensorSpec((6,), dtype)
    for expected in (make_inputs("t", (spec,), (), False)[0], poison(spec), poison(spec, poison(spec))):
        poisoned = poison(spec, expected)
        assert poisoned.dtype == expected.dtype
        assert f"{spec.shape[0]} of 6 values" in disagreement([expected], [poisoned])


def test_all_finite_ignores_integers() -> None:
    assert all_finite([np.array([1.0], np.float32), np.array([3])])
    assert not all_finite([np.array([np.nan], np.float32)])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_equal_arrays_agree(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert disagreement([array], [array.copy()]) == ""


def test_few_floats_that_follow_from_integers_may_be_a_step_apart() -> None:
    oracle = np.linspace(-4.0, 4.0, 4096, dtype=np.float32)
    step, far = oracle.copy(), oracle.copy()
    step[[7, 4000]] += 0.0376
    far[7] += 0.1
    rounds = CheckPlan(rounds=True)
    assert disagreement([oracle], [step], rounds) == ""
    assert "2 of 4096 values differ" in disagreement([oracle], [step], CheckPlan())
    assert "1 of 4096 values differ" in disagreement([oracle], [far], rounds)
    assert "4096 of 4096 values differ" in disagreement([oracle], [oracle + np.float32(0.0376)], rounds)
