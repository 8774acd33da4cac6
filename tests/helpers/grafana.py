"""The queries of the dashboards and of Prometheus' recording rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

GRAFANA = Path(__file__).parents[2] / "cluster" / "grafana"
DASHBOARDS: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}


def all_queries() -> list[str]:
    """Return all queries, for every instance."""
    panels = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]]
    queries = [target["expr"].replace("$instance", ".*") for panel in panels for target in panel["targets"]]
    rules = yaml.safe_load((GRAFANA.parent / "prometheus" / "recording.yml").read_text())
    return queries + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
