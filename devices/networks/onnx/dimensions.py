"""Dynamic dimensions of an ONNX model: their names, and models with other names or fixed extents."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from devices.networks.dynamic.dimensions import DynamicDimension


def named(model: onnx.ModelProto, weights: Collection[str]) -> tuple[onnx.ModelProto, list[DynamicDimension]]:
    """Return a model whose dynamic dimensions have identifiers as names, and these dimensions. A dimension without a
    name is named after its input and axis: ``x_0``. If its name is a sum of other names and numbers, such as ``past +
    tokens``, it does not count as a dimension of its own. ``weights``: inputs that are weights."""
    names: dict[str, str] = {}
    sums: dict[str, list[str]] = {}
    found: dict[str, DynamicDimension] = {}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    inputs = [value for value in result.graph.input if value.name not in weights]
    given = {extent.dim_param for value in inputs for extent in value.type.tensor_type.shape.dim}
    for value in inputs:
        for axis, extent in enumerate(value.type.tensor_type.shape.dim):
            if extent.dim_value > 0:
                continue
            parts = [part.strip() for part in extent.dim_param.split("+")]
            if len(parts) > 1 and all(part.isdecimal() or part in given for part in parts):
                sums[extent.dim_param] = parts
                continue
            if not extent.dim_param:
                extent.dim_param = _word(f"{value.name}_{axis}", names.values())
                names[extent.dim_param] = extent.dim_param
            name = names.setdefault(extent.dim_param, _word(extent.dim_param, names.values()))
            found.setdefault(name, DynamicDimension(name, value.name, axis))
    names |= {text: " + ".join(names.get(part, part) for part in parts) for text, parts in sums.items()}
    return (with_extents(result, names) if found else model), list(found.values())


def with_extents(model: onnx.ModelProto, extents: Mapping[str, int | str]) -> onnx.ModelProto:
    """Return a model in which names of dimensions are replaced by numbers or other names, in sums too."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for extent in _declared(result.graph):
        to = extents.get(extent.dim_param)
        if to is None and "+" in extent.dim_param:
            to = _sum_with(extent.dim_param, extents)
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


def _sum_with(text: str, extents: Mapping[str, int | str]) -> int | str:
    """Return a sum in which names are replaced by numbers or other names."""
    parts = [extents.get(part, part) for part in map(str.strip, text.split("+"))]
    left = [part for part in parts if isinstance(part, str) and not part.isdecimal()]
    number = sum(int(part) for part in parts if part not in left)
    return " + ".join([*left, *([str(number)] if number else [])]) if left else number


def _word(name: str, taken: Collection[str]) -> str:
    """Return ``name`` with underscores instead of other characters than letters and digits, and with a number if it is
    taken."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "n"
    number = 2
    unique = word
    while unique in taken:
        unique, number = f"{word}_{number}", number + 1
    return unique
