"""A run whose tasks are all settled by the shared store: what is compiled of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from devices.describing.cache import DescriptionCache, TaskDescription
from devices.host.file_cache import user_folder
from devices.networks.tasks.lowering import LoweredNetwork
from fleet_tune.base.config.request import run_request
from fleet_tune.base.domain import FewerRows
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import Progress
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.context import RunContext
from fleet_tune.runs.interruption import Interruption
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes, run_store
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.publishing.incumbents import Incumbents
from fleet_tune.runs.shared_store.lookup import StoreLookup
from fleet_tune.runs.tuning import tuning
from tests.helpers.devices import make_fingerprint
from tests.helpers.dynamic_rows import over_rows
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task

FIXED = make_task("fixed")
DYNAMIC = dataclasses.replace(make_task("dynamic"), fewer_rows=(FewerRows("[]", 0.5),))


class Hosts:
    """Hosts that have nothing to do."""

    window = None
    members: dict[str, Any] = {}  # noqa: RUF012

    async def close(self) -> None: ...


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """A network of both tasks, which was compared and whose store is open."""
    monkeypatch.setattr(run_store, "open_run_store", lambda network, *_: (network, {}))
    monkeypatch.setattr(device_classes, "check", lambda network, *_: network)
    last = Progress("tuning", 1.0, None, None, 0, 0, {}, 0.0, {}, {}, ())
    monkeypatch.setattr(tuning, "snapshot_without_trials", lambda *_: last)
    device_class = FIXED.device_class
    lowered = LoweredNetwork("net", "", device_class, None, (FIXED, DYNAMIC), {}, (), ())
    monkeypatch.setattr(LoweredNetwork, "weights_bytes", 0)
    name = device_class.name
    found = StoreLookup(tmp_path / "store.db", settled=frozenset({FIXED.id, DYNAMIC.id}))
    prints = {name: make_fingerprint(device_class)}
    return Prepared(cast(Any, None), prints, {name: lowered}, frozenset({name}), {name: ()}, found=found)


async def test_the_records_over_dynamic_rows_are_ranked_as_after_a_tuning(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the sketches, which only these tasks have. The fastest for the most rows leaves a thread idle for few."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sketch = over_rows(0.5)
    DescriptionCache(user_folder()).store(DYNAMIC, TaskDescription((sketch,)))
    request, interruption = run_request("net.onnx", out=tmp_path / "out", store=""), Interruption()
    reporter = ProgressReporter(request.limits, None, [])
    shared = SharedStore(request, "run", reporter, interruption)
    context = RunContext(request, "run", interruption, reporter, shared, ())
    tuned = await tuning.settle(context, prepared, cast(Any, Hosts()), cast(Any, None))
    assert [(entry.task, entry.sketches) for entry in tuned.tasks] == [(FIXED, ()), (DYNAMIC, (sketch,))]
    idle, busy = (
        make_candidate(DYNAMIC, *decisions, sketch_id=sketch.id) for decisions in ((2, 8, 4, 1, 32), (2, 8, 4, 2, 16))
    )
    with RecordStore(request.records) as store:
        store.append([make_record(idle, ok(0.9e-5)), make_record(busy, ok(1e-5))])
    best = Incumbents(request.records, None, print, entries=tuned.tasks).best(DYNAMIC.id)
    assert best is not None
    assert best.candidate == busy
