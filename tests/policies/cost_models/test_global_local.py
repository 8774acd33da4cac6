"""Global and local model: equation 4 by hand, before and after the first records; what a trainer makes of a prior."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch, Tile
from policies.cost_models.architectures import PacmModel
from policies.cost_models.boosted import GradientBoostedModel, InvariantTreesModel
from policies.cost_models.gaussian import MOST_RECORDS, GaussianProcessModel
from policies.cost_models.global_local import PRIOR_DEVIATION, GlobalLocalModel
from policies.cost_models.knowledge import skeleton
from policies.cost_models.moa import MomentumModel
from policies.cost_models.registry import load_model
from policies.features.table import SYMBOLIC, FeatureTable
from policies.search.methods import method_named
from policies.search.search import Observation, TaskSearch
from policies.search.trainer import Trainer, Training, joined
from policies.search.training_table import TrainingSet, TrainingTable
from policies.space.sampling import sample


def line(count: int, seed: int = 0, slope: float = 1.0) -> tuple[FeatureTable, np.ndarray, np.ndarray]:
    """Candidates of two features: log seconds are ``slope`` times the first, and half the second where that is high."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-2, 2, size=(count, 2)).astype(np.float32)
    log_secs = slope * features[:, 0] + 0.5 * (features[:, 1] > 0)
    return FeatureTable({SYMBOLIC: features}), log_secs.astype(np.float64), np.zeros(count, np.int64)


@pytest.fixture(scope="module")
def general() -> GradientBoostedModel:
    """It knows the first feature alone."""
    table, _, groups = line(200)
    model = GradientBoostedModel(0)
    model.fit(table, table.view(SYMBOLIC)[:, 0].astype(np.float64), groups)
    return model


def test_before_any_record_the_global_model_speaks_and_is_unsure(general: GradientBoostedModel) -> None:
    probe = line(32, 1)[0]
    mean, deviation = GlobalLocalModel(general, GradientBoostedModel(1)).predict(probe)
    np.testing.assert_array_equal(mean, general.predict(probe)[0])
    assert (deviation >= PRIOR_DEVIATION).all()


def test_few_records_set_the_level(general: GradientBoostedModel) -> None:
    probe = line(3, 1)[0]
    said = general.predict(probe)[0]
    model = GlobalLocalModel(general)
    model.level(probe, said + np.array([1.0, 2.0, 7.0]))
    assert model.shift == pytest.approx(2.0)  # their median
    np.testing.assert_allclose(model.predict(probe)[0], said + 2.0)
    model.level(line(1)[0].take(slice(0, 0)), np.empty(0))
    assert model.shift == 0.0


def test_the_sum_is_global_plus_shift_plus_local(general: GradientBoostedModel) -> None:
    table, log_secs, groups = line(128, 2)
    slower = log_secs + 3.0
    model = GlobalLocalModel(general, GradientBoostedModel(1))
    model.fit(table, slower, groups)
    rest = slower - general.predict(table)[0]
    local = GradientBoostedModel(1)
    local.fit(table, rest - float(np.median(rest)), groups)
    probe = line(64, 3)[0]
    expected = general.predict(probe)[0] + float(np.median(rest)) + local.predict(probe)[0]
    np.testing.assert_allclose(model.predict(probe)[0], expected, atol=1e-9)
    error = np.abs(model.predict(probe)[0] - (line(64, 3)[1] + 3.0))
    assert np.median(error) < 0.2


def test_with_sixteen_records_the_sum_beats_both_of_its_parts(general: GradientBoostedModel) -> None:
    table, log_secs, groups = line(16, 4)
    together, alone = GlobalLocalModel(general, GradientBoostedModel(1)), GradientBoostedModel(1)
    together.fit(table, log_secs, groups)
    alone.fit(table, log_secs, groups)
    probe, truth, _ = line(256, 5)

    def error(predicted: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(predicted - truth))))

    assert error(together.predict(probe)[0]) < min(error(alone.predict(probe)[0]), error(general.predict(probe)[0]))


