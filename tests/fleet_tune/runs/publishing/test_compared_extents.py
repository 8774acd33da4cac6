"""A network with a dynamic dimension is compared with its framework at other extents before it is published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.dynamic.other_extents import AtExtents, frequent_inputs, other_extents
from devices.networks.network import Array
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.errors import NetworkRunError
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.publishing.compile_request import compile_request
from fleet_tune.runs.publishing.device_runner import DeviceNetworkRunner
from fleet_tune.runs.publishing.network_runners import LocalNetworkRunner
from fleet_tune.runs.tuned import Tuned
from tests.helpers.compiling import CLASS, Example, Told
from tests.helpers.devices import make_fingerprint
from tests.helpers.dynamic_networks import layers, refusing

NAMES = ["n = 2", "n = 4", "n = 5", "n = 8"]


@pytest.fixture(scope="module")
def dynamic() -> Example:
    return Example.of(layers())


@pytest.fixture(scope="module")
def extents(dynamic: Example) -> tuple[AtExtents, ...]:
    return other_extents(dynamic.network).compared


class Place(LocalNetworkRunner):
    """This machine, where scheduled networks are wrong at some extents."""

    def __init__(self, example: Example, extents: tuple[AtExtents, ...], *wrong: str) -> None:
        super().__init__(example.network.example_inputs, at_extents={each.name: each.inputs for each in extents})
        self._wrong = wrong

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        outputs = super().outputs(folder)
        tasks = json.loads((folder / "manifest.json").read_text())["tasks"]
        if any(entry["trace"] is not None for entry in tasks):
            shifted: Mapping[str, tuple[Array, ...]] = {
                name: tuple(array + 1 for array in self.extent_outputs[name]) for name in self._wrong
            }
            self.extent_outputs = {**self.extent_outputs, **shifted}
        return outputs

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        assert first != second
        return 1.0, 2.0


@pytest.mark.usefixtures("networks_run_here")
def test_a_network_that_is_right_at_all_of_them_is_published(
    dynamic: Example, extents: tuple[AtExtents, ...], tmp_path: Path
) -> None:
    place = Place(dynamic, extents)
    result = dynamic.built(dynamic.right(tmp_path / "records.db"), place, at_extents=extents)
    assert (result.published, result.fallbacks) == ("tuned", ())
    assert list(place.extent_outputs) == NAMES
    for each in extents:
        np.testing.assert_allclose(place.extent_outputs[each.name][0], each.expected[0], atol=1e-4)


@pytest.mark.usefixtures("networks_run_here")
def test_kernels_that_are_wrong_at_one_of_them_are_not_used(
    dynamic: Example, extents: tuple[AtExtents, ...], tmp_path: Path
) -> None:
    place = Place(dynamic, extents, "n = 5")
    result = dynamic.built(dynamic.right(tmp_path / "records.db"), place, at_extents=extents)
    assert len(result.fallbacks) == len(dynamic.tasks)
    assert all("with n = 5: relative error" in each.reason for each in result.fallbacks)


def test_a_failure_at_one_of_them_is_one_of_the_network(
    dynamic: Example, extents: tuple[AtExtents, ...], tmp_path: Path
) -> None:
    compile_network(dynamic.lowered, {}, tmp_path)
    wide = (np.zeros((99, 24), np.float32),)
    given = {extents[0].name: extents[0].inputs, "n = 99": wide}
    places = (
        LocalNetworkRunner(dynamic.network.example_inputs, at_extents=given),
        LocalNetworkRunner(dynamic.network.example_inputs, at_extents={"n = 99": wide}, special=[wide]),
    )
    for place in places:
        with pytest.raises(NetworkRunError, match=r"with n = 99: .*compiled for n=2\.\.9"):
            place.outputs(tmp_path)
        place.expect()
        with pytest.raises(NetworkRunError, match=r"with n = 99: "):
            place.tried(tmp_path)


def test_inputs_with_special_values_may_fail(dynamic: Example, extents: tuple[AtExtents, ...], tmp_path: Path) -> None:
    compile_network(dynamic.lowered, {}, tmp_path)
    given = {each.name: each.inputs for each in extents}
    place = LocalNetworkRunner(dynamic.network.example_inputs, [(np.zeros((99, 24), np.float32),)], at_extents=given)
    place.outputs(tmp_path)
    assert (list(place.extent_outputs), len(place.special_outputs)) == (NAMES, 0)


def test_a_device_runs_them_too(dynamic: Example, extents: tuple[AtExtents, ...], tmp_path: Path) -> None:
    compile_network(dynamic.lowered, {}, tmp_path)
    given = {each.name: each.inputs for each in extents}
    board = DeviceNetworkRunner(DeviceConfig(name="board", threads=2), dynamic.network.example_inputs, at_extents=given)
    try:
        board.outputs(tmp_path)
        for each in extents:
            np.testing.assert_allclose(board.extent_outputs[each.name][0], load(tmp_path)(*each.inputs), atol=1e-5)
        board._at_extents = {"n = 4": (np.zeros((4, 23), np.float32),)}
        with pytest.raises(NetworkRunError, match=r"^with n = 4: "):
            board.outputs(tmp_path)
        with pytest.raises(NetworkRunError, match=r"^with n = 4: "):
            board.tried(tmp_path)
    finally:
        board.close()


def test_a_run_that_has_not_asked_the_framework_yet_does_so(dynamic: Example, tmp_path: Path) -> None:
    """One whose tasks are all settled, on this machine."""
    network = refusing(dynamic.network, 4)
    prints = {"cpu": make_fingerprint(CLASS)}
    prepared = Prepared(network, prints, {"cpu": dynamic.lowered}, frozenset({"cpu"}), {})
    RecordStore(tmp_path / "records.db").close()
    told = Told()
    request = compile_request(Tuned(prepared, (), ()), tmp_path / "records.db", told)
    assert [each.name for each in request.at_extents] == ["n = 2", "n = 5", "n = 8"]
    (notice,) = told.notices
    assert "with n = 4 it is not compared: its framework refuses" in notice.text


@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_kernels_are_timed_at_the_extents_that_come_most_often(
    dynamic: Example, tmp_path: Path, weights: tuple[float, float]
) -> None:
    folder = compile_network(dynamic.lowered, {}, tmp_path)
    few, many = (np.zeros((extent, 24), np.float32) for extent in (2, 9))
    frequent = [(weight, (each,)) for weight, each in zip(weights, (few, many), strict=True)]
    runner = LocalNetworkRunner((many,), frequent=frequent)
    rounds = list(runner.kernel_times_interleaved([folder, folder], 2))
    assert [len(each) for each in rounds] == [2, 2]
    for timed in (each for both in rounds for each in both):
        assert timed.kernel_secs
        assert (timed.secs > 0) == any(weights)
        assert any(secs > 0 for secs in timed.kernel_secs.values()) == any(weights)


def test_each_of_the_frequent_inputs_is_run(dynamic: Example, tmp_path: Path) -> None:
    folder = compile_network(dynamic.lowered, {}, tmp_path)
    right, wrong = (np.zeros((extent, 24), np.float32) for extent in (9, 99))
    runner = LocalNetworkRunner((right,), frequent=[(0.5, (right,)), (0.5, (wrong,))])
    with pytest.raises(NetworkRunError, match=r"compiled for n=2\.\.9"):
        list(runner.kernel_times_interleaved([folder], 1))


def test_frequent_inputs_are_those_of_the_weights(dynamic: Example) -> None:
    found = frequent_inputs(dynamic.network)
    shapes = dynamic.network.shapes
    assert shapes is not None
    assert [(inputs[0].shape[0], weight) for weight, inputs in found] == [
        (extents["n"], weight) for extents, weight in shapes.frequent
    ]
    assert frequent_inputs(replace(dynamic.network, shapes=None)) == ()
