"""Table of ``bench shape-latency``, and the text below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.latency.shape_figures import DYNAMIC, FIXED, median_of
from bench.tables import markdown
from devices.networks.frameworks.order import OURS


def table(result: Mapping[str, Any]) -> str:
    """Return a table with a row for each extent and one for the mean. Text below it gives the tuning time, the loading
    figures, and the sides that do not run."""
    details = result["details"]
    extents, alone = details["extents"], "alone" in details
    sides = (OURS, *details["frameworks"])
    total = sum(each["weight"] for each in extents)
    rows = []
    for each in extents:
        row = [str(each["extent"]), f"{each['weight'] / total:.3f}"]
        row += [_milliseconds(median_of(each, side)) for side in sides] + [_ratio(each["ratio"])]
        if alone:
            row += [_milliseconds(median_of(each, FIXED)), _ratio(each["fixed_ratio"])]
        rows.append(tuple(row))
    means = (_milliseconds(details["mean_secs"][side]) for side in sides)
    last = ["mean", "1", *means, _ratio(result["ratio"])]
    if alone:
        last += [_milliseconds(details["mean_secs"][FIXED]), _ratio(details["ratios"][FIXED])]
    rows.append(tuple(last))
    header = (f"`{details['model']}`: {details['dimension']}", "share", *sides, "the best of the others / fleet-tune")
    columns = (*header, "fixed to it", "fixed / fleet-tune") if alone else header
    return "\n\n".join((markdown(columns, rows), *_lines(details)))


def _lines(details: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs below the table."""
    tuned = f"Milliseconds a run. Tuned once, in {details['tuning']['elapsed_secs']:.0f} s"
    if "alone" in details:
        alone = details["alone"]
        tuned += f"; for each extent alone, in {alone['elapsed_secs']:.0f} s together"
    loading = details["loading"]
    loads = [_loading(name, loading[name]) for name in (DYNAMIC, FIXED) if name in loading]
    problems: dict[str, list[str]] = {}
    for each in details["extents"]:
        for name, side in each["sides"].items():
            if "problem" in side:
                problems.setdefault(f"{name} does not run: {side['problem']}", []).append(str(each["extent"]))
    everywhere = len(details["extents"])
    told = [
        text if len(where) == everywhere else f"With {details['dimension']} = {', '.join(where)}, {text}"
        for text, where in problems.items()
    ]
    return [f"{tuned}.", f"With {details['dimension']} = {loading['extent']}, {'; '.join(loads)}.", *told]


def _loading(name: str, figures: Mapping[str, Any]) -> str:
    secs, peak, own = (figures[key]["median"] for key in ("load_secs", "peak_mib", "network_mib"))
    return f"{name}: {1e3 * secs:.3g} ms to load, {peak:.0f} MiB of memory at most, {own:.0f} of them for the network"


def _milliseconds(secs: float | None) -> str:
    return "-" if secs is None else f"{1e3 * secs:.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
