"""Pictures of curves: their lines, by hand, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.tuning.curve_pictures import median_line, method_pictures, quality_pictures


def _curve(*points: tuple[float, float]) -> list[dict[str, float]]:
    return [{"secs": secs, "trials": 2 * secs, "latency": latency} for secs, latency in points]


SEEDS = [_curve((1.0, 0.009), (40.0, 0.005)), _curve((2.0, 0.008), (50.0, 0.004)), _curve((20.0, 0.006))]


def test_the_median_begins_where_all_seeds_have_a_latency() -> None:
    assert median_line(SEEDS, "secs") == ([20.0, 40.0, 50.0], pytest.approx([8.0, 6.0, 5.0]))
    assert median_line(SEEDS, "trials")[0] == [40.0, 80.0, 100.0]


def test_a_network_has_a_picture_with_a_line_for_each_form(tmp_path: Path) -> None:
    curve = [{**point, "device_secs": 1.0} for point in SEEDS[0]]
    result: dict[str, Any] = {"details": {"models": {"a/net.py:net": {"curves": {"ours": curve, "peer": curve}}}}}
    [(name, draw)] = quality_pictures(result, "time-to-quality-x").items()
    assert name == "time-to-quality-x-net-py-net.svg"
    pytest.importorskip("matplotlib")
    draw(tmp_path / name)
    text = (tmp_path / name).read_text()
    assert [text.count(f">{each}<") for each in ("ours", "peer", "seconds of the device", "trials")] == [1, 1, 1, 1]
    draw(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_methods_are_drawn_along_what_their_curves_have(tmp_path: Path) -> None:
    result: dict[str, Any] = {"details": {"models": {"net.py:net": {"pruner": {"curves": SEEDS}}}}}
    [(name, draw)] = method_pictures(result, "methods").items()
    assert name == "methods-net-py-net.svg"
    pytest.importorskip("matplotlib")
    draw(tmp_path / name)
    text = (tmp_path / name).read_text()
    assert text.count(">pruner<") == 1
    assert "of the device" not in text
