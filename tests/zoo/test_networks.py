"""Some of the zoo's small networks, in this process, in every form (all of them: ``make zoo``)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.zoo import networks, trial
from tests.zoo.catalogue import FAMILIES, FORMS, SMALL, Entry, entries, lifeless
from tests.zoo.scheduling import Descriptions

pytestmark = pytest.mark.timeout(300)  # so that it begins early: others wait for what begins last

_SAMPLE = (
    "depthwise_separable",
    "transposed",
    "squeeze_excitation",
    "group_norm",
    "attention_masked",
    "several_outputs",
)


def _entries() -> dict[str, Entry]:
    return {entry.name: entry for entry in entries(SMALL)}


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, form) for name in _SAMPLE for form in FORMS), ("opset_7", "onnx"), ("keras_channels_last", "onnx")],
)
def test_small_networks_are_right(name: str, form: str) -> None:
    entry = _entries()[name]
    assert form in entry.forms
    result = trial.tried(name, entry.family, form, entry.make(), None)
    assert result.kind == trial.RIGHT, result.line


def test_a_network_is_described_and_scheduled() -> None:
    entry = _entries()["mlp"]
    result = trial.tried("mlp", entry.family, "pt2", entry.make(), Descriptions(candidates=True))
    assert (result.kind, result.left_out) == (trial.RIGHT, ())
    assert result.tasks >= 2
    assert result.describe_secs > 0


def test_names_are_unique() -> None:
    found = [entry.name for entry in entries(FAMILIES)]
    assert len(found) == len(set(found)) >= 60


def test_networks_whose_outputs_show_nothing_are_noticed() -> None:
    constant = nn.Linear(4, 3)
    nn.init.zeros_(constant.weight)
    inputs = (torch.randn(2, 4),)
    assert "hardly depends" in lifeless(constant, inputs)
    nn.init.zeros_(constant.bias)
    assert "constant" in lifeless(constant, inputs)
    assert trial.tried("x", "", "torch", (constant, inputs), None).kind == trial.LIFELESS


def test_wrong_numbers_and_refusals_are_noticed() -> None:
    class Random(nn.Module):
        """PyTorch gives other numbers each time: what was imported cannot agree."""

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return data * next(self.factors)

    module = Random()
    module.factors = iter(range(1, 100))
    result = trial.tried("x", "", "torch", (module, (torch.randn(3),)), None)
    assert (result.kind, math.isfinite(result.error)) == (trial.WRONG, True)

    class Positive(nn.Module):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return data[data > 0]

    refused = trial.tried(
        "x", "", "torch", (Positive(), (torch.randn(30, generator=torch.Generator().manual_seed(5)),)), None
    )
    assert refused.kind == trial.REFUSED
    assert "nonzero" in refused.line or "data" in refused.line


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    row = networks._row(
        replace(trial.Result("a", "f", "onnx", trial.RIGHT), exporter="TorchScript", left_out=("b", "b"))
    )
    assert "TorchScript" in row
    assert "2 x b" in row
    assert networks.main(["--match", "no network is called so"]) == 0
    assert "result" in capsys.readouterr().out


def test_networks_are_tried_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert networks.main(["--family", "written_onnx", "--match", "keras_", "--tasks", "leave", "--processes", "2"]) == 0
    rows = capsys.readouterr().out
    assert "keras_gru " in rows
    assert "onnx: 2  right: 2" in rows


@pytest.mark.parametrize(("times", "kind"), [(1.5, trial.RIGHT), (3.0, trial.WRONG)])
def test_rounding_that_a_network_enlarges_is_judged_by_pytorchs_own(times: float, kind: str) -> None:
    class Enlarges(nn.Module):
        """Float32 loses what float64 keeps, whoever computes it."""

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return data.exp() + 30000.3 - 30000.3

    example = (Enlarges(), (torch.linspace(0.1, 1.0, 40),))
    exact, theirs = (Enlarges()(data).numpy() for data in (example[1][0].double(), example[1][0]))
    ours = (exact + times * (theirs - exact)).astype("float32")
    compared = trial._compared(trial.Result("x", "", "torch", trial.TRACEBACK), (ours,), (theirs,))
    assert compared.kind == trial.WRONG
    judged = trial._against_float64(compared, (ours,), (theirs,), example)
    assert judged.kind == kind, judged.line
    assert "PyTorch's" in judged.line
