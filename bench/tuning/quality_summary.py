"""Summary of all results of ``bench time-to-quality``. Each network takes hours, so the results of single networks may
come from several commands and machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from bench.saved_result import SavedResult
from bench.tables import markdown, section_link
from bench.tuning.quality_comparison import ASKED, ASKED_AHEAD, times_less
from bench.tuning.tuner_runs import FORMS, PEERS


def is_quality(saved: SavedResult) -> bool:
    """Return true if the result is one of ``bench time-to-quality``."""
    return saved.bench == "time-to-quality"


def quality_summary(results: Sequence[SavedResult]) -> str:
    """Return a table for each method of ours and each time of the peer. It has a row for each network, from the newest
    result with that network, and rows for the least values, the geometric means and the required values.

    Empty if there is no such result.
    """
    newest: defaultdict[tuple[str, float], dict[str, SavedResult]] = defaultdict(dict)
    for saved in sorted(filter(is_quality, results), key=lambda saved: saved.date):
        details = saved.result["details"]
        of_setting = newest[details["method"], details["peer_secs"]]
        of_setting.update(dict.fromkeys(details["models"], saved))
    return "\n\n".join(_table(method, secs, of_model) for (method, secs), of_model in sorted(newest.items()))


def _table(method: str, peer_secs: float, of_model: Mapping[str, SavedResult]) -> str:
    figures = {model: [*_figures(saved.result["details"]["models"][model])] for model, saved in of_model.items()}
    rows = [
        (
            section_link(f"`{model.rpartition(':')[2]}`", saved.key),
            f"{saved.result['details']['peer_batch'] or 64}",
            *(f"{value:.2f}" for value in figures[model]),
        )
        for model, saved in of_model.items()
    ]
    columns = [*zip(*figures.values(), strict=True)]
    rows += [
        ("least", "", *(f"{min(column):.2f}" for column in columns)),
        (
            f"geometric mean of {len(rows)}",
            "",
            *(f"{geometric_mean(column):.2f}" if all(column) else "-" for column in columns),
        ),
        ("asked, of 6", "", *_asked()),
    ]
    words = "times less time", "times as fast at equal time"
    cells = (f"{form}, {word}, {peer}" for peer in PEERS for form in FORMS for word in words)
    header = (f"`{method}` against {peer_secs:g} s of MetaSchedule; 0: not reached", "its trials in a batch", *cells)
    return markdown(header, rows)


def _figures(found: Mapping[str, Any]) -> Iterator[float]:
    for peer in PEERS:
        against = found["against"][peer]
        for form in FORMS:
            yield times_less(against, form, "peer_secs")
            yield against["ahead"][form] or 0.0


def _asked() -> Iterator[str]:
    for peer in PEERS:
        for form in FORMS:
            yield f"{ASKED[form][peer]:g}"
            yield f"{ASKED_AHEAD:g}"
