"""Steps of a text in other frameworks and in a compiled network: what a network with growing caches is timed by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from devices.networks.compiled.network_folder import compile_network
from devices.networks.frameworks.ours import ours
from devices.networks.frameworks.texts import STEPS, Text
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.helpers.compiling import CLASS

MOST = 20


class Sums(nn.Module):
    """Keeps rows (1, past, 4), and returns the running sum of all and them with one more."""

    def forward(self, row: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.cat([rows, row], 1)
        return rows.sum(1) * 2, rows


def example() -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    past = torch.export.Dim("past", min=1, max=MOST)
    return Sums(), (torch.rand(1, 1, 4), torch.rand(1, 5, 4)), ({}, {1: past})


def rows_of(text: Text, steps: int) -> list[float]:
    """Run some steps, and return the first number of each sum."""
    found = []
    for _ in range(steps):
        text.prepare()
        found.append(float(text()[0][0, 0]))
    return found


def expected(row: Tensor, rows: Tensor, steps: int, most: int) -> list[float]:
    start, one = float(rows[0, :, 0].sum()), float(row[0, 0, 0])
    return [2 * (start + one * (1 + at % most)) for at in range(steps)]


@pytest.mark.parametrize("before", [5, MOST - 2, MOST])
def test_ours_goes_on_from_its_caches_and_begins_again(before: int, tmp_path: Path) -> None:
    network = load_network(example(), shapes=parse_shapes(f"past=1..{MOST}"))
    compile_network(import_network(network, CLASS), {}, tmp_path)
    row, rows = torch.rand(1, 1, 4), torch.rand(1, before, 4)
    text: Any = ours(str(tmp_path))([row, rows])
    np.testing.assert_allclose(text.once()[0][0, 0], expected(row, rows, 1, 1)[0], rtol=1e-5)
    # A text that would come to the largest extent ends there.
    first = rows[:, : min(before, MOST + 1 - STEPS)]
    np.testing.assert_allclose(rows_of(text, STEPS + 3), expected(row, first, STEPS + 3, STEPS), rtol=1e-5)


def test_a_text_over_few_extents_is_short(tmp_path: Path) -> None:
    network = load_network(example(), shapes=parse_shapes("past=3..5"))
    compile_network(import_network(network, CLASS), {}, tmp_path)
    row, rows = torch.rand(1, 1, 4), torch.rand(1, 4, 4)
    text: Any = ours(str(tmp_path))([row, rows])
    np.testing.assert_allclose(rows_of(text, 5), expected(row, rows[:, :3], 5, 3), rtol=1e-5)


class Window(nn.Module):
    """Keeps rows (1, past, 4) and takes several new ones, with a mask over all if it is given one."""

    def forward(self, new: Tensor, rows: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows = torch.cat([rows, new], 1)
        return (rows if mask is None else rows * mask[:, :, None]).sum(1) * 2, rows


@pytest.mark.parametrize(("before", "tokens"), [(19, 1), (20, 4), (3, 4), (0, 1)])
def test_a_text_of_several_tokens_stays_in_range(before: int, tokens: int, tmp_path: Path) -> None:
    past, new = torch.export.Dim("past", min=0, max=20), torch.export.Dim("tokens", min=1, max=4)
    example = (Window(), (torch.rand(1, 3, 4), torch.rand(1, 5, 4)), ({1: new}, {1: past}))
    compile_network(import_network(load_network(example), CLASS), {}, tmp_path)
    text: Any = ours(str(tmp_path))([torch.rand(1, tokens, 4), torch.rand(1, before, 4)])
    assert len(rows_of(text, 20)) == 20


def test_a_network_whose_mask_would_have_to_grow_runs_on_its_inputs(tmp_path: Path) -> None:
    past = torch.export.Dim("past", min=1, max=20)
    example = (Window(), (torch.rand(1, 1, 4), torch.rand(1, 5, 4), torch.ones(1, 6)), ({}, {1: past}, {1: past + 1}))
    compile_network(import_network(load_network(example), CLASS), {}, tmp_path)
    run = ours(str(tmp_path))([torch.rand(1, 1, 4), torch.rand(1, 5, 4), torch.ones(1, 6)])
    assert not isinstance(run, Text)
    for _ in range(3):
        run()
