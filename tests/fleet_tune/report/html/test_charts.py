"""Charts as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from fleet_tune.report.html.charts import TimelineRow, step_chart, ticks, timeline
from fleet_tune.report.html.extent_chart import extent_chart


@pytest.mark.parametrize(
    ("most", "expected"),
    [(10.0, [0, 2, 4, 6, 8, 10]), (0.0042, [0, 0.001, 0.002, 0.003, 0.004]), (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0])],
)
def test_ticks_are_round_numbers(most: float, expected: list[float]) -> None:
    assert ticks(most) == pytest.approx(expected)


def test_each_value_holds_until_the_next() -> None:
    text = step_chart({"": [(0.0, 4.0), (5.0, 2.0), (10.0, 2.0)]}, 'a "b" & c', "time", str, str)
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


def test_lines_of_several_values_differ_without_colour_and_have_their_names() -> None:
    text = step_chart({"a": [(0.0, 4.0)], "b": [(0.0, 2.0), (8.0, 1.0)]}, "both", "time", str, str)
    svg = ElementTree.fromstring(text)
    lines = svg.findall("polyline")
    assert [line.get("stroke-dasharray") for line in lines] == [None, "8 4"]
    assert [each.text for each in svg.findall("text")][-2:] == ["a", "b"]


def test_a_timeline_has_a_row_for_each_device() -> None:
    rows = [TimelineRow("one", [(0.0, 5.0), (9.0, 9.0)], [(5.0, "lost: <cable>")]), TimelineRow("two", [], [])]
    svg = ElementTree.fromstring(timeline(rows, 10.0, "devices", str))
    bars = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in svg.findall("rect")]
    assert bars == [(72.0, 278.0), (572.4, 0.5)]  # of 556 for 10 seconds; what is shorter can be seen too
    [event] = svg.findall("line")
    assert (event.get("x1"), event.findtext("title")) == ("350.0", "lost: <cable>")
    assert [each.text for each in svg.findall("text")][:2] == ["one", "two"]


def test_latency_over_extents_is_a_line_for_each_framework() -> None:
    series = {"ours": [(0, 0.01), (4, 0.1), (64, 1.0)], "<theirs>": [(0, 0.01), (64, 0.02)], "absent": []}
    svg = ElementTree.fromstring(extent_chart(series, "past"))
    ours, theirs = (
        [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
        for line in svg.findall("polyline")
    )
    # The extents are as far from each other as each is from the next: 0, 4 and 64 on 438 pixels.
    assert [x for x, _ in ours] == [72.0, 291.0, 510.0]
    assert [x for x, _ in theirs] == [72.0, 510.0]
    # From 10 ms to 1 s on 248 pixels: each tenth is half of it.
    assert [y for _, y in ours] == [260.0, 136.0, 12.0]
    assert theirs[1][1] == pytest.approx(12 + 248 * (1 - 0.30103 / 2), abs=0.1)
    texts = [each.text for each in svg.findall("text")]
    assert texts[:7] == ["10.00 ms", "20.00 ms", "50.00 ms", "100.0 ms", "200.0 ms", "500.0 ms", "1.000 s"]
    assert texts[7:] == ["0", "4", "64", "past", "ours", "<theirs>"]
    told = [each.findtext("title") for each in svg.findall("circle")]
    assert told[1] == "ours, past = 4: 100.0 ms"


def test_a_chart_of_one_extent_and_names_side_by_side() -> None:
    svg = ElementTree.fromstring(extent_chart({"a": [(8, 0.003)], "b": [(8, 0.003)]}, "n"))
    first, second = (float(each.get("y", "")) for each in svg.findall("text")[-2:])
    assert second - first == 14
