"""Attention over a dynamic number of tokens: what its kernel computes, and the tiles that a trace gives it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tvm
from torch import nn
from torch.export import Dim

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import LoweredNetwork, import_network
from devices.sketches.dynamic.attention import dynamic_attention
from devices.sketches.dynamic.attention_extents import AttentionExtents
from devices.sketches.dynamic.default_schedule import default_schedule
from devices.sketches.dynamic.many_row_attention import AttentionTiles
from devices.sketches.dynamic.rows import tensors
from devices.sketches.rules.attention import GRANULE
from devices.sketches.spaces import DesignSpace
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass
from policies.space.sampling import sample
from tests.helpers.attention import examples

CPU = DeviceClass("cpu", resolve_target("native", 2))
ACROSS = "across"
FORMS = [*sorted(examples()), ACROSS]
EXTENTS = (2, 3, 15, 16, 17, 31, 32, 37)
TILES = (AttentionTiles(), AttentionTiles(6, 2, 4, 1, 3), AttentionTiles(1, 3, 16, 1, 8))


class Across(nn.Module):
    """Attention of a fixed number of queries over any number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        heads = [each.reshape(1, each.shape[1], 2, 16).transpose(1, 2) for each in (query, self.key(x), self.value(x))]
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(1, 9, 32)


@pytest.fixture(autouse=True)
def passes() -> None:
    use_kernel_passes()


@cache
def lowered(form: str) -> LoweredNetwork:
    """The network with a dynamic number of tokens."""
    tokens = Dim("n", min=2, max=64)
    if form == ACROSS:
        inputs = (torch.randn(1, 9, 32), torch.randn(1, 20, 32))
        return import_network(load_network((Across().eval(), inputs, ({}, {1: tokens}))), CPU)
    module, inputs = examples()[form]
    x, *masks = ({1: tokens} if each.ndim == 3 else {2: tokens, 3: tokens} for each in inputs)
    return import_network(load_network((module.eval(), inputs, (x, tuple(masks)) if masks else (x,))), CPU)


def kernel_of(form: str) -> Any:
    (name,) = (each.name_hint for each in lowered(form).module.functions if "attention" in each.name_hint)
    return lowered(form).module[name]


@cache
def built(form: str, tiles: AttentionTiles | None) -> Any:
    """The kernel; ``tiles`` None: by the default schedule."""
    kernel = kernel_of(form)
    scheduled = default_schedule(kernel) if tiles is None else dynamic_attention(kernel, tiles, 2)
    assert scheduled is not None
    module = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    return tvm.tirx.build(module, target=parse_target(CPU.target))["main"]


def arguments(form: str, extent: int) -> list[npt.NDArray[Any]]:
    """Arrays for the tensors of the kernel. Its result, the last, is NaN."""
    rng = np.random.default_rng(extent)
    arrays: list[npt.NDArray[Any]] = []
    for each in tensors(kernel_of(form)):
        shape = [int(size) if isinstance(size, tvm.tirx.IntImm) else extent for size in each.ty.shape]
        drawn = rng.standard_normal(shape)
        arrays.append((drawn > 0 if str(each.dtype) == "bool" else 2 * drawn).astype(str(each.dtype)))
    arrays[-1][:] = np.nan
    return arrays


def outputs(form: str, tiles: AttentionTiles | None, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    given = list(map(tvm.runtime.tensor, arrays))
    built(form, tiles)(*given)
    return np.asarray(given[-1].numpy())


@pytest.mark.parametrize(
    ("form", "tiles"), [*((each, TILES[1]) for each in FORMS), ("causal", TILES[0]), ("causal", TILES[2])]
)
def test_every_number_of_tokens_is_right(form: str, tiles: AttentionTiles) -> None:
    for extent in EXTENTS:
        arrays = arguments(form, extent)
        expected, got = outputs(form, None, arrays), outputs(form, tiles, arrays)
        assert np.isfinite(expected).all()
        assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max(), extent


@pytest.mark.parametrize("form", ["causal", "masked"])
def test_an_infinite_value_of_the_last_token_is_summed_up_once(form: str) -> None:
    """Places behind the last token stand for it, without a weight: infinity times zero would be NaN."""
    arrays, tiles = arguments(form, 17), TILES[1]
    projected = arrays[0]  # queries, keys and values
    projected[0, -1, -1] = np.inf  # of the values
    expected, got = outputs(form, None, arrays), outputs(form, tiles, arrays)
    assert np.isinf(expected).any()
    assert (np.isinf(got) == np.isinf(expected)).all()
    assert (np.isnan(got) == np.isnan(expected)).all()


@pytest.mark.parametrize(("form", "is_zero"), [("masked", True), ("added", False)])
def test_a_row_that_is_masked_as_a_whole_has_the_weights_of_the_program(form: str, is_zero: bool) -> None:
    arrays = arguments(form, 19)
    mask = next(at for at, each in enumerate(arrays) if each.shape[-2:] == (19, 19))
    arrays[mask] = np.full_like(arrays[mask], -np.inf)
    for tiles in (None, TILES[1]):
        got = outputs(form, tiles, arrays)
        assert (got == 0).all() if is_zero else np.isnan(got).all()


def test_its_tiles_are_those_that_were_searched_for() -> None:
    (task,) = (each for each in lowered("plain").tasks if each.workload.name.startswith("attention"))
    space = DesignSpace(task)
    (sketch,) = space.sketches
    (row,) = sample(sketch, 1, np.random.default_rng(3))
    trace = space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row)))).trace
    tiles = AttentionTiles.of(trace)
    assert tiles.rows * tiles.terms * tiles.columns > 1
    assert dynamic_attention(kernel_of("plain"), tiles, 2) is not None


def test_groups_have_no_more_rows_than_tvm_compiles() -> None:
    """A trace of 19 tokens may decide for 20 rows."""
    trace = json.dumps(
        [
            [["Annotate", ["b0", 4], [GRANULE], []]],
            [[at, [1, inner]] for at, inner in enumerate((5, 1, 1, 2, 1))],
        ]
    )
    tiles = AttentionTiles.of(trace)
    assert tiles.rows == 16
    arrays = arguments("plain", 19)
    expected, got = outputs("plain", None, arrays), outputs("plain", tiles, arrays)
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


def test_other_traces_and_no_trace_give_the_default_tiles() -> None:
    assert AttentionTiles.of(None) == AttentionTiles.of("[[], []]") == AttentionTiles()


def test_it_is_tuned_where_the_rule_fits_the_typical_extent() -> None:
    assert repeats("plain", typical=16, most=16) == 1
    assert repeats("plain", typical=48, most=16) == 9
    assert repeats(ACROSS, typical=48, most=16) == 3
    assert repeats("plain", typical=15, most=15) == 0
    (name,) = (each.name_hint for each in lowered("plain").module.functions if "matmul" in each.name_hint)
    assert AttentionExtents.of(lowered("plain").module[name]) is None


def repeats(form: str, typical: int, most: int) -> int:
    """How often the work of an attention of up to ``most`` tokens is done at ``typical`` ones."""
    extents = AttentionExtents.of(kernel_of(form))
    assert extents is not None
    (tokens,) = extents.inner
    return extents.repeats({tokens: typical}, most)
