"""A method's batch is what its paper says: mostly the model's choice, and the very candidates that a plain, slow
reading of the algorithm chooses on a frozen space by a frozen model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Sketch, Statement, Tile
from policies.analysis.analyzer import analyse
from policies.analysis.equation_1 import equation_1_log_secs
from policies.arrays import Floats, Matrix
from policies.features.table import SYMBOLIC, FeatureTable
from policies.search.draft import evaluate
from policies.search.exploration import FixedEpsilon
from policies.search.methods import METHOD_NAMES, Method, method_named
from policies.search.search import Observation, Proposal, TaskSearch
from policies.space.pools import Pool
from policies.space.sampling import decision_ids, enumerate_all, log_coordinates, sample, space_size, unique_rows

FLOP = 2.0 * 256**3
Key = tuple[int, tuple[int, ...]]


class Frozen:
    """A model that no record changes: a bowl in the decisions, with a deviation of ``spread`` of the throughput.

    The decisions are the last columns of a sketch's own features; of a task of several sketches those that it knows.
    """

    views = (SYMBOLIC,)

    def __init__(self, spread: float = 0.0) -> None:
        self.spread = spread

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        columns = np.nan_to_num(features.view(SYMBOLIC).astype(np.float64))
        slopes = np.cos(1.0 + 7.0 * np.arange(columns.shape[1]))
        mean = -7.0 + 0.02 * columns @ slopes + 0.05 * np.abs(columns - 1.5).mean(axis=1)
        return mean, self.spread * np.exp(mean)


class Setting:
    """A task of some sketches whose candidates are all known, some of them measured, and a search on it."""

    def __init__(
        self,
        method: Method,
        sketches: Sequence[Sketch],
        device: DeviceAbstraction,
        pooled: bool,
        spread: float,
        seed: int,
    ) -> None:
        self.method, self.sketches, self.device = method, tuple(sketches), device
        self.pools = None
        if pooled:
            drawn = [sample(sketch, 600, np.random.default_rng(7)) for sketch in sketches]
            self.pools = [
                Pool(sketch, rows[unique_rows(rows)][:250]) for sketch, rows in zip(sketches, drawn, strict=True)
            ]
        self.search = TaskSearch(sketches, FLOP, device, method, np.random.default_rng(seed), self.pools)
        self.measured: list[Observation] = []
        self.model = Frozen(spread)

    def measure(self, count: int) -> None:
        """The first candidates of each sketch, some of the better ones among them."""
        for at, matrix in enumerate(self.candidates()):
            rows = np.random.default_rng(11 + at).permutation(len(matrix))[:count]
            for row in rows.tolist():
                decisions = tuple(matrix[row].tolist())
                secs = 1e-3 * (1.0 + 0.1 * at + 0.01 * (sum(decisions) % 17))
                self.measured.append(Observation(at, decisions, secs))
        self.search.observe(self.measured)
        self.search.use_model(self.model)  # type: ignore[arg-type]

    def candidates(self) -> list[Matrix]:
        """All candidates of each sketch."""
        if self.pools is not None:
            return [pool.matrix for pool in self.pools]
        return [enumerate_all(sketch) for sketch in self.sketches]

    def left(self, at: int) -> Matrix:
        """Those that are not measured."""
        tried = {each.decisions for each in self.measured if each.sketch == at}
        return np.array([row for row in self.candidates()[at] if tuple(row.tolist()) not in tried])

    def mean(self, at: int, matrix: Matrix) -> Floats:
        """What the frozen model says of candidates of a sketch."""
        return self.predicted(at, matrix)[0]

    def predicted(self, at: int, matrix: Matrix) -> tuple[Floats, Floats]:
        """Its mean and deviation."""
        table = self.search.table
        features = evaluate(self.sketches[at], matrix, self.device).features
        return self.model.predict(table.described(at, matrix, features))

    def allowed(self, at: int, matrix: Matrix) -> np.ndarray:
        """Whether the analyzer would let a candidate be built."""
        if not self.sketches[at].statements:
            return np.ones(len(matrix), dtype=bool)
        return analyse(self.sketches[at], matrix, self.device).feasible


def small_space(index: int) -> Sketch:
    """Spaces in the open that a draft enumerates: 28 x 28 x 2 = 1,568 and 36 x 21 = 756 candidates."""
    if index == 0:
        decisions: tuple[Tile | Choice, ...] = (Tile(64, 3, 64), Tile(64, 3, 64), Choice("unroll", (0, 16)))
    else:
        decisions = (Tile(128, 3, 128), Tile(32, 3, 32))
    return Sketch(index, "small", f"small {index}", decisions, (), "nothing to describe")


@pytest.fixture(params=["pools", "open"])
def setting(
    request: pytest.FixtureRequest, tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction
) -> Callable[..., Setting]:
    """Makes settings: pools of 250 of described sketches, or small undescribed spaces in the open."""
    pooled = request.param == "pools"
    sketches = (tiled, blocked) if pooled else (small_space(0), small_space(1))

    def make(method: Method, spread: float = 0.0, seed: int = 0) -> Setting:
        return Setting(method, sketches, cpu, pooled, spread, seed)

    return make


def keys(proposals: Sequence[Proposal]) -> list[Key]:
    return [(each.sketch, each.decisions) for each in proposals]


def chosen(proposals: Sequence[Proposal]) -> list[Key]:
    """Those that were not drawn at random."""
    return keys([each for each in proposals if each.reason != "random"])


# -- at least 1 - epsilon of a batch comes from the model --------------------------------------------------------------


def most_random(method: Method) -> float:
    """The share of a batch that the method may draw at random, by its own words; AdaTune's is 0.1 with a frozen model
    of the deviation below."""
    return method.exploration.epsilon if isinstance(method.exploration, FixedEpsilon) else 0.1


@pytest.mark.parametrize("name", [name for name in METHOD_NAMES if name != "random"])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_comes_from_the_model(name: str, seed: int, setting: Callable[..., Setting]) -> None:
    # sigma of the throughput is 0.1 / 1e-3 for every candidate, and the best one took 1 ms: equation 3 gives 0.1.
    here = setting(method_named(name), spread=0.1 / 1e-3, seed=seed)
    here.measure(60)
    batch = here.search.propose(here.method.batch)
    assert len(set(keys(batch))) == here.method.batch
    random = math.ceil(most_random(here.method) * here.method.batch)  # a fraction is a chance of one more
    assert len(chosen(batch)) >= here.method.batch - random


@pytest.mark.parametrize("name", ["ansor", "bansor", "pruner"])
def test_so_does_one_in_a_large_space_of_which_the_best_are_known(
    name: str, tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction
) -> None:
    """A draft that meets hardly anything but what was measured goes on to what is next."""
    here = Setting(method_named(name), (tiled, blocked), cpu, False, 0.1 / 1e-3, 0)
    here.search.use_model(here.model)  # type: ignore[arg-type]
    assert space_size(tiled) > 100_000
    for _ in range(4):
        batch = here.search.propose(here.method.batch)
        here.search.observe(Observation(each.sketch, each.decisions, 1e-3) for each in batch)
    batch = here.search.propose(here.method.batch)
    random = math.floor(most_random(here.method) * here.method.batch) + 1
    assert len(chosen(batch)) >= here.method.batch - random


# -- the papers' algorithms, read slowly -------------------------------------------------------------------------------


def by_prediction(here: Setting, at: int, count: int) -> list[Key]:
    """The ``count`` candidates of a sketch that the model ranks first, of those that may be built."""
    rows = here.left(at)
    rows = rows[here.allowed(at, rows)]
    order = np.argsort(here.mean(at, rows), kind="stable")
    return [(at, tuple(rows[row].tolist())) for row in order[:count]]


def test_ansor_sends_the_top_of_one_sketch(setting: Callable[..., Setting]) -> None:
    """Algorithm 1 of Bansor, lines 7 to 10: a sketch at random, a search on the model, the top of it measured."""
    picked = set()
    for seed in range(8):
        here = setting(method_named("ansor"), seed=seed)
        here.measure(30)
        proposals = here.search.propose(64)
        top = chosen(proposals)
        assert len(top) in (60, 61)  # 0.05 of 64 are 3.2
        (sketch,) = {each.sketch for each in proposals}
        assert top == by_prediction(here, sketch, len(top))
        picked.add(sketch)
    assert picked == {0, 1}


def test_bansor_takes_the_sketch_with_the_largest_bound(setting: Callable[..., Setting]) -> None:
    """Equations 3 and 4, word for word, with rounds of 64."""
    # By hand: 1 + 0.353 and 0.625 + 0.353; 1 + 0.314 and 0.909 + 0.445; 1 + 0.314 and 0.833 + 0.445.
    for first, second, slower, expected in ((1, 1, 1.6, 0), (2, 1, 1.1, 1), (2, 1, 1.2, 0)):
        here = setting(method_named("bansor"))
        costs = ((1.0e-3, first), (slower * 1e-3, second))  # the best of each, and its rounds
        for at, (secs, rounds) in enumerate(costs):
            rows = here.candidates()[at][: 64 * rounds]
            here.measured += [Observation(at, tuple(row.tolist()), secs) for row in rows]
        here.search.observe(here.measured)
        here.search.use_model(here.model)  # type: ignore[arg-type]
        best = min(secs for secs, _ in costs)
        total = first + second
        bounds = [best / secs + 0.3 * math.sqrt(2 * math.log(total) / rounds) for secs, rounds in costs]
        sketch = bounds.index(max(bounds))
        assert sketch == expected
        top = chosen(here.search.propose(64))
        assert len(top) in (60, 61)
        assert top == by_prediction(here, sketch, len(top))


def test_bansor_gives_each_sketch_a_round_first_in_an_order_that_is_drawn(setting: Callable[..., Setting]) -> None:
    firsts = set()
    for seed in range(8):
        here = setting(method_named("bansor"), seed=seed)
        rounds = []
        for _ in range(2):
            batch = here.search.propose(64)
            here.search.observe(Observation(each.sketch, each.decisions, 1e-3) for each in batch)
            (sketch,) = {each.sketch for each in batch}
            rounds.append(sketch)
        assert sorted(rounds) == [0, 1]
        firsts.add(rounds[0])
    assert firsts == {0, 1}


def diverse(scores: Floats, components: np.ndarray, count: int, alpha: float) -> list[int]:
    """AutoTVM equation 3, greedily: the set that grows by whichever candidate makes L(S) largest, worked out anew for
    each. ``L(S) = sum score + alpha sum_j |union of the j-th components|``."""

    def objective(rows: Sequence[int]) -> float:
        covered = sum(len({components[row, column] for row in rows}) for column in range(components.shape[1]))
        return float(sum(scores[row] for row in rows)) + alpha * covered

    rows: list[int] = []
    while len(rows) < min(count, len(scores)):
        rest = [row for row in range(len(scores)) if row not in rows]
        rows.append(max(rest, key=lambda row: (objective([*rows, row]), -row)))
    return rows


def slow_diverse(here: Setting, scores: Callable[[int, Matrix], Floats], count: int) -> list[Key]:
    """Lines 6 and 7 of AutoTVM's algorithm 1: the best lambda b of all candidates, and equation 3 among them.

    The unit of the first term is the best score; alpha is a tenth of it for a candidate of new components alone.
    """
    batch = here.method.batch
    found: list[tuple[float, int, int, np.ndarray]] = []
    for at in range(len(here.sketches)):
        rows = here.left(at)
        rows = rows[here.allowed(at, rows)]
        for number, (score, row) in enumerate(zip(scores(at, rows).tolist(), rows, strict=True)):
            found.append((score, at, number, row))
    found.sort(key=lambda each: -each[0])
    assert here.method.selection.top_factor == 2.0
    top = found[: math.ceil(2.0 * count)] if batch else []
    width = max(len(sketch.decisions) for sketch in here.sketches)
    components = np.full((len(top), width), -1, dtype=np.int64)
    for at, sketch in enumerate(here.sketches):
        mine = [place for place, each in enumerate(top) if each[1] == at]
        if mine:
            ids = decision_ids(sketch, np.array([top[place][3] for place in mine]))
            components[mine, : ids.shape[1]] = 2 * ids + at  # sketches share no component
    largest = top[0][0]
    values = np.array([each[0] / largest for each in top])
    picked = diverse(values, components, count, 0.1 / width)
    return [(top[row][1], tuple(top[row][3].tolist())) for row in picked]


def test_autotvm_maximises_its_equation_3_among_the_best(setting: Callable[..., Setting]) -> None:
    here = setting(method_named("autotvm"))
    here.measure(20)
    # Chains that see all of the space, so that what they find is what there is.
    assert here.method.generator.settings.chains == 128  # type: ignore[attr-defined]
    proposals = here.search.propose(64)
    top = chosen(proposals)
    assert len(top) in (60, 61)
    best = min(each.cost_secs for each in here.measured)
    assert top == slow_diverse(here, lambda at, rows: best / np.exp(here.mean(at, rows)), len(top))


def test_adatune_takes_expected_improvement_and_its_own_epsilon(setting: Callable[..., Setting]) -> None:
    """Algorithm 1 of AdaTune: equations 1 and 2 in AutoTVM's objective, a share of equation 3 at random."""
    here = setting(method_named("adatune"))
    here.measure(20)
    best = min(each.cost_secs for each in here.measured)
    here.model.spread = 0.25 / best

    def improvement(at: int, rows: Matrix) -> Floats:
        """Of the logarithm of the throughput, in which the models here work."""
        mean, deviation = here.predicted(at, rows)
        gained = []
        for mu, sigma in zip((-mean).tolist(), deviation.tolist(), strict=True):
            z = (mu - math.log(1 / best)) / sigma
            density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            gained.append((mu - math.log(1 / best)) * 0.5 * math.erfc(-z / math.sqrt(2)) + sigma * density)
        return np.array(gained)

    proposals = here.search.propose(32)
    top = chosen(proposals)
    assert len(top) in (23, 24)  # sigma of every plan is a quarter of the best: 8 of 32, and never a chance of more
    assert top == slow_diverse(here, improvement, len(top))


