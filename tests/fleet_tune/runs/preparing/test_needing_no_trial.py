"""Which runs only compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fleet_tune.base.config.request import RunRequest, run_request
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.preparing.preparation import Prepared, needs_no_trial
from fleet_tune.runs.run import Run
from fleet_tune.runs.shared_store.lookup import StoreLookup
from tests.helpers.devices import CPU
from tests.helpers.tasks import make_task

CONV, DENSE = make_task("conv", "zen5"), make_task("dense", "zen5")


class Tasks:
    """A network with these."""

    def __init__(self, *tasks: Any) -> None:
        self.undescribed = tuple(SearchTask(task, (), CPU) for task in tasks)


def needs_none(request: RunRequest, found: StoreLookup | None, *tasks: Any) -> bool:
    return needs_no_trial(cast(Prepared, Tasks(*tasks)), request, found)


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


def test_its_network_is_known_though_no_task_is_described(request_: RunRequest) -> None:
    run = Run(request_, None)
    run._prepared = cast(Any, Tasks(CONV))
    assert run.prepared is None, "its task is still to be described"
    run._is_spared = True
    assert run.prepared is run._prepared
