"""Operators over a dynamic dimension: compiled without schedules and right for every extent, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.network import Network
from devices.networks.tasks.lowering import compare, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UserError
from fleet_tune.base.shapes.shapes import parse_shapes

CPU = DeviceClass("cpu", resolve_target("native", 2))
LEAST, MOST = 4, 11


class Lambda(nn.Module):
    """A function, with layers that it uses."""

    def __init__(self, compute: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.compute, self.layers = compute, nn.ModuleDict(layers)

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(*inputs, **self.layers)


TABLE = torch.arange(120.0).reshape(40, 3)


def starts(x: Tensor) -> tuple[Tensor, ...]:
    """Slices that begin at the dynamic extent, or a sum with it, from the end."""
    n = x.shape[0]
    return (
        *(TABLE[-n:] + x, TABLE[-(n + 2) :].sum(0), TABLE[-n - 1 : -1] * x),
        *(TABLE[n:].sum(0), TABLE[n + 1 : 2 * n + 1] - x),
        *(torch.cat([x, x])[-n:], torch.cat([x, x])[n:], x[1 - n :], x[-n:]),
    )


def strides(x: Tensor) -> tuple[Tensor, ...]:
    """Slices with steps, within the tensor and beyond it."""
    return x[::2], x[1::2] * 2, x[:, ::2], x[:, 0:4:2], x[0:50:2], TABLE[: x.shape[0]][::2], x.flip(0)[::2]


def comparisons(x: Tensor) -> tuple[Tensor, ...]:
    """Comparisons with scalars, rows and columns; those of booleans; the choice that they make."""
    above = x > x.mean(0, keepdim=True)
    return above, x >= 0, (x < x.amax(1, keepdim=True)) == above, torch.where(x != x[:1], x, -x)


def grown(x: Tensor, grow: nn.Module, group: nn.Module) -> Tensor:
    """Transposed convolutions with a stride, plain ones and grouped ones."""
    return group(grow(x).relu())


RIGHT: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "starts": (lambda: Lambda(starts), (6, 3), 0),
    "strides": (lambda: Lambda(strides), (6, 6), 0),
    "comparisons": (lambda: Lambda(comparisons), (6, 5), 0),
    "transposed convolutions": (
        lambda: Lambda(
            grown,
            grow=nn.ConvTranspose2d(3, 8, 4, stride=2, padding=1),
            group=nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2, output_padding=1),
        ),
        (4, 3, 5, 4),
        0,
    ),
    "a transposed convolution along it": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (1, 3, 4, 4), 2),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8)), (4, 3, 5, 4), 0),
    "images of bytes": (
        lambda: Lambda(lambda x, layer: layer(x.permute(0, 3, 1, 2)), layer=nn.Conv2d(3, 8, 3)),
        (4, 6, 5, 3),
        0,
    ),
    "a mean of turned images": (  # which torch follows with a view of memory
        lambda: Lambda(lambda x, mean: mean(x.permute(0, 3, 1, 2)).flatten(1) * 2, mean=nn.AdaptiveAvgPool2d(1)),
        (4, 6, 5, 3),
        0,
    ),
}
"""Module, shape of the example input, and the axis that is dynamic."""


def outputs_at(network: Network, folder: Path) -> None:
    """Assert that the compiled network gives the framework's outputs for every extent."""
    lowered = import_network(network, CPU)
    assert not lowered.left_out
    compile_network(lowered, {}, folder)
    run = load(folder)
    assert network.shapes is not None
    (dynamic,) = network.shapes.dynamic
    for extent in range(dynamic.least, dynamic.most + 1):
        at = network.at({dynamic.name: extent})
        found = run(*at.example_inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        absolute, relative = compare(outputs, at.framework_outputs())
        assert relative < 1e-5, f"{extent}: {absolute}, {relative}"


@pytest.mark.parametrize("name", RIGHT)
def test_operators_of_torch_are_right_for_every_extent(name: str, tmp_path: Path) -> None:
    make, shape, axis = RIGHT[name]
    torch.manual_seed(0)
    axes = ({axis: Dim("n", min=LEAST, max=MOST)},)
    module = make().eval()
    given = (axes,) if isinstance(module, Lambda) else axes
    outputs_at(load_network((module, (torch.randn(shape),), given)), tmp_path)


HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'


def saved(folder: Path, text: str) -> Path:
    file = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(file))
    return file


SLICES = """net (float[n, 3] x) => (float[a, b] y) <int64[1] least = {-5}, int64[1] far = {9223372036854775807},
    int64[1] axis = {0}> {
    s = Shape <start = 0, end = 1> (x)
    k = Add (s, least)
    z = Slice (x, k, far, axis)
    y = Add (z, z)
}"""


