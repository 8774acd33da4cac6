"""Warm starts of a replay: which model each method begins with, and what a run does with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.datasets import DATA
from bench.models.laboratory import method_named
from bench.replay import warm_starts as subject
from bench.replay.replay_runs import RecordedTask, run_task
from bench.replay.start_models import model_at
from bench.replay.warm_starts import learned_from, shipped_start, taught_kind, teach, teaching_sets, warm_starts
from bench.result import BenchError
from fleet_tune.base.task_data import Dataset, TaskData
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS
from policies.cost_models.global_local import GlobalLocalModel
from policies.search.methods import METHOD_NAMES
from tests.bench.made_up import made_up


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A dataset of one made-up task."""
    path = tmp_path / "other.ftd"
    path.write_bytes(b"stands for it")
    monkeypatch.setattr(subject, "read", lambda _: Dataset("m", (), (made_up("other", seed=7),)))
    return [path]


def test_each_method_begins_with_its_own_kind_or_a_shipped_one(sets: list[Path], tmp_path: Path) -> None:
    methods = {name: method_named(name) for name in METHOD_NAMES}
    taught = {name: kind.name for name, each in methods.items() if (kind := taught_kind(each)) is not None}
    assert taught == {
        "autotvm": "boosted-rank-loops",
        "ansor": "boosted-statements",
        "bansor": "boosted-statements",
    }
    starts = warm_starts(methods, sets, tmp_path)
    assert set(methods) - set(starts) == {"random"}
    assert starts["ansor"] == starts["bansor"] == tmp_path / "boosted-statements.model"
    pacm, ours = BUILTIN_PATHS["pretrained-pacm"], BUILTIN_PATHS["pretrained"]
    assert [starts[name] for name in ("pruner", "moa-pruner", "fleet", "adatune")] == [pacm, pacm, ours, ours]
    assert shipped_start(method_named("pruner")) == "pretrained-pacm"


def test_what_each_model_has_learned_from_is_counted(sets: list[Path], tmp_path: Path) -> None:
    shipped = [learned_from(BUILTIN_PATHS[name], sets) for name in ("pretrained-pacm", "pretrained")]
    assert shipped == [11_200, 44_022]
    methods = {"ansor": method_named("ansor")}
    assert learned_from(warm_starts(methods, sets, tmp_path)["ansor"], [*sets, *sets]) == 2 * len(
        made_up("other", seed=7)
    )


def test_autotvm_is_the_sum_of_what_was_taught_and_its_own(data: TaskData, sets: list[Path], tmp_path: Path) -> None:
    task, method = RecordedTask(data), method_named("autotvm")
    prior = model_at(warm_starts({"autotvm": method}, sets, tmp_path)["autotvm"])
    assert prior.KIND == "boosted-loops"
    search = task.search(method, 1, prior)
    assert {each.reason for each in search.propose(16)} != {"random"}  # it knows something before any record
    search.observe([outcome for _, outcome in task.played(search, method, 1)])
    model = search.train(1)
    assert isinstance(model, GlobalLocalModel)
    assert model.general.KIND == prior.KIND
    warm = run_task(task, method, 1, 0, prior)
    assert 1 <= warm.trials <= len(data)
    assert warm.uninformed <= 16
    assert run_task(task, method, 1, 0).uninformed > 16


def test_sets_without_a_success_are_refused(sets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "read", lambda _: Dataset("m", (), ()))
    kind = taught_kind(method_named("autotvm"))
    assert kind is not None
    with pytest.raises(BenchError, match=r"no candidate of other\.ftd ran: give other sets"):
        teach(kind, sets, tmp_path)


def test_the_teaching_sets_are_those_of_the_shipped_model(tmp_path: Path) -> None:
    found = {path.relative_to(DATA).parts[0] for path in teaching_sets()}
    assert {"znver5-2.ftd", "other-class", "untouched", "unseen"} <= found
    assert not found & {"hosted", "served", "halves", "quantised"}
    assert len(teaching_sets()) == 11
    with pytest.raises(BenchError, match=r"lacks a dataset that the shipped model was trained on: znver5-2\.ftd"):
        teaching_sets(tmp_path)