@pytest.mark.parametrize("name", ["pruner", "moa-pruner", "pruner:equation-1"])
def test_pruner_verifies_its_draft_and_random_candidates(name: str, setting: Callable[..., Setting]) -> None:
    """Algorithm 1 of Pruner, lines 9 to 11: the candidates that the analyzer ranks first, random ones beside them, and
    of all these the ones that the cost model ranks first are measured."""
    here, twin = (setting(method_named(name)) for _ in range(2))
    for each in (here, twin):
        each.measure(20)
    verified: list[tuple[float, Key]] = []
    for at, sketch in enumerate(here.sketches):
        rows = here.left(at)
        if not sketch.statements:  # no analyzer: in their order
            costs = np.zeros(len(rows))
        elif name.endswith("equation-1"):
            costs = equation_1_log_secs(sketch, rows, here.device)
        else:
            costs = np.log(analyse(sketch, rows, here.device).latency_secs)
        costs = np.where(here.allowed(at, rows), costs, np.inf)
        offered = here.method.generator.offer(twin.search._search, at, 2, 10).matrix  # the twin draws the same numbers
        if here.pools is not None:
            # Of 250 a ninth, 512 of 1536 x 3; of the 50 random ones for a draft of 512 as many as fit to these 28, at
            # most three, and one of them may be drafted too.
            drafted = rows[np.argsort(costs, kind="stable")[:28]]
            assert offered[:28].tolist() == drafted.tolist()
            assert len(offered) in (29, 30, 31)
            assert np.isfinite(costs[[rows.tolist().index(row) for row in offered.tolist()]]).all()
        else:
            assert len(offered) > 200
        means = here.mean(at, offered).tolist()
        verified += [(mean, (at, tuple(row.tolist()))) for mean, row in zip(means, offered, strict=True)]
    top = chosen(here.search.propose(10))
    assert len(top) in (8, 9)  # a tenth at random, and the fraction of it a chance
    assert top == [key for _, key in sorted(verified, key=lambda each: each[0])[: len(top)]]


