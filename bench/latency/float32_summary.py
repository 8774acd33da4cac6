"""Summary of the float32 table: the speed of all networks relative to the best framework for each tuning time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import geometric_mean

from bench.saved_result import SavedResult
from bench.tables import markdown, section_link

LABEL = "f32-"
"""Prefix of the labels of results that belong to the table."""


def is_float32_row(saved: SavedResult) -> bool:
    """Return true if the result is a cell of the table."""
    return saved.bench == "network-latency" and saved.label.startswith(LABEL) and saved.result["ratio"] is not None


def float32_summary(results: Sequence[SavedResult]) -> str:
    """Return a table with a row for each network, a column for each tuning time, and a last row with the geometric mean
    of each column. A cell is the time of the best framework divided by ours.

    Return an empty string if there is no such result.
    """
    found: defaultdict[str, dict[float, SavedResult]] = defaultdict(dict)
    for saved in filter(is_float32_row, results):
        details = saved.result["details"]
        found[details["model"].rpartition(":")[2]][details["budget_secs"]] = saved
    if not found:
        return ""
    budgets = sorted({budget for of in found.values() for budget in of})
    rows = [
        (f"`{name}`", *(_cell(of[budget]) if budget in of else "-" for budget in budgets)) for name, of in found.items()
    ]
    columns = {budget: [of[budget].result["ratio"] for of in found.values() if budget in of] for budget in budgets}
    means = (f"{geometric_mean(ratios):.2f} of {len(ratios)}" for ratios in columns.values())
    header = ("ratio of a float32 network, tuned for", *(f"{budget:g} s" for budget in budgets))
    return markdown(header, [*rows, ("geometric mean", *means)])


def _cell(saved: SavedResult) -> str:
    return section_link(f"{saved.result['ratio']:.2f}", saved.key)
