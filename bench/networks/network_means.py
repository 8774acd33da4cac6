"""The networks of the float32 table together: how far they are ahead of the best framework for each tuning time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import geometric_mean

from bench.saved_result import SavedResult
from bench.tables import markdown

LABEL = "f32-"
"""How the labels of results begin that belong to the table."""


def network_means(results: Sequence[SavedResult]) -> str:
    """A row for each tuning time: number of networks, geometric mean of the ratios, the least one and its network.

    Empty where there is no such result.
    """
    by_budget: defaultdict[float, list[tuple[float, str]]] = defaultdict(list)
    for saved in results:
        if saved.bench == "network-latency" and saved.label.startswith(LABEL):
            details = saved.result["details"]
            name = details["model"].rpartition(":")[2]
            by_budget[details["budget_secs"]].append((saved.result["ratio"], name))
    if not by_budget:
        return ""
    rows = []
    for budget, ratios in sorted(by_budget.items()):
        least, name = min(ratios)
        mean = geometric_mean([ratio for ratio, _ in ratios])
        rows.append((f"{budget:g} s", str(len(ratios)), f"{mean:.2f}", f"{least:.2f} ({name})"))
    return markdown(("float32 networks tuned for", "networks", "geometric mean of the ratios", "least"), rows)