def small_product(blocked: Sketch) -> Sketch:
    """The register-blocked product with 16 x 16 x 8 instead of 256 x 256 x 256: 15 x 15 x 4 = 900 candidates."""
    extents = {"i": 16, "j": 16, "k": 8}

    def small(statement: Statement) -> Statement:
        axes = tuple(replace(axis, extent=extents[axis.name]) for axis in statement.axes)
        loops = tuple(loop if loop.column is not None else replace(loop, extent=16) for loop in statement.loops)
        shapes = {"A": (16, 8), "B": (8, 16), "C": (16, 16), "D": (16, 16)}
        accesses = tuple(replace(access, shape=shapes[access.buffer]) for access in statement.accesses)
        return replace(statement, axes=axes, loops=loops, accesses=accesses)

    decisions = (Tile(16, 3, 16), Tile(16, 3, 16), Tile(8, 2, 8))
    return replace(blocked, decisions=decisions, statements=tuple(small(each) for each in blocked.statements))


@pytest.mark.parametrize("name", ["pruner", "moa-pruner", "pruner:equation-1"])
def test_pruners_draft_in_the_open_is_what_the_analyzer_ranks_first(
    name: str, blocked: Sketch, cpu: DeviceAbstraction
) -> None:
    """Algorithm 1 of Pruner, lines 3 to 10, in a space that can be seen as a whole: the 512 of all candidates that the
    analyzer ranks first, less those that are measured, and as many of 50 random ones."""
    sketch = small_product(blocked)
    here = Setting(method_named(name), (sketch,), cpu, False, 0.0, 0)
    here.measure(40)
    rows = here.candidates()[0]
    assert len(rows) == space_size(sketch) == 900
    costs = (
        equation_1_log_secs(sketch, rows, cpu)
        if name.endswith("equation-1")
        else np.log(analyse(sketch, rows, cpu).latency_secs)
    )
    allowed = here.allowed(0, rows)
    assert allowed.sum() > 600
    first = rows[allowed][np.argsort(costs[allowed], kind="stable")[:512]]
    measured = {each.decisions for each in here.measured}
    drafted = [row for row in map(tuple, first.tolist()) if row not in measured]
    offered = list(map(tuple, here.method.generator.offer(here.search._search, 0, 1, 10).matrix.tolist()))
    assert sorted(offered[: len(drafted)]) == sorted(drafted)  # among equal ones in any order
    drawn = offered[len(drafted) :]
    assert 0 < len(drawn) <= math.ceil(50 * len(drafted) / 512)
    assert not {*drawn} & ({*drafted} | measured)
    assert len({*drawn}) == len(drawn)


