"""The learner beside a search: its versions, its models of tasks and of device classes, and its loss."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from actors.clients.calls import ActorLostError, ActorTimeoutError, ByValue, ask
from actors.clients.recorder import RecorderClient
from actors.processes.learner import Learner
from actors.processes.searcher import model_key
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Access, Axis, Choice, Loop, Sketch, Statement, Tile
from policies.cost_models.boosted import InvariantTreesModel
from policies.cost_models.global_local import GlobalLocalModel
from policies.cost_models.knowledge import general_examples, own_prior
from policies.cost_models.moa import MomentumModel
from policies.cost_models.registry import load_model
from policies.search.methods import METHOD_NAMES, method_named
from policies.search.search import Observation
from policies.space.sampling import sample
from tests.actors.conftest import Fleet, roster_of, trials
from tests.helpers.devices import CPU
from tests.helpers.tasks import make_task

DEADLINE_SECS = 120.0


async def within(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECS
    while time.monotonic() < deadline:
        found = await condition()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_SECS:g} s: {what}")


async def process_of(actor: Any) -> int:
    pid: int = await ask(actor.__ray_call__.remote(lambda _: os.getpid()), 30.0, "pid")
    return pid


async def models_of(learner: Any) -> dict[str, tuple[int, list[Any]]]:
    try:
        found: dict[str, tuple[int, list[Any]]] = await ask(learner.follow.remote({}, 0.0), 30.0, "models")
    except (ActorLostError, ActorTimeoutError):
        return {}
    return found


async def test_each_version_is_published_once_and_the_searcher_gets_it(fleet: Callable[..., Fleet]) -> None:
    made = fleet(method="bansor", learner=True)
    await ask(made.start(trials=60).run.remote(), DEADLINE_SECS, "run")
    learner = made.actors["learner"]

    async def same_versions() -> tuple[Any, ...]:
        found, again = await models_of(learner), await models_of(learner)
        same = {key: version for key, (version, _) in found.items()} == {key: each[0] for key, each in again.items()}
        return (found, again) if found and same else ()

    # The search is over: soon no version follows.
    found, again = await within(same_versions, "a last version")
    key = next(iter(found))
    assert found[key][1] == again[key][1], "the same version is the same object, not a copy"
    weights = await ask(again[key][1][0], 30.0, "weights")
    assert load_model(weights).views == ("statements",)  # Ansor's: one model of all tasks
    newer = await ask(learner.follow.remote(dict.fromkeys(again, 10**9), 0.0), 30.0, "models")
    assert not newer.keys() & again.keys()  # what the searcher has already does not come again


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_stopped_learner_never_stops_the_search(fleet: Callable[..., Fleet]) -> None:
    made = fleet(method="bansor", learner=True)
    scheduler = made.start(trials=120)
    with stopped(await process_of(made.actors["learner"])):
        await ask(scheduler.run.remote(), DEADLINE_SECS, "run")
    assert len(trials(made.store)) == 120


async def test_a_killed_learner_never_stops_the_search_and_comes_back(fleet: Callable[..., Fleet]) -> None:
    made = fleet(method="bansor", learner=True)
    scheduler = made.start(trials=120)
    learner = made.actors["learner"]
    killed = await process_of(learner)
    running = asyncio.ensure_future(ask(scheduler.run.remote(), DEADLINE_SECS, "run"))
    os.kill(killed, signal.SIGKILL)
    await running
    assert len(trials(made.store)) == 120
    # Ray starts it again; it reads the records from the first one and has models as before.
    await within(lambda: models_of(learner), "a model of the new process")
    assert await process_of(learner) != killed


# -- without a cluster ----------------------------------------------------------------------------------------------


def matmul(size: int) -> Sketch:
    accesses = (
        Access("A", (size, size), 4, ((1, 0, 0), (0, 0, 1))),
        Access("B", (size, size), 4, ((0, 0, 1), (0, 1, 0))),
        Access("C", (size, size), 4, ((1, 0, 0), (0, 1, 0)), write=True),
    )
    axes = (Axis("i", size, False), Axis("j", size, False), Axis("k", size, True))
    loops = (Loop(0, 0), Loop(1, 2), Loop(2, 4), Loop(0, 1), Loop(2, 5), Loop(1, 3))
    main = Statement("matmul", axes, loops, accesses, 2.0, parallel_limit=32, vectorize_limit=64, unroll_column=6)
    tiles = (Tile(size, 2, 64), Tile(size, 2, 64), Tile(size, 2, 64))
    return Sketch(0, "tiling", f"matmul {size}", (*tiles, Choice("unroll", (0, 16, 64))), (main,))


def entry(size: int, device_class: str, prior: bytes = b"") -> SearchTask:
    task = make_task(f"matmul{size}", device_class, flop=2.0 * size**3)
    return SearchTask(task, (matmul(size),), CPU, prior=prior)


def learner_of(entries: tuple[SearchTask, ...], method: str, folder: Path) -> Learner:
    """The actor's class as a plain object that has seen 32 records of every task."""
    roster = roster_of(folder / "tasks", entries)
    made = Learner(roster, method_named(method), 0, ByValue(cast("RecorderClient", None)), None, str(folder))
    for each in entries:
        assert made._add_task(each.task.id)
        rows = sample(each.sketches[0], 32, np.random.default_rng(1))
        costs = 1e-4 * (1 + np.abs(np.log2(rows[:, 1]) - 3))
        made._tables[each.task.id].observe(
            Observation(0, tuple(map(int, row)), float(cost)) for row, cost in zip(rows, costs, strict=True)
        )
    return made