def test_a_slice_of_onnx_that_begins_at_its_length_less_a_number(tmp_path: Path) -> None:
    outputs_at(load_network(saved(tmp_path, SLICES), shapes=parse_shapes("n=5..9")), tmp_path / "out")


def test_one_whose_begin_is_on_either_side_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Slice begins or ends at n - .* of an axis of n: .*closer bounds"):
        load_network(saved(tmp_path, SLICES), shapes=parse_shapes("n=2..9"))


ENDS = ((-20, 3), (2, 50), (-3, -1), (-2, 2**40), (1, -20), (0, -1), (50, 60), (-1, 1))


@pytest.mark.parametrize("step", [1, 2])
def test_the_ends_of_a_slice_of_onnx_are_those_of_numpy(step: int, tmp_path: Path) -> None:
    """Negative ones count from the end; what lies beyond an end is that end."""
    numbered = list(enumerate(ENDS))
    outputs = ", ".join(f"float[a{at}, b] y{at}" for at, _ in numbered)
    numbers = "".join(f"int64[1] l{at} = {{{low}}}, int64[1] h{at} = {{{high}}}, " for at, (low, high) in numbered)
    slices = "".join(
        f"z{at} = Slice (t, l{at}, h{at}, axis, step)\ny{at} = Concat <axis = 0> (x, z{at})\n" for at, _ in numbered
    )
    text = f"""net (float[n, 3] x) => ({outputs}) <{numbers}int64[1] axis = {{0}}, int64[1] step = {{{step}}}> {{
        t = Concat <axis = 0> (x, x)
        {slices}
    }}"""
    outputs_at(load_network(saved(tmp_path, text), shapes=parse_shapes("n=2..9")), tmp_path / "out")


class Scattered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(0, torch.zeros(2, 3, dtype=torch.int64), x[:2] * 2)


class Added(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.index_put((torch.tensor([0, 1]),), torch.ones(2, 3))


def resized(mode: str) -> nn.Module:
    return nn.Upsample(scale_factor=2, mode=mode)


REFUSED: dict[str, tuple[Any, tuple[int, ...], int, str]] = {
    "scatter": (Scattered, (4, 3), 0, "scatter"),
    "index_put": (Added, (4, 3), 0, "scatter_nd"),
    "nearest": (lambda: resized("nearest"), (1, 3, 4, 4), 2, "interpolate"),
    "bilinear": (lambda: resized("bilinear"), (1, 3, 4, 4), 2, "interpolate"),
    "group norm": (lambda: nn.GroupNorm(3, 3), (1, 3, 4, 4), 2, "group_norm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_need_numbers_are_refused_by_name(name: str) -> None:
    make, shape, axis, operator = REFUSED[name]
    example = (make(), (torch.randn(shape),), ({axis: Dim("n", min=LEAST, max=MOST)},))
    with pytest.raises(UserError, match=f"{operator} cannot be compiled over a dynamic dimension; give .* one extent"):
        import_network(load_network(example), CPU)


def test_a_view_of_memory_over_a_dynamic_dimension_is_refused_by_name() -> None:
    module = Lambda(lambda x: x.as_strided((x.shape[0], 2), (3, 1)))
    example = (module, (torch.randn(4, 3),), (({0: Dim("n", min=LEAST, max=MOST)},),))
    with pytest.raises(UserError, match=r"as_strided\(\) over a dynamic dimension: index the tensor instead"):
        load_network(example)


ELEMENTS = """net (float[n, 3] x, int64[2, 3] at, float[2, 3] v) => (float[n, 3] y) {
    y = ScatterElements <axis = 0> (x, at, v) }"""
PLACES = "net (float[n, 3] x, int64[2, 1] at, float[2, 3] v) => (float[n, 3] y) { y = ScatterND (x, at, v) }"
REGIONS = """net (float[1, 2, n, 8] x, float[3, 4] r, int64[3] b) => (float[3, 2, 2, 2] y) {
    y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 0> (x, r, b) }"""


@pytest.mark.parametrize(
    ("text", "operator"),
    [(ELEMENTS, "scatter_elements"), (PLACES, "scatter_nd"), (REGIONS, "roi_align")],
)
def test_those_of_onnx_too(text: str, operator: str, tmp_path: Path) -> None:
    network = load_network(saved(tmp_path, text), shapes=parse_shapes("n=4..9"))
    with pytest.raises(UserError, match=f"{operator} cannot be compiled over a dynamic dimension"):
        import_network(network, CPU)


def test_outputs_that_say_nothing_are_looked_at_on_other_inputs_of_the_extent() -> None:
    from devices.networks.checks.silent_outputs import silent_outputs

    module = Lambda(lambda x: (x - 100).relu())
    network = load_network((module, (torch.randn(4, 3),), (({0: Dim("n", min=LEAST, max=MOST)},),)))
    (silent,) = silent_outputs(network, network.framework_outputs())
    assert silent.at == 0
