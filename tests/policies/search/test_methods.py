"""Every method, in the open and in pools: deterministic, never repeating, and each part switched by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.errors import UserError
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import analyse
from policies.analysis.equation_1 import equation_1_log_secs
from policies.arrays import Floats
from policies.cost_models import neural
from policies.cost_models.architectures import PacmModel
from policies.cost_models.neural import NeuralSettings
from policies.cost_models.registry import (
    BOOSTED,
    BOOSTED_RANK_LOOPS,
    BOOSTED_STATEMENTS,
    FOREST_KNOBS,
    PACM,
    load_model,
)
from policies.features.table import FeatureTable
from policies.search.acquisition import (
    ExpectedImprovement,
    PredictedMean,
)
from policies.search.allocation import JointSketches, UcbSketches, UniformSketches
from policies.search.annealing import AnnealingSettings
from policies.search.bandits import FloorGradient, GradientTasks, PublishedGradient, TaskState, UcbTasks
from policies.search.batch import Selection
from policies.search.draft import DraftSettings
from policies.search.exploration import ContextualEpsilon, FixedEpsilon
from policies.search.fitness import analyzer_log_secs
from policies.search.generators import AnnealingGenerator, DraftGenerator, GeneticGenerator, LatentGenerator
from policies.search.methods import METHOD_NAMES, Method, method_named, spec
from policies.search.search import Observation, Proposal, TaskSearch
from policies.search.trainer import Training
from policies.space.pools import Pool
from policies.space.sampling import log_coordinates, sample, unique_rows
from tests.helpers.properties import examples

pytestmark = pytest.mark.timeout(300)  # so that it begins early: others wait for what begins last

FLOP = 2.0 * 256**3
SMALL_DRAFT = DraftSettings(size=64, population=128, generations=2)
SMALL_ANNEALING = AnnealingSettings(chains=16, steps=12, patience=8)
FEW = examples(2, suppress_health_check=[HealthCheck.function_scoped_fixture])


def small(name: str) -> Method:
    """A method with less of everything, so that tests are fast."""
    method = method_named(name)
    generator = method.generator
    if isinstance(generator, DraftGenerator | GeneticGenerator | LatentGenerator):
        generator = replace(generator, settings=SMALL_DRAFT)
    elif isinstance(generator, AnnealingGenerator):
        generator = replace(generator, settings=SMALL_ANNEALING)
    return replace(method, generator=generator, batch=16)


@pytest.fixture(autouse=True)
def _networks_train_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tests are fast: how well they learn is tests/policies/cost_models's subject."""
    few = partial(NeuralSettings, epochs=4, update_epochs=2, least_steps=20, least_update_steps=10)
    monkeypatch.setattr(neural, "NeuralSettings", few)


@pytest.fixture
def sketches(tiled: Sketch, blocked: Sketch) -> tuple[Sketch, ...]:
    return (tiled, blocked)


@pytest.fixture
def pools(sketches: tuple[Sketch, ...]) -> tuple[Pool, ...]:
    made = []
    for sketch in sketches:
        matrix = sample(sketch, 150, np.random.default_rng(7))
        made.append(Pool(sketch, matrix[unique_rows(matrix)][:100]))
    return tuple(made)


def measured(sketches: tuple[Sketch, ...], device: DeviceAbstraction, proposals: list[Proposal]) -> list[Observation]:
    """Costs near the analyzer's; one in eleven fails."""
    outcomes = []
    for proposal in proposals:
        row = np.array([proposal.decisions])
        secs = float(analyse(sketches[proposal.sketch], row, device).latency_secs[0])
        wobble = 1.0 + 0.3 * math.sin(sum(proposal.decisions))
        failed = sum(proposal.decisions) % 11 == 0
        outcomes.append(Observation(proposal.sketch, proposal.decisions, math.inf if failed else secs * wobble))
    return outcomes


def keys(proposals: list[Proposal]) -> list[tuple[int, tuple[int, ...]]]:
    return [(proposal.sketch, proposal.decisions) for proposal in proposals]


