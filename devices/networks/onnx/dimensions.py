"""Dynamic dimensions of an ONNX model: their names, and the model with other names or fixed extents for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from devices.networks.dynamic_dimensions import DynamicDimension


def named(model: onnx.ModelProto, weights: Collection[str]) -> tuple[onnx.ModelProto, list[DynamicDimension]]:
    """Return a model whose inputs have words as names of their dynamic dimensions, and these dimensions. One without a
    name is called after its input and its place there: ``x_0``. ``weights``: inputs that are weights."""
    names: dict[str, str] = {}
    found: dict[str, DynamicDimension] = {}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for value in result.graph.input:
        for axis, extent in enumerate(value.type.tensor_type.shape.dim):
            if value.name in weights or extent.dim_value > 0:
                continue
            if not extent.dim_param:
                extent.dim_param = _word(f"{value.name}_{axis}", names.values())
                names[extent.dim_param] = extent.dim_param
            name = names.setdefault(extent.dim_param, _word(extent.dim_param, names.values()))
            found.setdefault(name, DynamicDimension(name, value.name, axis))
    return (with_extents(result, names) if found else model), list(found.values())


def with_extents(model: onnx.ModelProto, extents: Mapping[str, int | str]) -> onnx.ModelProto:
    """Return a model in which numbers, or other names, take the place of names of dimensions."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for extent in _declared(result.graph):
        to = extents.get(extent.dim_param)
        if isinstance(to, str):
            extent.dim_param = to
        elif to is not None:
            extent.dim_value = to
    return result


def with_input_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a model whose inputs have these shapes, by their names."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    names: dict[str, int | str] = {}
    for value in result.graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if dim.dim_param:
                names[dim.dim_param] = extent
            dim.dim_value = extent
    return with_extents(result, names)


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        yield from value.type.tensor_type.shape.dim


def _word(name: str, taken: Collection[str]) -> str:
    """Return ``name`` with underscores for all that is neither letter nor digit, and another number where it is
    taken."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "n"
    number = 2
    unique = word
    while unique in taken:
        unique, number = f"{word}_{number}", number + 1
    return unique
