"""What the building of a network withdraws from a store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fleet_tune.domain import Outcome
from fleet_tune.records.origin import Origin
from fleet_tune.records.shared import SharedReader
from fleet_tune.records.store import RecordStore
from fleet_tune.runs.compiling.incumbents import Incumbents
from fleet_tune.runs.reusing.sharing import Giving
from tests.helpers.records import failed, named_record
from tests.helpers.tasks import make_task

HERE = Origin('{"kind":"llvm"}', "a processor", 2, {"apache-tvm": "0.27"})
TASK = make_task("w1", "zen5")


def test_what_a_compilation_without_a_run_withdraws_counts_for_the_runs_that_share_a_store(tmp_path: Path) -> None:
    own, shared = tmp_path / "out" / "records.db", tmp_path / "team.db"
    with RecordStore(own) as store:
        store.put_task(TASK)
        store.put_run("a", {"zen5": HERE})
        store.append([dataclasses.replace(named_record("1", 1e-3), run_id="a")])
    giving = Giving(own, shared)
    assert giving.give() == 1
    told: list[str] = []
    incumbents = Incumbents(own, None, told.append)
    best = incumbents.best(TASK.id)
    assert best is not None
    incumbents.blame(best, failed(Outcome.WRONG_OUTPUT))
    assert (incumbents.best(TASK.id), told) == (None, [])
    assert giving.give() == 1
    with SharedReader(shared) as reader:
        (word,) = reader.last_words(TASK.id, reader.numbers_of(HERE), 9)
        assert (word.measurement.outcome, word.run_id) == (Outcome.WRONG_OUTPUT, "a")
        # A revision of that run itself would have the id that its number gives it: this one is none of those.
        assert word.uid != f"a-{best.candidate.id}-1"
