"""Networks with a dynamic dimension: bounds, names, example inputs of an extent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from devices.networks.frontend import load_network
from fleet_tune.base.errors import UserError
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.helpers.dynamic_networks import agree_at

N = Dim("n", min=1, max=32)
BATCH, TOKENS = Dim("batch"), Dim("tokens")


class TwoInputs(nn.Module):
    """Rows of a table that indices choose, scaled; the second input has the dimension as its second."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, ids: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(ids) * scale.t(), scale.sum(0)


def two(bounds: Any = N) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return TwoInputs(), (torch.tensor([40, 3, 7]), torch.randn(8, 3)), ({0: bounds}, {1: bounds})


def tokens(batch: Any = BATCH, length: Any = TOKENS) -> tuple[Any, ...]:
    return nn.Linear(4, 4), (torch.randn(3, 5, 4),), ({0: batch, 1: length},)


def test_the_bounds_of_torch_are_those_of_the_network() -> None:
    network = load_network(two())
    main = network.relax_module["main"]
    assert str(network.shapes) == "n=1..32"
    assert network.input_shapes == (("n",), (8, "n"))
    assert [str(p.ty.shape.values[at].name) for p, at in zip(main.params, (0, 1), strict=True)] == ["n", "n"]
    assert {name: dict(main.attrs[f"tir_var_{name}_bound"]) for name in ("lower", "upper")} == {
        "lower": {"n": 1},
        "upper": {"n": 32},
    }
    assert network.extents == {"n": 32}
    assert [array.shape for array in network.example_inputs] == [(32,), (8, 32)]


def test_narrower_bounds_are_taken_and_make_another_network() -> None:
    wide, narrow = load_network(two()), load_network(two(), shapes=parse_shapes("n=2..8; n=4:1"))
    assert str(narrow.shapes) == "n=2..8; n=4:1"
    assert narrow.extents == {"n": 4}
    assert dict(narrow.relax_module["main"].attrs["tir_var_upper_bound"]) == {"n": 8}
    assert wide.fingerprint != narrow.fingerprint
    assert load_network(two(), shapes=parse_shapes("n=2..8")).fingerprint != narrow.fingerprint


def test_weights_make_another_network_where_they_make_another_extent_typical() -> None:
    """Tasks and times are those of the typical extent; for the other weights nothing is tuned."""
    first, same, other = (
        load_network(two(), shapes=parse_shapes(f"n=2..8; n={weights}")) for weights in ("4:1", "2:1,4:3", "2:3,4:1")
    )
    assert [each.extents["n"] for each in (first, same, other)] == [4, 4, 2]
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_inputs_of_each_extent_run_in_the_framework() -> None:
    network = load_network(two())
    module = two()[0]
    for extent in (1, 2, 17):
        at = network.at({"n": extent})
        assert at.extents == {"n": extent}
        assert max(at.example_inputs[0]) < 50
        rows, total = at.framework_outputs()
        assert (rows.shape, total.shape) == ((extent, 8), (extent,))
        expected = module(*map(torch.from_numpy, at.example_inputs))
        np.testing.assert_array_equal(rows, expected[0].detach().numpy())
    with pytest.raises(ValueError, match="33"):
        network.at({"n": 33})


def test_the_networks_own_inputs_stay_for_their_extent() -> None:
    network = load_network(two())
    own = network.at({"n": 7}).at({"n": 3})
    np.testing.assert_array_equal(own.example_inputs[0], [40, 3, 7])
    assert own.inputs_from == network.own_inputs_from == "the network's own examples"
    assert "made up" in network.inputs_from


def test_inputs_of_a_file_are_of_one_extent_in_range(tmp_path: Path) -> None:
    def load(ids: int, scales: int) -> Any:
        np.savez(tmp_path / "in.npz", ids=np.ones(ids, np.int64), scale=np.ones((8, scales), np.float32))
        return load_network(two(), tmp_path / "in.npz")

    network = load(9, 9)
    assert network.extents == {"n": 9}
    assert network.at({"n": 3}).at({"n": 9}).inputs_from == str(tmp_path / "in.npz")
    with pytest.raises(UserError, match="several extents for n"):
        load(9, 8)
    with pytest.raises(UserError, match=r"has 33 for n; save arrays of one extent within n=1\.\.32"):
        load(33, 33)


def test_other_dimensions_can_be_fixed() -> None:
    network = load_network(tokens(), shapes=parse_shapes("batch=2, tokens=1..16"))
    assert str(network.shapes) == "tokens=1..16"
    assert network.input_shapes == ((2, "tokens", 4),)
    assert network.at({"tokens": 5}).example_inputs[0].shape == (2, 5, 4)
    assert network.own_inputs == ()  # its own have a batch of 3
    assert str(network.bounds) == "batch=2, tokens=1..16"
    assert load_network(tokens(), shapes=parse_shapes("batch=3, tokens=1..16")).own_inputs[0].shape == (3, 5, 4)