def innermost(sketch: Sketch, row: np.ndarray) -> tuple[int, ...]:
    """The innermost factors of the spatial tiles."""
    reductions = {loop.column for loop in sketch.statements[0].loops if sketch.statements[0].axes[loop.axis].reduction}
    last = [
        start + decision.parts - 1
        for decision, start in zip(sketch.decisions, sketch.offsets, strict=True)
        if isinstance(decision, Tile)
    ]
    return tuple(row[[column for column in last if column not in reductions]].tolist())


def near(one: Floats, other: Floats, radius: float) -> float:
    """What is left of a score beside another candidate, by their distance in doublings of the decisions."""
    return 1.0 - math.exp(-float(np.square(one - other).sum()) / (2 * radius**2))


def apart(offer: Sequence[tuple[float, Key]], sketches: Sequence[Sketch], count: int) -> list[tuple[float, Key]]:
    """The ``count`` of an offer of scored candidates whose scores are largest, one after the other: each shrinks the
    scores around it."""

    def point(key: Key) -> Floats:
        return log_coordinates(sketches[key[0]], np.array([key[1]]))[0]

    values = [score for score, _ in offer]
    left, taken = list(range(len(offer))), list[tuple[float, Key]]()
    while left and len(taken) < count:
        best = left[int(np.argmax([values[row] for row in left]))]
        left.remove(best)
        taken.append((values[best], offer[best][1]))
        for row in left:
            if offer[row][1][0] == offer[best][1][0]:  # sketches are no neighbours
                values[row] *= near(point(offer[row][1]), point(offer[best][1]), 0.5)
    return taken


