"""Cost models trained on similar workloads of a store: real candidates, in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from devices.describing.cache import DescriptionCache, TaskDescription
from fleet_tune.base.domain import Candidate, FewerRows, Outcome, Record
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import FromStore
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import SketchOfFewerRows
from fleet_tune.base.task_data import OUTCOMES, TaskData
from fleet_tune.runs.shared_store import store_prior
from fleet_tune.runs.shared_store.lookup import StoreLookup
from fleet_tune.runs.shared_store.store_prior import StorePrior, learns_from_store, read_store_prior
from policies.cost_models.knowledge import general_examples
from policies.cost_models.rank_quality import rank_correlation
from policies.cost_models.registry import load_model
from policies.search.methods import method_named
from tests.helpers.records import failed, make_record, ok

DATA = Path(__file__).parents[4] / "bench" / "data"


@pytest.fixture(scope="module")
def convs() -> list[TaskData]:
    """Four convolutions of one device class."""
    return [data for data in load(DATA / "znver5-2.ftd").tasks if data.task.workload.name.startswith("conv2d")]


def records(data: TaskData, count: int) -> list[Record]:
    """Of the first candidates of each sketch."""
    found = []
    for at, (sketch, matrix) in enumerate(zip(data.sketches, data.decisions, strict=True)):
        rows = np.flatnonzero(data.sketch_of == at)
        for decisions, row in list(zip(matrix.tolist(), rows, strict=True))[: count // len(data.sketches)]:
            outcome, secs = OUTCOMES[data.outcome[row]], data.run_secs[row]
            measured = ok(*secs[np.isfinite(secs)].tolist()) if outcome is Outcome.OK else failed(outcome)
            found.append(make_record(Candidate(data.task.id, at, sketch.id, tuple(decisions)), measured))
    return found


def stored(tmp_path: Path, known: Sequence[TaskData], count: int) -> Path:
    path = tmp_path / "store.db"
    with RecordStore(path) as store:
        for data in known:
            store.put_task(data.task)
            store.append(records(data, count))
    return path


def described(tmp_path: Path, known: Sequence[TaskData]) -> DescriptionCache:
    kept = DescriptionCache(tmp_path / "kept")
    for data in known:
        kept.store(data.task, TaskDescription(data.sketches))
    return kept


def read(tmp_path: Path, learner: TaskData, known: Sequence[TaskData], count: int = 300, kept: int = 99) -> StorePrior:
    """What a task learns from these, the nearest first, of which the first ``kept`` are described."""
    devices = {learner.task.device_class.name: learner.abstraction}
    similar = {learner.task.id: [data.task.id for data in known]}
    return read_store_prior(stored(tmp_path, known, count), similar, devices, described(tmp_path, known[:kept]), seed=0)


def test_what_is_learned_of_similar_workloads_ranks_the_candidates_of_another(
    tmp_path: Path, convs: list[TaskData]
) -> None:
    learner, *known = convs
    found = read(tmp_path, learner, known)
    entry = SearchTask(learner.task, learner.sketches, learner.abstraction)
    with_prior = found.with_prior(entry)
    assert found.with_prior(entry).prior is with_prior.prior, "it is trained once"
    model = load_model(with_prior.prior)
    examples = general_examples([learner], model.views)
    assert examples is not None
    ran = np.isfinite(np.concatenate([learner.cost_secs[learner.rows(at)] for at in range(len(learner.sketches))]))
    assert rank_correlation(model.predict(examples.features)[0][ran], examples.log_secs[ran]) > 0.5
    assert found.learners == {learner.task.id}
    assert 3 * store_prior.LEAST_CANDIDATES // 2 < found.candidates <= 3 * store_prior.MOST_RECORDS


def test_only_what_was_described_here_is_learned_from(tmp_path: Path, convs: list[TaskData]) -> None:
    learner, *known = convs
    found = read(tmp_path, learner, known, kept=1)
    assert [data.task.id for data in found.sources[learner.task.device_class.name]] == [known[0].task.id]
    (tmp_path / "other").mkdir()
    assert read(tmp_path / "other", learner, known, kept=0).learners == frozenset()


def test_kernels_over_dynamic_rows_teach_by_the_times_of_the_most_rows(tmp_path: Path, convs: list[TaskData]) -> None:
    """They were described with their fewer rows, which the tasks of a store do not have."""
    learner, *known = convs
    expected = read(tmp_path, learner, known)
    (tmp_path / "dynamic").mkdir()
    dynamic = [
        dataclasses.replace(
            data,
            task=dataclasses.replace(data.task, fewer_rows=(FewerRows("[]", 0.5),)),
            sketches=tuple(
                dataclasses.replace(each, fewer_rows=(SketchOfFewerRows(each, 0.5),)) for each in data.sketches
            ),
        )
        for data in known
    ]
    found = read(tmp_path / "dynamic", learner, dynamic)
    assert (found.learners, found.candidates) == ({learner.task.id}, expected.candidates)
    (sources,) = found.sources.values()
    assert not any(sketch.fewer_rows for data in sources for sketch in data.sketches)


def test_a_task_whose_similar_ones_teach_nothing_learns_nothing(tmp_path: Path, convs: list[TaskData]) -> None:
    one, other, *known = convs
    name = one.task.device_class.name
    similar = {one.task.id: [known[0].task.id], other.task.id: [known[1].task.id], "w@gone": []}
    store = stored(tmp_path, known, 300)
    found = read_store_prior(store, similar, {name: one.abstraction}, described(tmp_path, known[:1]), seed=0)
    assert found.learners == {one.task.id}
    entries = [SearchTask(each.task, each.sketches, each.abstraction) for each in (one, other)]
    assert StoreLookup(store, prior=found).without_prior(entries) == entries[1:]


def test_too_few_candidates_teach_nothing(tmp_path: Path, convs: list[TaskData]) -> None:
    learner, known, *_ = convs
    found = read(tmp_path, learner, [known], count=store_prior.LEAST_CANDIDATES // 2)
    assert (found.learners, found.candidates) == (frozenset(), 0)


def test_what_is_read_is_bounded_and_the_nearest_of_each_task_come_first(
    tmp_path: Path, convs: list[TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_prior, "MOST_WORKLOADS", 2)
    monkeypatch.setattr(store_prior, "MOST_RECORDS", 120)
    first, second, third, fourth = convs
    similar = {first.task.id: [second.task.id, third.task.id], third.task.id: [fourth.task.id, second.task.id]}
    devices = {first.task.device_class.name: first.abstraction}
    found = read_store_prior(stored(tmp_path, convs, 300), similar, devices, described(tmp_path, convs), seed=0)
    (sources,) = found.sources.values()
    assert [data.task.id for data in sources] == [second.task.id, fourth.task.id]
    assert all(len(data) <= 120 for data in sources)


def test_classes_learn_by_themselves(tmp_path: Path, convs: list[TaskData]) -> None:
    learner, *known = convs
    later = StorePrior({"board": ()}, frozenset({"w@board"}))
    both = read(tmp_path, learner, known).with_class(later)
    assert both.learners == {learner.task.id, "w@board"}
    assert set(both.sources) == {learner.task.device_class.name, "board"}


def test_people_see_how_many_learn_from_how_many(tmp_path: Path, convs: list[TaskData]) -> None:
    learner, *known = convs
    found = read(tmp_path, learner, known)
    summary = StoreLookup(tmp_path / "store.db", prior=found).summary
    assert summary == FromStore(str(tmp_path / "store.db"), 0, 0, 0, taught=1, learned=found.candidates)


def test_our_own_method_is_taught_and_those_of_the_papers_start_as_they_were_published() -> None:
    assert [name for name in ("fleet", "autotvm", "moa-pruner", "random") if learns_from_store(method_named(name))] == [
        "fleet"
    ]