def test_saved_and_read_it_predicts_the_same(general: GradientBoostedModel) -> None:
    probe = line(32, 1)[0]
    model = GlobalLocalModel(general, GradientBoostedModel(1))
    for _ in range(2):  # before and after the local model is trained
        read = load_model(model.save())
        assert isinstance(read, GlobalLocalModel)
        np.testing.assert_allclose(read.predict(probe)[0], model.predict(probe)[0], atol=1e-6)
        model.fit(*line(64, 6))


# -- trainers -------------------------------------------------------------------------------------------------------


def known(
    sketch: Sketch, device: DeviceAbstraction, method: str, count: int = 24, views: Sequence[str] | None = None
) -> TrainingSet:
    """Records of a task, as a search with this method has them; ``views``: instead of the method's."""
    table = TrainingTable((sketch,), device, views or method_named(method).views)
    rows = sample(sketch, count, np.random.default_rng(0))
    table.observe(Observation(0, tuple(map(int, row)), 1e-3 * float(row[0])) for row in rows)
    return table.training_set()


def training_of(method: str) -> Training:
    training = method_named(method).training
    assert training is not None
    return training


def made_search(sketch: Sketch, device: DeviceAbstraction, method: str, prior: object = None) -> TaskSearch:
    return TaskSearch((sketch,), 2.0 * 256**3, device, method_named(method), np.random.default_rng(0), None, prior)  # type: ignore[arg-type]


def trained_pacm(training: TrainingSet) -> PacmModel:
    model = PacmModel(0)
    model.fit(training.features, training.log_secs, training.groups)
    return model


