"""The cost models of the laboratory: shapes, learning, saved bytes, and how the product refuses them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from bench.models.laboratory import LABORATORY_MODELS, all_models, load_model, method_named
from bench.models.laboratory.losses import deviations, pairwise_rank, squared_error
from bench.models.laboratory.networks import AnalyzedPacmModel, MlpModel, TlpModel, TreeGruModel, TreeGruRegressionModel
from bench.models.laboratory.torch_modules import Mlp, Tlp, TreeGru
from fleet_tune.base.errors import UserError
from policies.cost_models import registry
from policies.cost_models.boosted import AUTOTVM_TREES
from policies.cost_models.neural import NeuralModel, NeuralSettings
from policies.cost_models.protocol import CostModel
from policies.cost_models.rank_quality import rank_correlation
from policies.features.table import KNOBS, FeatureTable
from policies.features.views import VIEW_SHAPES
from policies.search import methods

LEARNED = {"learning_rate": 2e-3, "epochs": 12, "least_steps": 40, "list_size": 64}


def table(count: int, seed: int) -> FeatureTable:
    """Random features, the same in the first row of every view."""
    rng = np.random.default_rng(seed)
    views = {name: np.zeros((count, *shape), dtype=np.float32) for name, shape in VIEW_SHAPES.items()}
    features = rng.standard_normal((count, 12)).astype(np.float32)
    for values in views.values():
        first = values if values.ndim == 2 else values[:, 0]
        first[:, 2:14] = features
        first[:, 1] = 1.0
    return FeatureTable({"symbolic": features, KNOBS: features, **views})


def logs_of(features: FeatureTable) -> np.ndarray:
    symbolic = features.view("symbolic").astype(np.float64)
    return symbolic[:, 3] + symbolic[:, 0] ** 2 + 0.5 * symbolic[:, 1] - 7.0


@pytest.fixture(params=sorted(LABORATORY_MODELS))
def model(request: pytest.FixtureRequest) -> CostModel:
    made = LABORATORY_MODELS[request.param].make(1, None)
    if isinstance(made, NeuralModel):
        made.settings = dataclasses.replace(made.settings, **LEARNED)
    return made


def test_every_model_learns_and_is_the_same_after_loading(model: CostModel) -> None:
    features, fresh = table(300, 0), table(200, 1)
    model.fit(features, logs_of(features), np.zeros(300, dtype=np.int64))
    mean, deviation = model.predict(fresh)
    assert rank_correlation(mean, logs_of(fresh)) > 0.6
    assert (deviation >= 0).all()
    again = load_model(model.save())
    assert type(again) is type(model)
    assert np.array_equal(again.predict(fresh), (mean, deviation))
    if model.KIND not in ("boosted", "boosted-loops"):  # kinds of the product with other settings
        with pytest.raises(ValueError, match=f"'{model.KIND}', which is part of the benchmarks"):
            registry.load_model(model.save())


def test_the_product_knows_which_models_are_in_the_laboratory() -> None:
    assert set(LABORATORY_MODELS) == registry.LABORATORY
    assert not set(LABORATORY_MODELS) & set(registry.COST_MODELS)
    assert all(name == entry.name for name, entry in all_models().items())
    with pytest.raises(UserError, match="'tree-gru' is part of the benchmarks"):
        methods.method_named("autotvm:tree-gru")
    with pytest.raises(UserError, match="'mlp' is part of the benchmarks"):
        methods.spec("ansor", "mlp")


def test_methods_of_the_laboratory() -> None:
    changed = method_named("autotvm:tree-gru:raced")
    assert changed.training is not None
    assert (changed.name, changed.training.model.name) == ("autotvm:tree-gru:raced", "tree-gru")
    assert changed.stop_rule == methods.method_named("autotvm:raced").stop_rule
    offline = method_named("moa-pruner:mlp:offline")
    assert offline.training is not None
    assert (offline.training.offline, offline.starts_from) == (True, "")
    assert method_named("fleet:boosted") == methods.method_named("fleet:boosted")


def count_of(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def test_networks_have_the_documented_sizes() -> None:
    # Pruner's code has 417,409 parameters with TenSet's 174 numbers of a statement.
    assert VIEW_SHAPES["analyzed_statements"] == (8, 102)
    assert AnalyzedPacmModel().parameters == 417409 - (174 - 102) * 256 == 398977
    assert MlpModel().parameters == count_of(Mlp([(8, 53)])) == 53 * 256 + 256 + 65792 + 512 + 2 * 65792 + 257
    # 17*64+64 | 16*64 | 2 layers: 4 projections and a residual layer of 64*64+64 | 64*64+64 | 64+1
    assert TlpModel().parameters == count_of(Tlp([(16, 17)])) == 1152 + 1024 + 2 * 5 * 4160 + 4160 + 65
    # 23*128+128 | GRU: 3*(128*128 + 128*128 + 2*128) | 128*8 | 8*128+1
    assert TreeGruModel().parameters == count_of(TreeGru([(40, 24)])) == 3072 + 99072 + 1024 + 1025
    assert TreeGru([(40, 24)])(torch.ones(5, 1, 24).expand(-1, 40, -1)).shape == (5,)


def test_absent_loops_count_for_nothing() -> None:
    loops = torch.zeros(2, 40, 24)
    loops[:, :5] = torch.randn(5, 24)
    loops[:, :5, -1] = torch.arange(5.0)  # a chain
    gru = TreeGru([(40, 24)])
    assert torch.allclose(gru(loops), gru(loops[:, :5]), atol=1e-6)
    longer = loops.clone()
    longer[1, 5:9] = torch.randn(4, 24)  # a larger tree beside a smaller one does not change it
    longer[1, 5:9, -1] = 2.0
    assert torch.allclose(gru(longer)[0], gru(loops)[0], atol=1e-6)
    assert not torch.allclose(gru(longer)[1], gru(loops)[1], atol=1e-6)
    assert torch.isfinite(gru(torch.zeros(2, 40, 24))).all()


def test_absent_primitives_count_for_nothing_and_the_order_of_the_others_does() -> None:
    torch.manual_seed(0)
    tlp = Tlp([(16, 17)])
    primitives = torch.zeros(3, 16, 17)
    primitives[:, :5] = torch.randn(5, 17)
    scores = tlp(primitives)
    assert torch.allclose(scores, tlp(primitives[:, :5]), atol=1e-6)
    longer = primitives.clone()
    longer[1, 5:9] = torch.randn(4, 17)  # a longer schedule beside a shorter one does not change it
    assert torch.allclose(tlp(longer)[0], scores[0], atol=1e-6)
    assert not torch.allclose(tlp(longer)[1], scores[1], atol=1e-4)
    turned = primitives.clone()
    turned[:, :5] = primitives[:, [1, 0, 2, 3, 4]]
    assert not torch.allclose(tlp(turned), scores, atol=1e-4)
    torch.nn.init.zeros_(tlp.place)  # places alone tell the order
    assert torch.allclose(tlp(turned), tlp(primitives), atol=1e-6)
    with torch.no_grad():  # as in a prediction, where PyTorch's attention to nothing is no number
        assert torch.isfinite(tlp.eval()(torch.zeros(2, 16, 17))).all()


def test_tree_gru_reads_the_tree_from_the_leaves() -> None:
    """Against the recursion, written down loop by loop: a loop's state is the cell's on its context and the sum of what
    the loops directly inside hand on."""
    torch.manual_seed(1)
    parents = [0, 1, 1, 3, 3, 0, 6]  # two trees: 1 with 2 and 3, which has 4 and 5; 6 with 7
    rows = torch.randn(7, 23)
    gru = TreeGru([(40, 24)])
    states: dict[int, torch.Tensor] = {}

    def state(loop: int) -> torch.Tensor:
        inside = torch.zeros(1, 128)
        for child, parent in enumerate(parents, 1):
            if parent == loop:
                inside = inside + state(child)
        states[loop] = gru.cell(torch.tanh(gru.embed(rows[loop - 1 : loop])), inside)
        return states[loop]

    state(1), state(6)
    out = torch.zeros(8, 128)
    for h in states.values():
        out += torch.softmax(gru.scatter.weight @ h[0], dim=0)[:, None] * h  # out_i = softmax(W^T h)_i h
    expected = gru.last(out.reshape(1, -1))[0, 0]
    loops = torch.zeros(2, 40, 24)
    loops[0, :7] = torch.cat([rows, torch.tensor(parents)[:, None].float()], dim=1)
    loops[1, :3] = loops[0, :3]
    assert len(states) == 7
    assert gru(loops)[0].item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_rank_loss_is_equation_2() -> None:
    """By hand: scores 1, 0 and 2 of records that take 1, 2 and 4: one pair is in order by 1, two are not, by 1 and 2;
    the loss has each pair twice, log(1 + e^-1), log(1 + e^1) and log(1 + e^2)."""
    labels = -torch.tensor([1.0, 2.0, 4.0])
    loss = pairwise_rank(torch.tensor([1.0, 0.0, 2.0]), labels).item()
    assert loss == pytest.approx((0.3132617 + 1.3132617 + 2.1269280) / 3, abs=1e-6)
    assert pairwise_rank(torch.tensor([3.0, 1.0]), torch.tensor([5.0, 5.0])).item() == 0.0  # nothing to order
    levels = torch.tensor([1.0, 2.0, 4.0]) + 7.0  # the level of scores and costs is nothing to it
    assert pairwise_rank(torch.tensor([1.0, 0.0, 2.0]) - 3.0, -levels).item() == pytest.approx(loss)


def test_the_regression_is_asked_for_deviations_from_the_tasks_mean() -> None:
    groups = np.array([0, 1, 0, 1])
    labels = deviations(np.array([-7.0, 2.0, -5.0, 6.0]), groups)
    assert labels.tolist() == [1.0, 2.0, -1.0, -2.0]
    assert squared_error(torch.tensor([1.0, 0.0, 0.0, -2.0]), torch.tensor(labels)).item() == pytest.approx(1.25)


def test_each_tree_gru_learns_by_its_own_objective() -> None:
    """The order is all that the rank loss sees: costs that are squared train it to the same weights, and the regression
    to others."""
    features = table(40, 3)
    costs = np.argsort(np.argsort(logs_of(features))).astype(float)
    settings = NeuralSettings(members=1, epochs=1, least_steps=3)

    def weights(model: type[TreeGruModel], log_secs: np.ndarray) -> np.ndarray:
        trained = model(1, settings)
        trained.fit(features, log_secs, np.zeros(40, dtype=np.int64))
        return trained.weights()["0.last.weight"]

    assert np.array_equal(weights(TreeGruModel, costs), weights(TreeGruModel, costs**2))
    assert not np.array_equal(weights(TreeGruRegressionModel, costs), weights(TreeGruRegressionModel, costs**2))
    assert not np.array_equal(weights(TreeGruModel, costs), weights(TreeGruRegressionModel, costs))


def test_each_representation_reads_one_view() -> None:
    """Figure 9: what another view says is nothing to a model, and configurations alone are a task's own."""
    seen = {name: LABORATORY_MODELS[f"boosted-{name}"] for name in ("knobs", "context", "relation")}
    assert [entry.views for entry in seen.values()] == [(KNOBS,), ("context",), ("relation",)]
    assert {name: entry.transfers for name, entry in seen.items()} == {
        "knobs": False,
        "context": True,
        "relation": True,
    }
    assert method_named("autotvm:boosted-context").training.model == seen["context"]  # type: ignore[union-attr]
    together = methods.method_named("autotvm").training
    assert together is not None
    assert together.views == (*seen["context"].views, *seen["relation"].views)
    settings = {entry.make(0, None).settings for entry in seen.values()}  # type: ignore[attr-defined]
    assert settings == {AUTOTVM_TREES}