@pytest.mark.parametrize(("text", "origin"), [("n=3", "the network's own examples"), ("n=4", "made up")])
def test_a_network_whose_dimensions_are_all_fixed_is_a_fixed_one(text: str, origin: str) -> None:
    network = load_network(two(), shapes=parse_shapes(text))
    assert network.shapes is None
    assert str(network.bounds) == text
    assert network.input_shapes == ()
    assert network.example_inputs[0].shape == (int(text[2:]),)
    assert origin in network.inputs_from
    attributes = network.relax_module["main"].attrs
    assert "tir_var_upper_bound" not in attributes
    assert [int(extent) for extent in network.relax_module["main"].params[1].ty.shape.values] == [8, int(text[2:])]
    assert network.fingerprint == load_network(two(), shapes=parse_shapes(text)).fingerprint


def test_the_module_of_an_extent_has_no_variable() -> None:
    network = load_network(two())
    module = network.fixed_module({"n": 6})
    assert [[int(n) for n in parameter.ty.shape.values] for parameter in module["main"].params] == [[6], [8, 6]]
    assert [int(n) for n in network.fixed_module()["main"].params[0].ty.shape.values] == [32]


@pytest.mark.parametrize(
    ("given", "shapes", "message"),
    [
        (
            two(Dim("n")),
            "",
            "input 'ids' has the dynamic dimension 0, 'n', from 0 up; give its bounds with --shapes \"n=1..32\"",
        ),
        (two(Dim("n", max=20)), "n=1..21", "takes n from 0 to 20, and n=1..21 is asked for"),
        (two(Dim("n", min=3)), "n=2..8", "takes n from 3 up"),
        (two(), "m=1..2", r"dimensions are n \(dimension 0 of the input 'ids', from 1 to 32\)"),
        (two()[:2], "n=1..2", "has no dynamic dimension 'n': it has none"),
        (
            tokens(),
            "batch=1..8",
            "dimension 1, 'tokens'; .*; give its bounds with --shapes \"batch=1..8, tokens=1..32\"",
        ),
        (tokens(), "batch=8", '--shapes "batch=8, tokens=1..32"'),
        (tokens(), "", "'batch'; .*; give its bounds with --shapes \"batch=1..32, tokens=1..32\""),
        ((nn.Linear(4, 4), (torch.randn(1, 4),), ({0: N},)), "", "extent there is neither 0 nor 1"),
    ],
)
def test_what_is_missing_or_wrong_is_named(given: Any, shapes: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_network(given, shapes=parse_shapes(shapes) if shapes else None)


def test_several_dimensions_are_dynamic() -> None:
    network = load_network(tokens(N, Dim("t", max=9)))
    assert str(network.shapes) == "n=1..32, t=0..9"
    assert network.input_shapes == (("n", "t", 4),)
    assert network.extents == {"n": 32, "t": 9}
    assert network.at({"n": 3, "t": 5}).example_inputs[0].shape == (3, 5, 4)
    assert network.own_inputs[0].shape == (3, 5, 4)
    main = network.relax_module["main"]
    assert {name: int(most) for name, most in main.attrs["tir_var_upper_bound"].items()} == {"n": 32, "t": 9}
    for wrong in ({"n": 3}, {"n": 33, "t": 5}, {"n": 3, "t": 10}, {"n": 3, "t": 5, "u": 1}):
        with pytest.raises(ValueError, match=r"n=1\.\.32, t=0\.\.9"):
            network.at(wrong)


def test_inputs_that_disagree_in_one_of_several_dimensions_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", input=np.ones((2, 10, 4), np.float32))
    with pytest.raises(UserError, match=r"has 10 for t; save arrays of one extent within t=0\.\.9"):
        load_network(tokens(N, Dim("t", max=9)), tmp_path / "in.npz")


def test_a_dimension_that_is_computed_from_another_is_refused() -> None:
    half = Dim("half", min=1, max=8)
    module = nn.Sequential(nn.ReLU())
    with pytest.raises(UserError, match="dimension 0 of the input 'input' is computed from others: 2"):
        load_network((module, (torch.randn(6, 4),), ({0: 2 * half},)))


def test_names_come_from_arguments_in_any_form() -> None:
    class Several(nn.Module):
        def forward(self, x: Tensor, *others: Tensor) -> Tensor:
            return x + sum(other.sum() for other in others)

    inputs = (torch.ones(2, 3), torch.ones(2), torch.ones(3))
    for axes in (({}, ({}, {0: N})), {"x": None, "others": (None, {0: N})}):
        assert load_network((Several(), inputs, axes)).input_shapes == ((2, 3), (2,), ("n",))


def test_a_saved_program_keeps_its_bounds(tmp_path: Path) -> None:
    module, inputs, axes = two()
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=axes)
    torch.export.save(program, tmp_path / "net.pt2")
    network = load_network(tmp_path / "net.pt2")
    assert network.shapes is not None
    (symbol,) = network.extents
    assert [each[symbol] for each in network.shapes.samples] == [1, 2, 4, 8, 16, 32]
    assert [array.shape for array in network.at({symbol: 1}).framework_outputs()] == [(1, 8), (1,)]
    np.testing.assert_array_equal(network.at({symbol: 3}).example_inputs[0], [40, 3, 7])


