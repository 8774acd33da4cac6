"""The dashboards: panels that do not overlap, and queries that a real Prometheus answers with data of a run."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.results import NetworkResult, Progress, TaskProgress
from fleet_tune.base.stages import DurationCounter, StageProgress
from fleet_tune.runs.metrics import Metrics, RunInfo
from tests.helpers.grafana import DASHBOARDS, GRAFANA, all_queries
from tests.helpers.prometheus import scraping
from tests.helpers.records import make_record
from tests.helpers.tasks import make_candidate

_DEADLINE_SECS = 60


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_their_places(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_what_panels_refer_to_is_there(name: str) -> None:
    dashboard = DASHBOARDS[name]
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(dashboard["panels"])))
    assert used <= variables
    assert dashboard["uid"].startswith("fleet-tune-")


def test_both_are_provisioned() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "dashboards.yml").read_text())["providers"]
    assert provider["type"] == "file"
    (source,) = yaml.safe_load((GRAFANA / "datasources.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert set(DASHBOARDS) == {"run", "fleet"}


def _fill(metrics: Metrics, trials: int) -> None:
    """Metrics as a run in the middle has them."""
    measured = Measurement(Outcome.OK, (1e-3,), build_secs=0.2, measure_secs=0.03)
    metrics.observe(
        dataclasses.replace(make_record(make_candidate("w@zen5", 1), measured, f"r{trials}"), device_id="a")
    )
    for number in range(8):
        candidate = dataclasses.replace(make_candidate("w@zen5", number), predicted_secs=1.0 + number)
        measured = Measurement(Outcome.OK, (1e-3 * (1 + number),))
        metrics.observe(make_record(candidate, measured, f"p{trials}-{number}"))
    metrics.enter("tuning")
    durations = DurationCounter()
    for _ in range(trials):
        durations.add(0.2)
    task = TaskProgress("conv@zen5", "conv 8x8", "zen5", 2, 1e9, 1, trials, 1e-3)
    vitals = {"a": {"speed": 1.0, "clock_hertz": 3e9, "temperature_celsius": 50.0}}
    progress = Progress(
        "tuning",
        60.0,
        300.0,
        None,
        trials,
        trials,
        {"ok": trials},
        2.5,
        {"build": 4},
        {"a": "good" if trials % 2 else "lost"},
        (task,),
        vitals=vitals,
        model_unix_secs=time.time(),
        device_time={"zen5": {"measure": 0.6, "build": 0.4}},
        device_changes=trials,
        stages={"build": StageProgress(trials, trials, 0, 0, durations.histogram, durations.histogram)},
    )
    metrics.update(progress)
    metrics.publish([NetworkResult("zen5", Path("out"), 1e-3, 1e-2, None, 1e-6, 1e-6)])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_are_of_grafanas_schema(name: str) -> None:
    """What the schema does not know gets lost on the way through its classes."""
    register_default_plugins()
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(DASHBOARDS[name])))
    assert list(_lost(DASHBOARDS[name], again)) == []
    assert list(_lost({"panels": [{"titel": "x"}]}, {"panels": [{"title": "x"}]})) == ["/panels/0/titel"]


def _lost(value: Any, again: Any, path: str = "") -> Iterator[str]:
    """The places of a JSON value that are not the same in another one."""
    if isinstance(value, dict) and isinstance(again, dict):
        for key, each in value.items():
            yield from _lost(each, again[key], f"{path}/{key}") if key in again else [f"{path}/{key}"]
    elif isinstance(value, list) and isinstance(again, list) and len(value) == len(again):
        for at, (one, other) in enumerate(zip(value, again, strict=True)):
            yield from _lost(one, other, f"{path}/{at}")
    elif value != again:
        yield path


def test_every_query_returns_data_of_a_run(prometheus_dir: Path, free_port: int, tmp_path: Path) -> None:
    metrics = Metrics(0, run=RunInfo("net.onnx", "r1", "fleet", "7"))
    unanswered = all_queries()
    deadline, trials = time.monotonic() + _DEADLINE_SECS, 0
    try:
        with scraping(prometheus_dir, metrics.port, free_port, tmp_path) as query:
            while unanswered:
                assert time.monotonic() < deadline, unanswered
                trials += 1
                _fill(metrics, trials)  # rates need two scrapes of a counter that grows
                threading.Event().wait(0.1)
                answers = {each: query(each) for each in unanswered}
                unanswered = [each for each, values in answers.items() if all(map(math.isnan, values))]
    finally:
        metrics.close()
