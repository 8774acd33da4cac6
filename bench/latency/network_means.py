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
    """A row for each tuning time: the number of networks, the geometric mean of their ratios, that of the networks
    which all rows have, and the least ratio with its network.

    Empty where there is no such result.
    """
    by_budget: defaultdict[float, dict[str, float]] = defaultdict(dict)
    for saved in results:
        if saved.bench == "network-latency" and saved.label.startswith(LABEL) and saved.result["ratio"] is not None:
            details = saved.result["details"]
            by_budget[details["budget_secs"]][details["model"].rpartition(":")[2]] = saved.result["ratio"]
    if not by_budget:
        return ""
    common = set.intersection(*(set(ratios) for ratios in by_budget.values()))
    rows = []
    for budget, ratios in sorted(by_budget.items()):
        name = min(ratios, key=ratios.__getitem__)
        shared = f"{geometric_mean([ratios[each] for each in common]):.2f}" if common else "-"
        mean = f"{geometric_mean(ratios.values()):.2f}"
        rows.append((f"{budget:g} s", str(len(ratios)), mean, shared, f"{ratios[name]:.2f} ({name})"))
    of_all = f"of the {len(common)} that all rows have"
    return markdown(("float32 networks tuned for", "networks", "geometric mean of the ratios", of_all, "least"), rows)