def test_what_becomes_of_a_prior(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    training = known(tiled, cpu, "pruner")
    pacm = trained_pacm(training)
    trees = InvariantTreesModel(0)
    trees.fit(known(tiled, cpu, "fleet:boosted-invariant").features, training.log_secs, training.groups)

    # A network of the method's kind is fine-tuned, and adapted by momentum where the method says so.
    tuned = Trainer(training_of("pruner"), pacm)
    assert tuned.first is pacm
    first = tuned.train({"a": training}, 0)
    assert isinstance(first, PacmModel)
    assert first is not pacm
    adapted = Trainer(training_of("moa-pruner"), pacm).train({"a": training}, 0)
    assert isinstance(adapted, MomentumModel)

    # Another model is the global one.
    both = {"a": known(tiled, cpu, "fleet", views=(*method_named("fleet").views, *trees.views))}
    model = Trainer(training_of("fleet"), trees).train(both, 0)
    assert isinstance(model, GlobalLocalModel)
    assert model.general is trees

    # Offline, nothing is trained.
    offline = Trainer(training_of("pruner:offline"), pacm)
    assert offline.train({"a": training}, 0) is pacm
    assert Trainer(training_of("pruner:offline")).train({"a": training}, 0) is None


def test_a_model_that_learns_on_is_trained_again_when_there_are_new_records(
    tiled: Sketch, cpu: DeviceAbstraction
) -> None:
    training = known(tiled, cpu, "pruner", 24)
    half = TrainingSet(
        training.features.take(slice(0, 12)),
        training.log_secs[:12],
        training.groups[:12],
        training.names,
        None,
        training.weights[:12],
    )
    trainer = Trainer(training_of("pruner"))
    model = trainer.train({"a": half}, 0)
    assert trainer.train({"a": half}, 0) is model  # nothing new
    assert trainer.train({"a": training}, 0) is model
    by_hand = PacmModel(0)
    by_hand.update(half.features, half.log_secs, half.groups)
    by_hand.update(training.features, training.log_secs, training.groups)
    assert isinstance(model, PacmModel)
    views = FeatureTable({name: training.features.view(name) for name in PacmModel.views})
    np.testing.assert_array_equal(model.predict(views)[0], by_hand.predict(views)[0])


def test_tasks_of_one_model_are_told_apart(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    training = known(tiled, cpu, "pruner")
    table, log_secs, groups, weights = joined({"a": training, "b": training}, PacmModel.views)
    assert sorted(table.views) == sorted(PacmModel.views)  # and no symbolic one, whose width is a task's own
    assert len(table) == len(log_secs) == 2 * len(training.log_secs)
    assert len(weights) == len(log_secs)
    assert groups.tolist() == [0] * len(training.log_secs) + [1] * len(training.log_secs)


def test_a_search_with_a_prior_proposes_by_it_and_finds_its_level(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    trees = InvariantTreesModel(0, from_analyzer=True)
    training = known(tiled, cpu, "fleet:boosted-invariant", 64)
    trees.fit(training.features, training.log_secs, training.groups)
    search = made_search(tiled, cpu, "ansor", trees)
    proposals = search.propose(8)
    assert any(each.reason.startswith("genetic") for each in proposals)  # not drawn at random, as without a prior
    search.observe(Observation(0, each.decisions, each.predicted_secs * math.e) for each in proposals)
    fresh = search.propose(8)
    said = {each.decisions: each.predicted_secs for each in fresh}
    assert len(said) == 8
    assert isinstance(search.train(0), GlobalLocalModel)


def test_failures_alone_do_not_change_what_the_prior_says(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    trees = InvariantTreesModel(0, from_analyzer=True)
    training = known(tiled, cpu, "fleet:boosted-invariant", 64)
    trees.fit(training.features, training.log_secs, training.groups)
    search = made_search(tiled, cpu, "ansor", trees)
    proposals = search.propose(8)
    search.observe(Observation(0, each.decisions, math.inf) for each in proposals)
    search.use_model(None)  # no model could be trained
    before, after = ([each.predicted_secs for each in batch] for batch in (proposals, search.propose(8)))
    assert max(after) < 10 * max(before), "a target of failures is a second"


def test_the_skeleton_of_a_sketch_is_without_what_its_target_and_its_names_decide() -> None:
    def traced(name: str, limit: int, size: int) -> Sketch:
        text = json.dumps(
            [
                ["GetSBlock", [], [name, "main"], ["b0"]],
                ["Annotate", ["b0", limit], ["meta_schedule.parallel"], []],
                ["Annotate", ["b0", size], ["meta_schedule.tiling"], []],
            ]
        )
        return Sketch(0, "rule", text, (Tile(4, 2, 4),), ())

    assert skeleton(traced("sum", 32, 4)) == skeleton(traced("input_sum", 16, 4))
    assert skeleton(traced("sum", 32, 4)) != skeleton(traced("sum", 32, 8))


def test_of_many_records_the_local_process_has_the_fastest_by_what_they_took() -> None:
    """Not by what the global model leaves of them: that one expects the fastest record to be the fastest."""
    count = MOST_RECORDS + 60
    rng = np.random.default_rng(0)
    points = rng.standard_normal((count, 3)).astype(np.float32)
    logs = rng.uniform(-5.0, -4.0, count)
    logs[3] = -9.0  # early, fastest, and as expected
    points[3] = 20.0  # nothing else is near it

    class Knowing:
        views = ("symbolic",)

        def predict(self, features: FeatureTable) -> tuple[np.ndarray, np.ndarray]:
            expected = np.where(features.view("symbolic")[:, 0] > 10, -9.0, -4.0)
            return expected, np.zeros(len(features))

    table = FeatureTable({"symbolic": points, "standard": points})
    model = GlobalLocalModel(Knowing(), GaussianProcessModel())  # type: ignore[arg-type]
    model.fit(table, logs, np.zeros(count, dtype=np.int64))
    _, (known, unknown) = model.predict(
        FeatureTable({name: np.array([[20.0] * 3, [-20.0] * 3], np.float32) for name in table.views})
    )
    assert known < 0.9 * unknown  # it is one of the records
