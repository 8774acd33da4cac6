"""The neural models: shapes and sizes, evaluation mode, weights, lists of one task, and what they leave as it was."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from policies.cost_models import model_bytes
from policies.cost_models.architectures import PacmModel
from policies.cost_models.neural import NeuralModel, NeuralSettings, _lists, one_thread
from policies.cost_models.registry import load_model
from policies.cost_models.torch_modules import DataflowBranch, Pacm, StatementBranch
from policies.features.table import FeatureTable
from policies.features.views import VIEW_SHAPES

FAST = NeuralSettings(members=2, epochs=3, update_epochs=2, list_size=32, least_steps=6, least_update_steps=6)
MODELS: tuple[type[NeuralModel], ...] = (PacmModel,)


def table(count: int, seed: int) -> FeatureTable:
    rng = np.random.default_rng(seed)
    views = {name: rng.standard_normal((count, *shape)).astype(np.float32) for name, shape in VIEW_SHAPES.items()}
    views["statements"][:, 3:] = 0.0
    views["invariant"][:, 0] = rng.standard_normal(count) - 8.0
    views["invariant"][:, 1] = 1.0
    return FeatureTable(views)


def trained(kind: type[NeuralModel], *, from_analyzer: bool = False) -> tuple[NeuralModel, FeatureTable]:
    features = table(40, 0)
    model = kind(3, FAST, from_analyzer=from_analyzer)
    model.fit(features, features.view("invariant")[:, 0].astype(np.float64), np.repeat([0, 1], 20))
    return model, features


def count_of(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def test_pacm_has_the_papers_shapes_and_as_many_parameters_as_its_code() -> None:
    # With TenSet's 174 numbers of a statement it is the network of Pruner's code: 417,409 parameters.
    # 174*256+256 + 256*256+256 + 2*256 | 23*64+64 + 64*128+128 + 4*(128*128+128) | 384*256+256 + 2*65792 + 257
    assert count_of(Pacm([(8, 174), (8, 23)])) == 110592 + 512 + 9856 + 66048 + 98560 + 131584 + 257 == 417409
    assert count_of(StatementBranch(174)) == 110592 + 512
    assert count_of(DataflowBranch(23)) == 9856 + 66048
    # Ours reads 53 numbers of a statement.
    assert VIEW_SHAPES["statements"] == (8, 53)
    assert VIEW_SHAPES["dataflow"] == (10, 23)
    assert PacmModel().parameters == 417409 - (174 - 53) * 256 == 386433


def test_pacm_knows_nothing_of_the_analyzer() -> None:
    """Section 4.2: statements and dataflow."""
    told = table(40, 0)
    untold = dict(told.views)
    untold["analyzed_statements"] = told.view("analyzed_statements") + 1.0
    untold["invariant"] = told.view("invariant") * 2.0
    model, _ = trained(PacmModel)
    means = [model.predict(each)[0].tolist() for each in (told, FeatureTable(untold))]
    assert means[0] == means[1]


def test_branches_have_the_documented_widths() -> None:
    steps, statements = torch.ones(5, 10, 23), torch.ones(5, 8, 102)
    assert DataflowBranch(23)(steps).shape == (5, 128)
    assert StatementBranch(102)(statements).shape == (5, 256)
    assert Pacm([(8, 102), (8, 23)])(statements, steps).shape == (5,)


def test_absent_rows_count_for_nothing() -> None:
    torch.manual_seed(0)
    statements = torch.zeros(2, 8, 102)
    statements[:, 0], statements[1, 1] = 1.0, 0.0
    branch = StatementBranch(102)
    assert torch.equal(branch(statements)[0], branch(statements[:, :1])[0])
    assert DataflowBranch(23)(torch.zeros(2, 10, 23)).abs().sum() == 0
    steps = torch.zeros(2, 10, 23)
    steps[:, :8], steps[1, 2] = torch.randn(8, 23), 0.0
    dataflow = DataflowBranch(23)
    assert torch.allclose(dataflow(steps)[0], dataflow(steps[:, :8])[0], atol=1e-6)
    assert torch.allclose(dataflow(steps)[1], dataflow(steps[1:, [0, 1, 3, 4, 5, 6, 7]])[0], atol=1e-6)
    assert torch.isfinite(dataflow(torch.cat([steps, torch.zeros(1, 10, 23)]))).all()


@pytest.mark.parametrize("kind", MODELS)
def test_before_training_a_model_from_the_analyzer_ranks_as_the_analyzer(kind: type[NeuralModel]) -> None:
    features = table(30, 1)
    still = dataclasses.replace(FAST, learning_rate=1e-12)
    model = kind(0, still, from_analyzer=True)
    model.fit(features, np.random.default_rng(0).standard_normal(30), np.zeros(30, dtype=np.int64))
    order = np.argsort(features.view("invariant")[:, 0])
    assert np.argsort(model._scores(features).mean(axis=0)).tolist() == order.tolist()


@pytest.mark.parametrize("kind", MODELS)
def test_prediction_runs_in_evaluation_mode_and_candidates_do_not_depend_on_each_other(
    kind: type[NeuralModel],
) -> None:
    model, features = trained(kind)
    whole = model.predict(features)[0]
    assert not any(network.training for network in model._networks)
    one_by_one = np.concatenate([model.predict(features.take(slice(at, at + 1)))[0] for at in range(40)])
    assert one_by_one == pytest.approx(whole, abs=1e-4)
    assert np.array_equal(model.predict(features)[0], whole)


@pytest.mark.parametrize("kind", MODELS)
def test_weights_can_be_read_and_replaced(kind: type[NeuralModel]) -> None:
    model, features = trained(kind)
    weights = model.weights()
    assert {name.split(".")[0] for name in weights} == {"0", "1"}
    halved = copy.deepcopy(model)
    halved.set_weights({name: values * np.float32(0.5) for name, values in weights.items()})
    assert not np.array_equal(halved.predict(features)[0], model.predict(features)[0])
    restored = copy.deepcopy(halved)
    restored.set_weights(weights)
    assert np.array_equal(restored.predict(features)[0], model.predict(features)[0])
    weights[next(iter(weights))][:] = 7.0  # copies: the model does not change
    assert not any((values == 7.0).all() for values in model.weights().values())
    with pytest.raises(ValueError, match="not the weights"):
        model.set_weights({name: values for name, values in halved.weights().items() if not name.startswith("1.")})
    with pytest.raises(ValueError, match="not the weights"):
        model.set_weights({name: values[..., :1] for name, values in halved.weights().items()})
    with pytest.raises(ValueError, match="finite"):
        model.set_weights({name: values * np.float32(np.nan) for name, values in halved.weights().items()})
    with pytest.raises(ValueError, match="not been trained"):
        kind().weights()


def test_training_leaves_pytorchs_generator_and_threads_alone() -> None:
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    trained(PacmModel)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    with pytest.raises(RuntimeError, match="stop"), one_thread():
        raise RuntimeError("stop")
    assert torch.get_num_threads() == threads


def test_another_seed_is_another_model_and_the_same_seed_the_same() -> None:
    features = table(40, 2)
    logs, groups = np.linspace(-8, -6, 40), np.zeros(40, dtype=np.int64)
    models = [PacmModel(seed, FAST) for seed in (0, 0, 1)]
    for model in models:
        torch.manual_seed(len(models))  # whatever the global generator does
        model.fit(features, logs, groups)
    first, again, other = (model.predict(features)[0] for model in models)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_lists_hold_records_of_one_task_and_all_of_them() -> None:
    groups = np.array([0] * 70 + [1] * 3 + [2] * 40)
    lists = _lists(np.arange(113), groups, 32, np.random.default_rng(0))
    assert sorted(np.concatenate(lists).tolist()) == list(range(113))
    assert all(len(set(groups[each].tolist())) == 1 and len(each) <= 32 for each in lists)
    assert len(lists) == 3 + 1 + 2


def test_tasks_of_other_levels_do_not_change_what_is_learned() -> None:
    features = table(40, 3)
    groups = np.repeat([0, 1], 20)
    logs = np.linspace(-8, -6, 40)
    shifted = logs + np.where(groups == 1, 5.0, 0.0)
    one, other = PacmModel(0, FAST), PacmModel(0, FAST)
    one.fit(features, logs, groups)
    other.fit(features, shifted, groups)
    assert np.allclose(one._scores(features), other._scores(features), atol=1e-5)


def test_forged_weights_are_refused() -> None:
    model, _ = trained(PacmModel)
    saved = model_bytes.unpack(model.save())
    arrays = dict(saved.arrays)

    def forged(arrays: Mapping[str, np.ndarray] = arrays, header: Mapping[str, object] | None = None) -> bytes:
        return model_bytes.pack(model_bytes.SavedState("pacm", {**saved.header, **(header or {})}, arrays))

    short = {name: values for name, values in arrays.items() if name != "0.last.weight"}
    for broken in (
        forged({}),
        forged(short),
        forged({**arrays, "more": np.zeros(3)}),
        forged({**arrays, "scale.statements": arrays["scale.statements"][:5]}),
        forged({**arrays, "0.last.bias": np.array([np.nan], dtype=np.float32)}),
        forged(header={"settings": {"members": 0}}),
        forged(header={"settings": {"layers": 3}}),
    ):
        with pytest.raises(ValueError, match=r"."):
            load_model(broken)


def test_settings_are_checked() -> None:
    for wrong in ({"members": 0}, {"epochs": 0}, {"list_size": 1}, {"least_steps": 0}, {"least_update_steps": 0}):
        with pytest.raises(ValueError, match="members, epochs and lists"):
            NeuralSettings(**wrong)  # type: ignore[arg-type]


def test_undescribed_candidates_are_predicted() -> None:
    model, features = trained(PacmModel, from_analyzer=True)
    empty = FeatureTable({name: np.zeros_like(values) for name, values in features.views.items()})
    mean, deviation = model.predict(empty)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
