"""Momentum online adaptation: the update by hand, the siamese weights over several updates, saving and loading."""

from __future__ import annotations

import numpy as np
import pytest

from policies.cost_models import model_bytes
from policies.cost_models.architectures import PacmModel
from policies.cost_models.moa import MomentumModel, copied, follow
from policies.cost_models.registry import load_model
from policies.features.table import FeatureTable
from policies.features.views import VIEW_SHAPES


def test_the_momentum_update_is_that_of_hand() -> None:
    siamese = {"a": np.array([1.0, -2.0], np.float32), "b": np.array([[4.0]], np.float32)}
    target = {"a": np.array([2.0, 0.0], np.float32), "b": np.array([[-6.0]], np.float32)}
    stepped = follow(siamese, target, 0.99)
    # 0.99 * 1 + 0.01 * 2 = 1.01, 0.99 * -2 + 0.01 * 0 = -1.98, 0.99 * 4 + 0.01 * -6 = 3.9
    np.testing.assert_allclose(stepped["a"], [1.01, -1.98], rtol=1e-7)
    np.testing.assert_allclose(stepped["b"], [[3.9]], rtol=1e-7)
    # A second step towards the same target: 0.99 * 1.01 + 0.02 = 1.0199
    np.testing.assert_allclose(follow(stepped, target, 0.99)["a"][0], 1.0199, rtol=1e-6)


def test_the_ends_of_the_momentum() -> None:
    siamese, target = {"a": np.array([3.0], np.float32)}, {"a": np.array([5.0], np.float32)}
    assert follow(siamese, target, 1.0)["a"] == 3.0
    assert follow(siamese, target, 0.0)["a"] == 5.0


def test_weights_of_another_network_are_refused() -> None:
    one, other = {"a": np.zeros(2, np.float32)}, {"a": np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match="different weights"):
        follow(one, other)
    with pytest.raises(ValueError, match="between 0 and 1"):
        MomentumModel(PacmModel(0), False, 1.5)


def records(count: int, seed: int) -> tuple[FeatureTable, np.ndarray, np.ndarray]:
    """Random candidates whose cost follows one of the features."""
    rng = np.random.default_rng(seed)
    views = {name: rng.normal(size=(count, *VIEW_SHAPES[name])).astype(np.float32) for name in PacmModel.views}
    log_secs = views["statements"][:, 0, 0].astype(np.float64)
    return FeatureTable(views), log_secs, np.zeros(count, np.int64)


@pytest.fixture(scope="module")
def pretrained() -> PacmModel:
    model = PacmModel(0)
    model.fit(*records(48, 0))
    return model


def test_the_target_starts_from_the_siamese_weights_which_follow_it(pretrained: PacmModel) -> None:
    first, other = records(24, 1), records(12, 2)
    both = (
        FeatureTable.concatenate([first[0], other[0]]),
        np.concatenate([first[1], other[1]]),
        np.concatenate([first[2], other[2]]),
    )
    model = MomentumModel(copied(pretrained), True, 0.9)
    start = pretrained.weights()
    model.update(*first)

    # The same by hand: a copy of the pre-trained network, trained on the records, and the siamese a tenth of the way.
    target = copied(pretrained)
    target.update(*first)
    siamese = follow(start, target.weights(), 0.9)
    assert model.siamese is not None
    for name, values in siamese.items():
        np.testing.assert_array_equal(model.siamese[name], values)
    np.testing.assert_array_equal(model.predict(other[0])[0], target.predict(other[0])[0])

    # The second update starts from the siamese weights again, not from the target's.
    model.update(*both)
    again = copied(target)
    again.set_weights(siamese)
    again.update(*both)
    np.testing.assert_array_equal(model.predict(other[0])[0], again.predict(other[0])[0])
    assert model.updates == 2
    np.testing.assert_array_equal(pretrained.weights()["0.last.weight"], start["0.last.weight"])  # left as it was


def test_without_a_pretrained_network_the_first_training_makes_the_siamese() -> None:
    model = MomentumModel(PacmModel(3), False)
    assert model.siamese is None
    with pytest.raises(ValueError, match="not trained"):
        model.save()
    model.fit(*records(24, 4))
    fresh = PacmModel(3)
    fresh.fit(*records(24, 4))
    assert model.siamese is not None
    np.testing.assert_array_equal(model.siamese["0.last.weight"], fresh.weights()["0.last.weight"])


def test_a_saved_model_goes_on_where_it_stopped(pretrained: PacmModel) -> None:
    model = MomentumModel(copied(pretrained), True)
    model.update(*records(24, 5))
    read = load_model(model.save())
    assert isinstance(read, MomentumModel)
    assert (read.updates, read.momentum) == (1, 0.99)
    probe = records(8, 6)
    np.testing.assert_array_equal(read.predict(probe[0])[0], model.predict(probe[0])[0])
    assert read.siamese is not None
    assert model.siamese is not None
    for name, values in model.siamese.items():
        np.testing.assert_array_equal(read.siamese[name], values)


def test_forged_siamese_weights_are_refused(pretrained: PacmModel) -> None:
    saved = model_bytes.unpack(MomentumModel(copied(pretrained), True).save())
    name = next(each for each in saved.arrays if each.startswith("siamese/"))
    without = {each: values for each, values in saved.arrays.items() if each != name}
    for forged in ({**without, name: np.zeros(3, np.float32)}, without):
        with pytest.raises(ValueError, match="different weights"):
            load_model(model_bytes.pack(model_bytes.SavedState("moa", saved.header, forged)))
    with pytest.raises(ValueError, match="lacks what this version reads"):
        load_model(model_bytes.pack(model_bytes.SavedState("moa", {**saved.header, "inner": {}}, saved.arrays)))