def test_a_saved_program_without_examples_gets_some(tmp_path: Path) -> None:
    module, inputs, axes = two(Dim("n"))
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=axes)
    program._example_inputs = None
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(
        UserError, match=r"'(s\d+)', from 0 up; give its bounds with --shapes \"\1=1\.\.32\""
    ) as refused:
        load_network(tmp_path / "net.pt2")
    name = str(refused.value).split('"')[1].partition("=")[0]
    network = load_network(tmp_path / "net.pt2", shapes=parse_shapes(f"{name}=1..4"))
    assert [array.shape for array in network.framework_outputs()] == [(4, 8), (4,)]


def test_the_symbols_of_a_saved_program_are_told_with_their_bounds(tmp_path: Path) -> None:
    module, inputs, axes = tokens(Dim("batch", min=2, max=8), TOKENS)
    torch.export.save(torch.export.export(module.eval(), inputs, dynamic_shapes=axes), tmp_path / "net.pt2")
    first, second = r"(s\d+) \(dimension 0 of the input 'input', from 2 to 8\)", r"(s\d+) \(dimension 1 .*, from 0 up\)"
    with pytest.raises(UserError, match=f"all of them are {first}, {second}; give") as refused:
        load_network(tmp_path / "net.pt2")
    suggested = str(refused.value).split('"')[1]
    assert re.fullmatch(r"s\d+=2\.\.8, s\d+=1\.\.32", suggested)
    assert load_network(tmp_path / "net.pt2", shapes=parse_shapes(suggested)).example_inputs[0].shape == (8, 32, 4)


def test_a_function_of_a_file_returns_dynamic_shapes_too(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "def net():\n"
        "    n = torch.export.Dim('n', max=8)\n"
        "    return torch.nn.Linear(2, 2), (torch.ones(3, 2),), {'input': (n, None)}\n"
    )
    assert load_network(f"{tmp_path / 'nets.py'}:net").input_shapes == (("n", 2),)


class Extents(nn.Module):
    """Slices from both ends, extents as numbers, masks and places that depend on them."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        places = torch.arange(n)
        return (
            *(x[-1:], x[-2:, 1:], x[1 : n - 1], x[:2], x[3:]),
            *(x * (places[:, None].float() / n), x.sum() / n, places * n, x.flip(0)),
            *(x.unsqueeze(1).expand(n, n, 3).reshape(n * n, 3), x.flatten(), torch.stack([x, x]).view(-1, 3)),
            *(torch.tril(torch.ones(n, n)) @ x, torch.zeros(n, 2) + 1, x.repeat(2, 1), torch.cat([x, x[-1:]])),
            *(x[n - 1 - places], nn.functional.pad(x, (0, 0, 1, 2)), x.t() @ x, x.mean(0)),
        )


class Attention(nn.Module):
    """A causal layer whose mask is read at places of two axes, as transformers does it."""

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        n = x.shape[1]
        rows, columns, batch = torch.arange(n), torch.arange(n), torch.arange(x.shape[0])
        masked = seen.bool()[batch[:, None, None], columns[None, None, :]] & (columns <= rows[:, None])
        heads = x.view(1, n, -1, 4).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=masked[:, None])
        return mixed.transpose(1, 2).reshape(1, n, -1)


@pytest.mark.parametrize(
    ("module", "inputs", "axes"),
    [
        (Extents(), (torch.randn(6, 3),), ({0: Dim("n", min=5, max=9)},)),
        (Attention(), (torch.randn(1, 5, 8), torch.ones(1, 5)), ({1: Dim("n", min=2, max=9)},) * 2),
        (nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 9, 8),), ({2: Dim("n", min=4, max=20)},)),
    ],
)
def test_imported_networks_are_right_for_every_extent(module: nn.Module, inputs: tuple[Tensor, ...], axes: Any) -> None:
    network = load_network((module, inputs, axes))
    assert network.shapes is not None
    (dynamic,) = network.shapes.dynamic
    agree_at(network, range(dynamic.least, dynamic.most + 1))


def test_what_torch_says_of_a_dimension_that_forward_fixes_is_told() -> None:
    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[: 8 if x.shape[0] > 5 else 2]

    with pytest.raises(UserError, match=r"Not all values of n = .* in the specified range") as told:
        load_network((Halved(), (torch.randn(6, 3),), ({0: N},)))
    assert "forward() fixes a dynamic dimension" in told.value.next_step


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n=4; one: n=4", "--shapes fixes all dimensions, and the entry point one is a part of a range"),
        ("n=1..4; one: m=1", "the entry point one has bounds of 'm', which is no dynamic dimension"),
        ("n=1..4; one: n=5", "the entry point one has n=5, and the network has n=1..4"),
    ],
)
def test_entry_points_of_what_is_no_part_of_the_range_are_refused(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=re.escape(problem)):
        load_network(two(), shapes=parse_shapes(text))


def test_a_network_keeps_its_entry_points() -> None:
    shapes = load_network(two(), shapes=parse_shapes("one: n=1")).shapes
    assert shapes is not None
    assert str(shapes) == "n=1..32; one: n=1"
