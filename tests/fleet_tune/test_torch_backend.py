"""``torch.compile(module, backend="fleet_tune")``: right, never slower, the original where there is nothing better."""

from __future__ import annotations

import importlib.metadata
import logging
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import fleet_tune
from fleet_tune import torch_backend
from fleet_tune.base.errors import RequestError
from tests.helpers.brief import time_networks_briefly

CHANNELS = 16


class Net(torch.nn.Module):
    """A convolution, whose normalisation has buffers, and a classifier, which gives two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(CHANNELS)
        self.out = torch.nn.Linear(CHANNELS, 10)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.norm(self.conv(image))).mean((2, 3))
        return self.out(features), features


@pytest.fixture(scope="module")
def module() -> Net:
    torch.manual_seed(0)
    return Net().eval()


IMAGE = torch.linspace(-1, 1, 3 * 24 * 24).reshape(1, 3, 24, 24)


@pytest.fixture(scope="module")
def records(module: Net, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:  # noqa: ARG001
    """The output folder of a short run."""
    out = tmp_path_factory.mktemp("run") / "out"
    with pytest.MonkeyPatch.context() as patch:
        time_networks_briefly(patch)
        fleet_tune.tune((module, (IMAGE,)), out=out, trials=16)
    return out


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    torch._dynamo.reset()
    caplog.set_level(logging.INFO, torch_backend.__name__)
    time_networks_briefly(monkeypatch)
    # What is faster here is not what is tested, but for one test.
    monkeypatch.setattr(torch_backend, "_timed", lambda *_: (1.0, 2.0))
    yield
    torch._dynamo.reset()


def compiled(module: torch.nn.Module, **options: Any) -> Callable[..., Any]:
    return torch.compile(module, backend=torch_backend.fleet_tune, options=options)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What runs instead of the region: ``tuned`` for each call of the tuned network."""
    calls: list[str] = []
    make = torch_backend._compiled

    def counting(*arguments: Any) -> Callable[..., Any]:
        tuned = make(*arguments)

        def run(*inputs: Any) -> Any:
            calls.append("tuned")
            return tuned(*inputs)

        return run

    monkeypatch.setattr(torch_backend, "_compiled", counting)
    return calls


@pytest.mark.long
def test_a_region_is_the_network_of_its_records_until_its_weights_change(
    module: Net, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    with torch.no_grad():
        tuned, inductor = compiled(module, records=records), torch.compile(module)
        for image in (IMAGE, -IMAGE):
            for ours, original, theirs in zip(tuned(image), module(image), inductor(image), strict=True):
                torch.testing.assert_close(ours, original, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert calls == ["tuned"] * 2
        another = Net().eval()
        torch.testing.assert_close(tuned(IMAGE), module(IMAGE), rtol=1e-4, atol=1e-5)
        assert calls == ["tuned"] * 3
        torch.testing.assert_close(compiled(another, records=records)(IMAGE), another(IMAGE))
        for change in (module.out.weight, module.norm.running_mean):
            assert change is not None
            change.add_(1.0)
            torch.testing.assert_close(tuned(IMAGE), module(IMAGE))
        assert calls == ["tuned"] * 3


@pytest.mark.long
def test_a_region_that_is_not_faster_stays(
    module: Net, records: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_backend, "_timed", lambda *_: (2.0, 1.0))
    calls = counted(monkeypatch)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module, records=records)(IMAGE), module(IMAGE))
    assert not calls
    assert "2e+03 ms, the original 1e+03 ms" in caplog.text


def test_both_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    order: list[str] = []
    ours, original = torch_backend._timed(lambda: order.append("ours"), lambda: order.append("original"), ())
    assert ours > 0
    assert original > 0
    assert order[0] == "ours"
    assert order[-1] == "original"
    turns = sum(before != after for before, after in pairwise(order))
    assert turns == 2 * torch_backend._ROUNDS - 1


@pytest.mark.long
def test_a_region_of_which_the_store_has_nothing_stays(records: Path, caplog: pytest.LogCaptureFixture) -> None:
    other, row = torch.nn.Linear(7, 5), torch.ones(3, 7)
    with torch.no_grad():
        torch.testing.assert_close(compiled(other, records=records)(row), other(row))
    assert "a region stays as it is" in caplog.text


def test_a_region_that_is_trained_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "records.db").touch()
    net = Net()
    compiled(net, records=tmp_path)(IMAGE)[0].sum().backward()
    assert net.out.weight.grad is not None
    assert "a region stays as it is: it is trained" in caplog.text


def test_a_region_with_shapes_that_vary_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "records.db").touch()
    function = torch.compile(
        lambda x: x.relu() * x.shape[0], backend=torch_backend.fleet_tune, options={"records": tmp_path}, dynamic=True
    )
    torch.testing.assert_close(function(IMAGE), IMAGE.relu())
    assert "its shapes vary" in caplog.text


def test_options_and_stores_that_are_none(module: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_TUNE_STORE", "")
    for options, expected in (
        ({"record": "x"}, "no option 'record'"),
        ({"records": str(tmp_path)}, "no record store"),
        ({}, "this user has no record store"),
    ):
        with pytest.raises(RequestError, match=expected):
            torch_backend.fleet_tune(torch.fx.symbolic_trace(module), [IMAGE], options=options)


def test_torch_finds_the_backend_by_its_name() -> None:
    [found] = importlib.metadata.entry_points(group="torch_dynamo_backends", name="fleet_tune")
    assert found.load() is torch_backend.fleet_tune
    assert "fleet_tune" in torch.compiler.list_backends()


def test_a_region_that_changes_what_it_is_given_keeps_the_original(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "records.db").touch()

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    compiled = torch.compile(step, backend="fleet_tune", options={"records": str(tmp_path)})
    cache = torch.zeros(4)
    with torch.no_grad():
        outputs = compiled(cache, torch.ones(4))
    assert cache.tolist() == [1.0] * 4
    assert outputs.tolist() == [2.0] * 4
    assert "it changes its inputs or buffers in place" in caplog.text


def test_weights_that_were_made_in_inference_mode_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "records.db").touch()
    with torch.inference_mode():
        net = torch.nn.Linear(4, 4)
        torch.testing.assert_close(compiled(net, records=tmp_path)(torch.ones(2, 4)), net(torch.ones(2, 4)))
    assert "a region stays as it is: its weights were made in torch.inference_mode()" in caplog.text


def test_a_weight_with_other_memory_is_another_one() -> None:
    weight, given = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
    with tempfile.TemporaryDirectory() as folder:
        kept: Any = folder
        run = torch_backend._guarded(lambda *_: "original", lambda *_: ("tuned",), [given, weight], [0], kept)
    assert run(given, weight) == ("tuned",)
    weight.data = torch.zeros(2)
    assert run(given, weight) == "original"
