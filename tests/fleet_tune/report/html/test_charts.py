"""Charts as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from fleet_tune.report.html.charts import step_chart, ticks


@pytest.mark.parametrize(
    ("most", "expected"),
    [(10.0, [0, 2, 4, 6, 8, 10]), (0.0042, [0, 0.001, 0.002, 0.003, 0.004]), (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0])],
)
def test_ticks_are_round_numbers(most: float, expected: list[float]) -> None:
    assert ticks(most) == pytest.approx(expected)


def test_each_value_holds_until_the_next() -> None:
    text = step_chart([(0.0, 4.0), (5.0, 2.0), (10.0, 2.0)], 'a "b" & c', "time", str, str)
    svg = ElementTree.fromstring(text)
    assert svg.get("aria-label") == 'a "b" & c'
    points = [
        tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", svg.find("polyline").get("points"))
    ]  # type: ignore[union-attr, arg-type]
    across, down = zip(*points, strict=True)
    begin = svg.find("circle")
    assert begin is not None
    assert (begin.get("cx"), begin.get("cy")) == ("72.0", "21.9")
    assert across == (72.0, 350.0, 350.0, 628.0, 628.0)
    # The axis ends 5% above the largest value: 208 * (1 - 4 / 4.2) below the top, and half of 4 is twice as deep.
    assert down == pytest.approx((21.9, 21.9, 121.0, 121.0, 121.0), abs=0.1)