def play(
    search: TaskSearch, sketches: tuple[Sketch, ...], device: DeviceAbstraction, rounds: int = 3
) -> list[Proposal]:
    """Rounds of 16, the last two of each pending for one more round; one model, after the first round."""
    played: list[Proposal] = []
    waiting: list[Proposal] = []
    for turn in range(rounds):
        batch = search.propose(16)
        played += batch
        search.observe(measured(sketches, device, waiting + batch[:-2]))
        waiting = batch[-2:]
        if turn == 0:
            search.use_model(search.train(seed=0))
    return played


@pytest.mark.parametrize("pooled", [False, True], ids=["open", "pools"])
@pytest.mark.parametrize("method", METHOD_NAMES)
@FEW
@given(seed=st.integers(0, 2**32 - 1))
def test_same_seed_and_records_give_the_same_candidates_and_none_twice(
    method: str,
    pooled: bool,
    sketches: tuple[Sketch, ...],
    pools: tuple[Pool, ...],
    cpu: DeviceAbstraction,
    seed: int,
) -> None:
    first, second = (
        TaskSearch(sketches, FLOP, cpu, small(method), np.random.default_rng(seed), pools if pooled else None)
        for _ in range(2)
    )
    played = play(first, sketches, cpu)
    assert keys(played) == keys(play(second, sketches, cpu))
    assert len(set(keys(played))) == len(played) == 48
    if pooled:
        rows = {(at, tuple(row)) for at, pool in enumerate(pools) for row in pool.matrix.tolist()}
        assert set(keys(played)) <= rows


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_pools_are_exhausted_exactly(
    method: str, sketches: tuple[Sketch, ...], pools: tuple[Pool, ...], cpu: DeviceAbstraction
) -> None:
    search = TaskSearch(sketches, FLOP, cpu, small(method), np.random.default_rng(0), pools)
    played: list[Proposal] = []
    while not search.exhausted:
        batch = search.propose(64)
        assert len(batch) == min(64, 200 - len(played))
        played += batch
        search.observe(measured(sketches, cpu, batch))
        if len(played) == 64:
            search.use_model(search.train(seed=0))
    assert len(set(keys(played))) == len(played) == 200
    assert search.propose(4) == []


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_outcomes_in_another_order_are_the_same_knowledge(
    method: str, sketches: tuple[Sketch, ...], pools: tuple[Pool, ...], cpu: DeviceAbstraction
) -> None:
    search = TaskSearch(sketches, FLOP, cpu, small(method), np.random.default_rng(0), pools)
    outcomes = measured(sketches, cpu, search.propose(32))
    other = TaskSearch(sketches, FLOP, cpu, small(method), np.random.default_rng(0), pools)
    search.observe(outcomes)
    other.observe(outcomes[::-1])
    assert search.best_secs == other.best_secs
    assert search.observed == other.observed == 32


