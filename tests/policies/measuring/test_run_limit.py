"""A candidate has the time that its operations take on its device, beside what the fleet file allows."""

from __future__ import annotations

import pytest

from policies.measuring.run_limit import run_limit


@pytest.mark.parametrize(
    ("candidate_secs", "floor_secs", "limit_secs"),
    [
        (10.0, 1.3e-3, 10.13),  # a convolution of 231 MFLOP on a server
        (30.0, 0.58, 88.0),  # the same on an emulated board: 0.4 GFLOP/s
        (10.0, 0.0, 10.0),
    ],
)
def test_the_limit_grows_with_the_work_and_with_the_slowness_of_the_device(
    candidate_secs: float, floor_secs: float, limit_secs: float
) -> None:
    assert run_limit(candidate_secs, floor_secs) == pytest.approx(limit_secs)
