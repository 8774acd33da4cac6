"""Reports on cost models: their manifest, and their ranking quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.report.run import cut, fact_grid, plural

if TYPE_CHECKING:
    from fleet_tune.base.records.datasets.model_file import Manifest
    from fleet_tune.training.cost_models import TaskQuality


def render_manifest(manifest: Manifest, path: Path) -> RenderableType:
    """Render a cost model's manifest: its kind, its data, and its figures."""
    facts = fact_grid()
    facts.add_row("cost model", Text(f"{manifest.model}, for {manifest.device_kind} devices"))
    facts.add_row("features", Text(f"version {manifest.feature_version}"))
    for source in manifest.data:
        what = f"{source.name}: {plural(source.candidates, 'candidate')} on {', '.join(source.device_classes)}"
        facts.add_row("data", Text(what))
    for name, value in manifest.metrics.items():
        facts.add_row(name.replace("_", " "), Text(f"{value:.3f}"))
    facts.add_row("file", Text(f"{path}, {path.stat().st_size / 1e6:.2f} MB"))
    return facts


def render_quality(qualities: Sequence[TaskQuality], mean: Mapping[str, float]) -> RenderableType:
    """Render a row for each task, and the mean."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task")
    table.add_column("device class")
    for name in ("candidates", "Top-1", "Top-5", "rank correlation"):
        table.add_column(name, justify="right")
    for each in qualities:
        figures = (each.top_1, each.top_5, each.rank_correlation)
        cells = [f"{value:.3f}" for value in figures]
        table.add_row(cut(each.name), cut(each.device_class), str(each.candidates), *cells)
    if mean:
        cells = [f"{mean[name]:.3f}" for name in ("top_1", "top_5", "rank_correlation")]
        table.add_row(Text("mean", "bold"), "", str(sum(each.candidates for each in qualities)), *cells)
    return Group(table)
