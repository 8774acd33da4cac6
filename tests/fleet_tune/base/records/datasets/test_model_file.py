"""Model files: what is written is read, and what was cut, altered, forged or made for other features is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fleet_tune.base.errors import ModelFileError
from fleet_tune.base.records.datasets import model_file
from fleet_tune.base.records.datasets.model_file import DataSource, Manifest, ModelFile
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, from_file, read_model, to_file
from policies.cost_models.architectures import PacmModel
from policies.cost_models.boosted import BoostedSettings, InvariantTreesModel
from policies.cost_models.neural import NeuralSettings
from policies.cost_models.protocol import CostModel
from policies.cost_models.registry import load_model
from policies.features.table import FeatureTable
from policies.features.views import FEATURE_VERSION, VIEW_SHAPES

DATA = (DataSource("some.ftd", "00ff", 12, ("here",)),)


def table(views: tuple[str, ...], count: int = 24) -> FeatureTable:
    rng = np.random.default_rng(0)
    return FeatureTable({name: rng.normal(size=(count, *VIEW_SHAPES[name])).astype(np.float32) for name in views})


def trained(model: CostModel) -> CostModel:
    features = table(model.views)
    log_secs = np.random.default_rng(1).normal(size=len(features))
    model.fit(features, log_secs, np.zeros(len(features), np.int64))
    return model


@pytest.fixture(scope="module", params=["trees", "network"])
def model(request: pytest.FixtureRequest) -> CostModel:
    if request.param == "trees":
        return trained(InvariantTreesModel(0, BoostedSettings(members=2, rounds=4, depth=2)))
    return trained(PacmModel(0, NeuralSettings(members=1, epochs=1, least_steps=1)))


def test_a_model_written_and_read_predicts_the_same(model: CostModel, tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    model_file.save(to_file(model, "cpu", DATA, {"top_1": 0.5}), path)
    for place in (path, tmp_path):  # the file, or the folder that it is alone in
        read, manifest = read_model(place)
        assert manifest.data == DATA
        assert (manifest.device_kind, manifest.metrics, manifest.feature_version) == (
            "cpu",
            {"top_1": 0.5},
            FEATURE_VERSION,
        )
        probe = table(model.views, 8)
        np.testing.assert_allclose(read.predict(probe)[0], model.predict(probe)[0])


def test_the_weights_of_a_network_stand_in_the_file_by_their_names(tmp_path: Path) -> None:
    network = trained(PacmModel(0, NeuralSettings(members=1, epochs=1, least_steps=1)))
    path = tmp_path / "one.safetensors"
    model_file.save(to_file(network, "cpu", DATA), path)
    assert isinstance(network, PacmModel)
    stored = load_arrays(path.read_bytes())
    for name, values in network.weights().items():
        np.testing.assert_array_equal(stored[name], values)


def test_the_bytes_of_a_file_are_those_of_a_model(model: CostModel) -> None:
    probe = table(model.views, 8)
    read = load_model(model_file.encode(to_file(model, "cpu", DATA)))
    np.testing.assert_array_equal(read.predict(probe)[0], model.predict(probe)[0])


def test_every_cut_is_refused(model: CostModel, tmp_path: Path) -> None:
    content = model_file.encode(to_file(model, "cpu", DATA))
    path = tmp_path / "cut.safetensors"
    for length in (0, 1, 7, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match="not a model of fleet-tune"):
            read_model(path)


def test_an_altered_array_is_refused(model: CostModel, tmp_path: Path) -> None:
    content = bytearray(model_file.encode(to_file(model, "cpu", DATA)))
    content[-1] ^= 1
    path = tmp_path / "altered.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="was altered"):
        read_model(path)


def test_an_altered_manifest_is_refused(model: CostModel, tmp_path: Path) -> None:
    content = model_file.encode(to_file(model, "cpu", DATA, {"top_1": 0.5}))
    length = int.from_bytes(content[:8], "little")
    meta = json.loads(content[8 : 8 + length])["__metadata__"]
    forged = {"fleet_tune.manifest": meta["fleet_tune.manifest"].replace("0.5", "0.9")}
    path = tmp_path / "forged.safetensors"
    path.write_bytes(save_arrays(load_arrays(content), forged))
    with pytest.raises(ModelFileError, match="was altered"):
        read_model(path)


def test_other_features_are_refused_with_the_way_out(model: CostModel, tmp_path: Path) -> None:
    file = to_file(model, "cpu", DATA)
    other = dataclasses.replace(file, manifest=dataclasses.replace(file.manifest, feature_version=FEATURE_VERSION + 1))
    path = tmp_path / "other.safetensors"
    model_file.save(other, path)
    with pytest.raises(ModelFileError, match=f"version {FEATURE_VERSION + 1} of the features") as caught:
        read_model(path)
    assert "pretrain" in caught.value.next_step


def test_arrays_that_are_not_those_of_the_model_are_refused(tmp_path: Path) -> None:
    # Whole, and with a right digest: only the model itself can tell.
    network = to_file(trained(PacmModel(0, NeuralSettings(members=1, epochs=1, least_steps=1))), "cpu", DATA)
    arrays = dict(network.arrays)
    name = next(each for each in arrays if each.endswith("last.weight"))
    for forged in (np.zeros((3, 3), np.float32), np.full_like(arrays[name], np.nan)):
        path = tmp_path / "forged.safetensors"
        model_file.save(ModelFile(network.manifest, arrays | {name: forged}), path)
        with pytest.raises(ModelFileError, match="not one that fleet-tune can use"):
            read_model(path)
    unknown_names = ModelFile(network.manifest, {"weights": np.zeros(3, np.float32)})
    with pytest.raises(ModelFileError):
        from_file(unknown_names, tmp_path)
    unknown = dataclasses.replace(network, manifest=dataclasses.replace(network.manifest, model="oracle"))
    with pytest.raises(ModelFileError, match="oracle"):
        from_file(unknown, tmp_path)


def test_other_safetensors_files_are_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save_arrays({"a": np.zeros(3, np.float32)}))
    with pytest.raises(ModelFileError, match="manifest is missing"):
        read_model(path)
    with pytest.raises(ModelFileError, match="No such file"):
        read_model(tmp_path / "none.safetensors")
    (tmp_path / "two.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match="2 model files"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "most_bytes"), [("pretrained", "boosted-invariant", 2e6), ("pretrained-pacm", "pacm", 2e6)]
)
def test_the_models_that_come_along_are_small_and_can_be_read(name: str, kind: str, most_bytes: float) -> None:
    assert BUILTIN_PATHS[name].stat().st_size < most_bytes
    model, manifest = read_model(Path(name))
    assert manifest.model == kind
    if kind == "pacm":
        assert manifest.header["from_analyzer"] is False
    assert manifest.device_kind == "cpu"
    assert sum(source.candidates for source in manifest.data) > 8000
    mean, deviation = model.predict(table(model.views))
    assert np.isfinite(mean).all()
    assert (deviation >= 0).all()


def test_the_manifest_is_plain() -> None:
    manifest = Manifest("mlp", {}, FEATURE_VERSION, "cpu", DATA, {}, "fleet-tune")
    assert dataclasses.asdict(manifest)["data"][0]["device_classes"] == ("here",)