@pytest.mark.parametrize(
    "change",
    [
        {"sketches": UniformSketches()},
        {"sketches": JointSketches()},
        {"tasks": GradientTasks()},
        {"exploration": FixedEpsilon(0.05)},
        {"exploration": ContextualEpsilon(plans=20)},
        {"acquisition": PredictedMean()},
        {"generator": GeneticGenerator(SMALL_DRAFT)},
        {"generator": AnnealingGenerator(SMALL_ANNEALING)},
        {"generator": DraftGenerator(SMALL_DRAFT)},
        {"selection": Selection()},
        {"selection": Selection(alpha=0.1, radius=1.0)},
        {"training": Training(BOOSTED)},
        {"training": None},
        {"by_round": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["fleet", "bansor"])
def test_each_part_is_switched_by_itself(
    method: str,
    change: dict[str, object],
    sketches: tuple[Sketch, ...],
    pools: tuple[Pool, ...],
    cpu: DeviceAbstraction,
) -> None:
    switched = replace(small(method), **change)
    search = TaskSearch(sketches, FLOP, cpu, switched, np.random.default_rng(0), pools)
    assert len(set(keys(play(search, sketches, cpu)))) == 48
    assert switched.make_task_bandit(0).choose([]) is None


def nearest(sketch: Sketch, points: list[Proposal], others: list[Proposal]) -> Floats:
    """Distance of each point to the nearest of the others."""
    left = log_coordinates(sketch, np.array([proposal.decisions for proposal in points]))
    right = log_coordinates(sketch, np.array([proposal.decisions for proposal in others]))
    return np.sqrt(np.square(left[:, None] - right[None]).sum(axis=2)).min(axis=1)


def test_pending_candidates_keep_the_next_batch_away(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    def neighbours(radius: float) -> int:
        """Candidates of a second batch that are one moved factor of two (distance 1.41) from one of the first."""
        chosen = replace(
            method_named("fleet"),
            selection=Selection(radius=radius),
            exploration=FixedEpsilon(0.0),
        )
        found = 0
        for seed in range(4):
            search = TaskSearch((tiled,), FLOP, cpu, chosen, np.random.default_rng(seed))
            search.observe(measured((tiled,), cpu, search.propose(32)))
            first, second = search.propose(16), search.propose(16)
            assert set(keys(first)).isdisjoint(keys(second))
            found += int((nearest(tiled, second, first) < 1.5).sum())
        return found

    assert 2 * neighbours(1.0) < neighbours(0.0)


class OddModel:
    """Predicts what no model should."""

    views = ("symbolic",)

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, deviation

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        mean = np.full(len(features), self.mean)
        mean[::3] = -7.0
        return mean, np.full(len(features), self.deviation)


@pytest.mark.parametrize("mean", [math.nan, math.inf, -math.inf, -8.0])
@pytest.mark.parametrize("deviation", [math.nan, math.inf, -1.0, 0.0])
@pytest.mark.parametrize("method", ["fleet", "adatune", "ansor"])
def test_a_model_that_predicts_no_numbers_is_borne(
    method: str,
    mean: float,
    deviation: float,
    sketches: tuple[Sketch, ...],
    pools: tuple[Pool, ...],
    cpu: DeviceAbstraction,
) -> None:
    search = TaskSearch(sketches, FLOP, cpu, small(method), np.random.default_rng(0), pools)
    first = search.propose(16)
    search.observe(measured(sketches, cpu, first))
    search.use_model(OddModel(mean, deviation))  # type: ignore[arg-type]
    second = search.propose(16)
    assert len(set(keys(first + second))) == 32
    assert all(0 < proposal.predicted_secs < math.inf for proposal in second)


def test_pools_must_be_those_of_the_sketches(
    sketches: tuple[Sketch, ...], pools: tuple[Pool, ...], cpu: DeviceAbstraction
) -> None:
    with pytest.raises(ValueError, match="each sketch"):
        TaskSearch(sketches, FLOP, cpu, method_named("fleet"), np.random.default_rng(0), pools[::-1])
    with pytest.raises(ValueError, match="each sketch"):
        TaskSearch(sketches, FLOP, cpu, method_named("fleet"), np.random.default_rng(0), pools[:1])


def test_hyperparameters_are_the_papers() -> None:
    autotvm, adatune, ansor, bansor = (method_named(name) for name in ("autotvm", "adatune", "ansor", "bansor"))
    assert (autotvm.training, autotvm.batch) == (Training(BOOSTED_RANK_LOOPS, of_each_task=True), 64)
    assert autotvm.views == ("context", "relation")
    assert autotvm.exploration == FixedEpsilon(0.05)
    assert autotvm.generator == AnnealingGenerator(AnnealingSettings(chains=128, steps=500))
    assert (adatune.training, adatune.batch) == (Training(FOREST_KNOBS), 32)
    assert adatune.views == ("knobs",)
    assert adatune.exploration == ContextualEpsilon(plans=20)
    assert adatune.acquisition == ExpectedImprovement()
    for each in (ansor, bansor):
        assert each.generator == GeneticGenerator(
            DraftSettings(size=512, population=2048, generations=4, variant_rows=1)
        )
        assert (each.batch, each.exploration) == (64, FixedEpsilon(0.05))
        assert (each.training, each.views) == (Training(BOOSTED_STATEMENTS), ("statements",))
    assert (ansor.sketches, ansor.tasks) == (UniformSketches(), GradientTasks())
    assert (ansor.tasks.gradient, bansor.sketches) == (PublishedGradient(0.2, 2.0, 3), UcbSketches(0.3))
    tasks = UcbTasks(0.3, PublishedGradient(0.2, 2.0, 3))
    assert replace(ansor, name="bansor", source=bansor.source, sketches=UcbSketches(), tasks=tasks) == bansor
    assert method_named("fleet").tasks == UcbTasks(0.3, FloorGradient())


def test_pruner_is_as_published() -> None:
    pruner = method_named("pruner")
    settings = DraftSettings(size=512, population=1536, generations=3, mutation=0.85, variant_rows=1)
    assert pruner.generator == LatentGenerator(settings, initial=50)
    other = method_named("pruner:equation-1")
    assert other == replace(
        pruner, name="pruner:equation-1", generator=LatentGenerator(settings, initial=50, published=True)
    )
    assert method_named("moa-pruner:offline:equation-1").name == "moa-pruner:offline:equation-1"
    with pytest.raises(UserError, match="does not draft by Pruner's analyzer"):
        method_named("fleet:equation-1")
    assert (pruner.training, pruner.batch) == (Training(PACM), 10)
    assert pruner.exploration == FixedEpsilon(0.1)
    assert pruner.learns_on
    assert set(pruner.views) == {"statements", "dataflow", "invariant"}
    adapted = method_named("moa-pruner")
    assert adapted == replace(
        pruner,
        name="moa-pruner",
        source=adapted.source,
        training=Training(PACM, momentum=0.99),
        starts_from="pretrained-pacm",
    )


def test_ours_and_moa_pruner_start_from_a_model_that_comes_along() -> None:
    starts = {name: method_named(name).starts_from for name in METHOD_NAMES}
    assert {name: start for name, start in starts.items() if start} == {
        "fleet": "pretrained",
        "moa-pruner": "pretrained-pacm",
    }
    assert not method_named("fleet:pacm").starts_from
    assert not method_named("fleet:offline").starts_from
    assert method_named("moa-pruner:equation-1").starts_from == "pretrained-pacm"


def test_ansor_may_have_smaller_rounds_and_sketches_that_compete() -> None:
    ansor = method_named("ansor")
    other = method_named("ansor:rounds-10:joint")
    assert other == replace(ansor, name="ansor:rounds-10:joint", batch=10, sketches=JointSketches())
    assert method_named("bansor:rounds-16").sketches == method_named("bansor").sketches
    with pytest.raises(UserError, match="names 2 sizes of rounds"):
        method_named("ansor:rounds-10:rounds-16")
    with pytest.raises(UserError, match="no cost model or variant 'rounds-0'"):
        method_named("ansor:rounds-0")


@pytest.mark.parametrize("name", ["pruner", "pruner:equation-1"])
def test_before_the_first_model_pruner_goes_by_its_own_analyzer(
    name: str, tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction
) -> None:
    search = TaskSearch([tiled, blocked], 2.0 * 256**3, cpu, method_named(name), np.random.default_rng(3))
    proposals = [each for each in search.propose(10) if each.reason != "random"]
    assert len(proposals) >= 8
    log_secs = equation_1_log_secs if name.endswith("1") else analyzer_log_secs
    expected = [
        float(log_secs((tiled, blocked)[each.sketch], np.array([each.decisions]), cpu)[0]) for each in proposals
    ]
    assert np.log([each.predicted_secs for each in proposals]) == pytest.approx(expected, rel=1e-4)
    assert expected == sorted(expected)


def test_the_bandit_of_a_method_counts_as_the_method_does() -> None:
    # By rounds of 64 the second task is owed a visit, by trials the first one is better (see test_bandits).
    states = [TaskState(2, 1e9, (1.0,) * 128), TaskState(0.9, 1e9, (1.0,) * 64)]
    chosen = [method_named(name).make_task_bandit(0).choose(states) for name in ("bansor", "fleet", "autotvm")]
    assert [each.index for each in chosen if each is not None] == [1, 0, 1]


def test_any_methods_model_can_be_replaced() -> None:
    changed = method_named("autotvm:pacm")
    assert changed == replace(method_named("autotvm"), name="autotvm:pacm", training=Training(PACM, of_each_task=True))
    assert method_named(spec("autotvm", "pacm")) == changed
    assert method_named(spec("pruner", offline=True)) == replace(
        method_named("pruner"), name="pruner:offline", training=Training(PACM, offline=True)
    )
    both = method_named(spec("ansor", "pacm", offline=True))
    assert (both.name, both.training) == ("ansor:pacm:offline", Training(PACM, offline=True))
    kept = method_named("moa-pruner:offline").training
    assert kept == Training(PACM, momentum=0.99, offline=True)
    assert spec("fleet") == "fleet"
    for wrong, problem in (
        ("autotvm:oracle", "no cost model or variant 'oracle' for the method 'autotvm'"),
        ("autotvm:mlp", "'mlp' is part of the benchmarks"),
        ("autotvm:boosted:pacm", "names 2 cost models"),
        ("random:pacm", "has no cost model"),
        ("random:offline", "has no cost model"),
        ("best:pacm", "no method 'best'"),
    ):
        with pytest.raises(UserError, match=problem):
            method_named(wrong)


@pytest.mark.parametrize(
    ("method", "offered", "withheld"),
    [
        ("fleet:adaptve", ["raced", "adaptive", "deterministic", "offline", "boosted"], ["equation-1"]),
        ("fleet:raced:adaptve", ["offline"], ["equation-1"]),
        ("pruner:adaptve", ["equation-1", "adaptive", "offline", "pacm"], []),
        ("random:adaptve", ["raced", "adaptive", "deterministic"], ["offline", "boosted", "equation-1"]),
    ],
)
def test_an_unknown_variant_is_answered_with_those_that_the_method_has(
    method: str, offered: list[str], withheld: list[str]
) -> None:
    with pytest.raises(UserError) as raised:
        method_named(method)
    assert f"'adaptve' for the method '{method.partition(':')[0]}'" in raised.value.problem
    choices = raised.value.next_step.removeprefix("choose one of: ").split(", ")
    assert set(offered) <= set(choices)
    assert not set(withheld) & set(choices)
    for choice in choices:
        assert method_named(f"{method.partition(':')[0]}:{choice}")


@pytest.mark.parametrize("method", ["autotvm:pacm", "ansor:pacm", "fleet:boosted-invariant", "adatune:boosted"])
def test_a_replaced_model_searches(
    method: str, sketches: tuple[Sketch, ...], pools: tuple[Pool, ...], cpu: DeviceAbstraction
) -> None:
    for each in (None, pools):
        search = TaskSearch(sketches, FLOP, cpu, small(method), np.random.default_rng(0), each)
        assert len(set(keys(play(search, sketches, cpu)))) == 48
        assert set(search.table.training_set().features.views) == {"symbolic", *method_named(method).views}


def test_a_network_is_trained_on_and_an_offline_one_never(
    sketches: tuple[Sketch, ...], pools: tuple[Pool, ...], cpu: DeviceAbstraction
) -> None:
    search = TaskSearch(sketches, FLOP, cpu, small("pruner"), np.random.default_rng(0), pools)
    assert search.train(0) is None  # no success yet
    search.observe(measured(sketches, cpu, search.propose(16)))
    first = weights_of(search)
    search.observe(measured(sketches, cpu, search.propose(16)))
    second = weights_of(search)
    assert 0 < distance(first, second) < 0.2  # from where it stood, not from fresh random weights

    pretrained = search.train(0)
    assert pretrained is not None
    pretrained = load_model(pretrained.save())
    offline = TaskSearch(
        sketches, FLOP, cpu, small("pruner:offline"), np.random.default_rng(0), pools, prior=pretrained
    )
    before = weights_of(offline)
    offline.observe(measured(sketches, cpu, offline.propose(16)))
    assert distance(before, weights_of(offline)) == 0.0


def weights_of(search: TaskSearch) -> dict[str, np.ndarray]:
    model = search.train(0)
    assert isinstance(model, PacmModel)
    return model.weights()


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(values - other[name]).max()) for name, values in one.items())
