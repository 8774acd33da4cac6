"""The table of ``bench time-to-quality``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.tables import markdown
from bench.tuning.pieces import sources_text
from bench.tuning.quality_comparison import ASKED_AHEAD, ASKED_LEAST, ASKED_LEAST_AHEAD
from bench.tuning.tuner_runs import FORMS

WRONG = 1e-2
"""Outputs with a larger error than this, relative to the largest output, are called wrong."""
_CLAIM = {"pruner": " (in its paper: 4.08 times less time than MetaSchedule, on tensor cores)"}
"""Claims of papers against the peer, by method."""


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows, points = [], []
    for model, found in details["models"].items():
        name = model.rpartition(":")[2]
        for peer, against in found["against"].items():
            left = f", {against['unscheduled']} kernels without a valid trial" if against.get("unscheduled") else ""
            left += f", outputs wrong by {against['error']:.0%}" if against.get("error", 0.0) > WRONG else ""
            for form in FORMS:
                secs, ahead, own = against["times"][form], against["ahead"][form], against["own_secs"]
                rows.append(
                    (
                        f"`{name}`, {form}",
                        f"{peer}, {1e3 * against['latency']:.2f} ms{left}",
                        f"{against['peer_secs']:.0f}",
                        f"{own:.0f}",
                        "not reached" if secs is None else f"{secs:.0f}",
                        "-" if secs is None else f"{against['peer_secs'] / secs:.1f}",
                        "-" if secs is None else f"{own / secs:.1f}",
                        "-" if ahead is None else f"{ahead:.2f}",
                    )
                )
        points += [
            (
                f"`{name}`, {form}",
                *(
                    "-" if point.get(unit) is None else f"{point[unit]:.0f}"
                    for unit in ("secs", "trials", "device_secs")
                ),
                f"{1e3 * point['latency']:.2f}",
                f"{point['shipped']} of {point['tasks']}" if point.get("shipped") else "-",
            )
            for form, curve in found["curves"].items()
            for point in curve
        ]
    means = []
    for form, of_form in details["means"].items():
        for peer, mean in of_form.items():
            worst = details["least"][form][peer]
            means.append(
                (
                    f"{form}, against {peer}",
                    f"{worst['models']}",
                    f"{_mean_text(mean)} ({details['asked'][form][peer]:g})",
                    f"{_worst_text(worst['times'])} ({ASKED_LEAST:g})",
                    f"{_mean_text(worst['ahead_mean'])} ({ASKED_AHEAD:g})",
                    f"{_worst_text(worst['ahead'])} ({ASKED_LEAST_AHEAD:g})",
                    _mean_text(details["own_means"][form][peer]),
                )
            )
    ours_header = ("ours, s", "times less", "times less than itself", "faster at equal time")
    header = ("network", "against", "s", "itself as fast after, s", *ours_header)
    curve_header = ("network", "s", "trials", "s of the device", "ms a run", "tasks with shipped records")
    batch = f", batches of {details['peer_batch']} trials instead of 64" if details["peer_batch"] else ""
    ours = f"`{details['method']}`{_CLAIM.get(details['method'], '')}"
    said = f"Our method: {ours}. The peer: {details['peer_secs']:g} s{batch}. Seed {details['seed']}."
    mean_header = (
        "geometric mean and worst network (asked)",
        "networks",
        "times less time",
        "worst",
        "times as fast at equal time",
        "worst",
        "times less time than until it was as fast",
    )
    said += f" {sources_text(details['sources'])}"
    return "\n\n".join((markdown(mean_header, means), said, markdown(header, rows), markdown(curve_header, points)))


def _worst_text(worst: Sequence[Any]) -> str:
    model, times = worst
    return f"{times:.2f}, `{model.rpartition(':')[2]}`" if times else f"not reached, `{model.rpartition(':')[2]}`"


def _mean_text(mean: float | None) -> str:
    return f"{mean:.1f}" if mean else "not reached by all"