@pytest.mark.parametrize("setting", ["pools"], indirect=True)
def test_ours_takes_the_expected_improvement_of_its_draft(setting: Callable[..., Setting]) -> None:
    """As docs/search.md has it: an eighth of a pool by what the model expects; expected gain, away from what was
    measured and apart from each other; half of the batch from all sketches, the rest from those that the bandit
    chooses."""
    here, twin = (setting(method_named("fleet"), spread=0.1 / 1e-3) for _ in range(2))
    for each in (here, twin):
        each.measure(20)
    best = min(each.cost_secs for each in here.measured)
    shares = twin.search._shares(8).tolist()
    offer: list[tuple[float, Key]] = []
    for at, sketch in enumerate(here.sketches):
        rows = here.left(at)
        rows = rows[here.allowed(at, rows)]
        mean, deviation = here.predicted(at, rows)
        drafted = np.argsort(mean, kind="stable")[:32].tolist()  # of 250
        measured = np.array([each.decisions for each in here.measured if each.sketch == at])
        points, others = log_coordinates(sketch, rows[drafted]), log_coordinates(sketch, measured)
        for place, row in enumerate(drafted):
            sigma, gain = float(deviation[row]), math.log(best) - float(mean[row])
            z = gain / sigma
            density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            improvement = max(gain * 0.5 * math.erfc(-z / math.sqrt(2)) + sigma * density, 0.0)
            away = math.prod(near(points[place], other, 0.35) for other in others)
            offer.append((improvement * away, (at, tuple(rows[row].tolist()))))
    top = chosen(here.search.propose(8))
    assert len(top) == 8
    contested = [key for _, key in apart(offer, here.sketches, math.ceil(0.5 * len(top)))]
    assert top[: len(contested)] == contested
    # The rest: by the bandit's shares, apart from those too.
    rest: list[tuple[float, Key]] = []
    for at, sketch in enumerate(here.sketches):
        beside = [log_coordinates(sketch, np.array([key[1]]))[0] for key in contested if key[0] == at]
        left = []
        for score, key in offer:
            if key[0] == at and key not in contested:
                mine = log_coordinates(sketch, np.array([key[1]]))[0]
                left.append((score * math.prod(near(mine, other, 0.5) for other in beside), key))
        rest += apart(left, here.sketches, min(shares[at], len(top) - len(contested)))
    rest.sort(key=lambda each: -each[0])
    assert top[len(contested) :] == [key for _, key in rest[: len(top) - len(contested)]]