ENTRIES = (entry(64, "one"), entry(128, "one"), entry(64, "two"))


def test_a_model_of_shared_features_serves_all_tasks_of_a_class(tmp_path: Path) -> None:
    learner = learner_of(ENTRIES, "fleet:boosted-invariant", tmp_path)
    assert learner._members == {"one": ["matmul64@one", "matmul128@one"], "two": ["matmul64@two"]}
    weights = learner._train("one")
    assert weights is not None
    assert isinstance(load_model(weights), InvariantTreesModel)


def test_a_task_that_starts_from_a_model_of_its_own_keeps_it_to_itself(tmp_path: Path) -> None:
    prior = learner_of((entry(64, "one"),), "fleet", tmp_path)._train("matmul64@one")
    assert prior is not None
    alone = dataclasses.replace(entry(32, "one"), prior=prior, own_prior=True)
    learner = learner_of((*ENTRIES, alone), "fleet:boosted-invariant", tmp_path)
    assert learner._members["one"] == ["matmul64@one", "matmul128@one"]
    assert learner._members["matmul32@one"] == ["matmul32@one"]


def test_a_model_of_symbolic_features_serves_one_task(tmp_path: Path) -> None:
    learner = learner_of(ENTRIES, "fleet", tmp_path)
    assert set(learner._members) == {"matmul64@one", "matmul128@one", "matmul64@two"}


def test_tasks_with_priors_start_from_them(tmp_path: Path) -> None:
    trees = InvariantTreesModel(0, from_analyzer=True)
    known = learner_of((entry(64, "one"),), "fleet:boosted-invariant", tmp_path)._tables["matmul64@one"].training_set()
    trees.fit(known.features, known.log_secs, known.groups)
    learner = learner_of(tuple(dataclasses.replace(each, prior=trees.save()) for each in ENTRIES), "fleet", tmp_path)
    weights = learner._train("matmul128@one")
    assert weights is not None
    assert isinstance(load_model(weights), GlobalLocalModel)


def test_a_model_that_is_adapted_is_kept_and_resumed(tmp_path: Path) -> None:
    entries = (entry(64, "one"),)
    first = learner_of(entries, "moa-pruner", tmp_path)
    weights = first._train("one")
    assert weights == (tmp_path / "one.model").read_bytes()
    second = learner_of(entries, "moa-pruner", tmp_path)
    again = second._train("one")
    assert again is not None
    resumed, before = load_model(again), load_model(weights or b"")
    assert isinstance(resumed, MomentumModel)
    assert isinstance(before, MomentumModel)
    assert (before.updates, resumed.updates) == (1, 2)  # the siamese weights went on from the stored ones

    (tmp_path / "one.model").write_bytes(b"FTMODEL1 torn")
    third = learner_of(entries, "moa-pruner", tmp_path)._train("one")
    assert third is not None
    assert load_model(third).updates == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["pruner:offline", "random"])
async def test_nothing_is_trained_where_nothing_is_to_be(method: str, tmp_path: Path) -> None:
    learner = learner_of((entry(64, "one"),), method, tmp_path)
    await learner.start()
    assert learner._worker is None


def test_knowledge_is_that_of_the_candidates() -> None:
    assert general_examples([], ("invariant",)) is None
    assert own_prior([], (matmul(64),), CPU, 0) == (None, 0)


def test_ansor_has_one_model_of_all_tasks_and_autotvm_one_of_each() -> None:
    one, two = entry(32, "board"), entry(64, "board")
    shared = {name: model_key(one, method_named(name)) == model_key(two, method_named(name)) for name in METHOD_NAMES}
    models = [name for name, whether in shared.items() if whether and method_named(name).training is not None]
    assert models == ["ansor", "bansor", "pruner", "moa-pruner"]
    assert model_key(one, method_named("autotvm")) == one.task.id
    assert model_key(dataclasses.replace(one, own_prior=True), method_named("ansor")) == one.task.id
