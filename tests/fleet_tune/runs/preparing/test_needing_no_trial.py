"""Runs that need no trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fleet_tune.base.config.request import RunRequest, run_request
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing.device_classes import needs_no_trial
from fleet_tune.runs.shared_store.lookup import StoreLookup
from tests.helpers.devices import CPU
from tests.helpers.tasks import make_task

CONV, DENSE = make_task("conv", "zen5"), make_task("dense", "zen5")


class Tasks:
    """A network with these, and what was found of them."""

    def __init__(self, found: StoreLookup | None, *tasks: Any) -> None:
        self.found = found
        self.undescribed = tuple(SearchTask(task, (), CPU) for task in tasks)


def needs_none(request: RunRequest, found: StoreLookup | None, *tasks: Any) -> bool:
    return needs_no_trial(cast(Prepared, Tasks(found, *tasks)), request)


@pytest.fixture
def request_() -> RunRequest:
    return run_request("net.onnx", out=Path("out"), store="")


def test_one_whose_tasks_are_all_settled_does(request_: RunRequest) -> None:
    found = StoreLookup(Path("store.db"), settled=frozenset({CONV.id, DENSE.id}))
    assert needs_none(request_, found, CONV, DENSE)
    assert needs_none(request_, found, CONV)
    assert not needs_none(request_, StoreLookup(Path("store.db"), settled=frozenset({CONV.id})), CONV, DENSE)
    assert not needs_none(request_, None, CONV)
    assert not needs_none(request_, found), "a network without tasks has nothing that was found"


def test_one_that_collects_does_not() -> None:
    found = StoreLookup(Path("store.db"), settled=frozenset({CONV.id}))
    collects = run_request("net.onnx", out=Path("out"), store="", collects=True, method="random", task_trials=3)
    assert not needs_none(collects, found, CONV)