def test_random_draws_sketches_and_candidates_uniformly(setting: Callable[..., Setting]) -> None:
    counts = [dict[tuple[int, ...], int](), dict[tuple[int, ...], int]()]
    for seed in range(20):
        here = setting(method_named("random"), seed=seed)
        here.measure(0)
        proposals = here.search.propose(64)
        assert {each.reason for each in proposals} == {"random"}
        assert len(set(keys(proposals))) == 64
        for each in proposals:
            counts[each.sketch][each.decisions] = counts[each.sketch].get(each.decisions, 0) + 1
    drawn = [sum(each.values()) for each in counts]
    assert drawn[0] / 1280 == pytest.approx(0.5, abs=0.05)
    for at, candidates in enumerate(here.candidates()):
        mean = drawn[at] / len(candidates)
        squares = sum((counts[at].get(tuple(row.tolist()), 0) - mean) ** 2 for row in candidates)
        # As often as by chance: the variance is the mean's, less what a batch without repetition takes from it.
        assert 0.7 < squares / drawn[at] < 1.2


def test_all_plans_have_one_sigma() -> None:
    """What the tests above take from the frozen model: the throughput's deviation is its spread, whatever the mean."""
    features = FeatureTable({SYMBOLIC: np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)})
    mean, deviation = Frozen(250.0).predict(features)
    assert np.exp(-mean) * deviation == pytest.approx(250.0)
    assert len(set(itertools.chain(mean.round(6)))) == 50
