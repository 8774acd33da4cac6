"""The program of a convolution, rewritten to Winograd's algorithm.

The program of a task computes the convolution directly. The rewritten program has the same arguments except for the
weights, which are transformed when the network is compiled (:mod:`devices.sketches.plain_weights`). Its blocks are

    data_rows, data_tiles     tiles of the input, transformed along their rows, then along their columns
    products                  a product of matrices for each of the n x n points: tiles by input by output channels
    output_rows, output_tile  the tiles transformed back
    epilogue                  the program's computation on the result of the convolution

with ``n`` points for tiles of ``m`` x ``m`` outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, IfThenElse, PrimFunc, Stmt
from tvm_ffi import structural_map

from devices.sketches.nests import FLOAT, Nests, axes_of, buffer_of, nest, replaced, selected, variables_of
from devices.sketches.rules.winograd.convolution import Convolution
from devices.sketches.rules.winograd.matrices import Matrix, transforms


def operations(convolution: Convolution, outputs: int) -> int:
    """Return the number of additions and multiplications in the rewritten program, without those for weights and
    epilogue."""
    matrices = transforms(outputs, convolution.size)
    images, height, width, channels = (int(extent) for extent in convolution.result.shape)
    inputs, points = int(convolution.data.shape[-1]), matrices.points
    tiles = images * -(-height // outputs) * -(-width // outputs)
    data, output = (sum(2 * sum(map(bool, row)) - 1 for row in matrix) for matrix in (matrices.data, matrices.output))
    transformed = 2 * points * data * inputs + (points + outputs) * output * channels
    return tiles * (2 * points**2 * inputs * channels + transformed)


def rewritten(convolution: Convolution, outputs: int) -> tvm.IRModule:
    """Return the program with Winograd's algorithm on tiles of ``outputs`` x ``outputs`` values.

    Its weights are transformed: float32 (points, points, input channels, output channels).
    """
    matrices = transforms(outputs, convolution.size)
    points = matrices.points
    images, height, width, channels = (int(extent) for extent in convolution.result.shape)
    inputs = int(convolution.data.shape[-1])
    tiles = (images, -(-height // outputs), -(-width // outputs))
    program = Nests(convolution.index)
    data_rows = program.buffer("data_rows", *tiles, points, points, inputs)
    data_tiles = program.buffer("data_tiles", points, points, *tiles, inputs)
    products = program.buffer("products", points, points, *tiles, channels)
    output_rows = program.buffer("output_rows", *tiles, outputs, points, channels)
    output_tile = program.buffer("output_tile", *tiles, outputs, outputs, channels)
    weight = buffer_of(f"{convolution.weight.name}_points", (points, points, inputs, channels), convolution.index)

    def pixels(image: Any, y: Any, x: Any, _point: Any, column: Any, channel: Any) -> list[Any]:
        places = [(image, y * outputs + at, x * outputs + column, channel) for at in range(points)]
        return [_pixel(convolution, place) for place in places]

    def row(*at: Any) -> Any:
        return _combined(matrices.data, at[3], pixels(*at))

    def row_elements(first: Any, _second: Any, image: Any, y: Any, x: Any, channel: Any) -> list[Any]:
        return [data_rows[image, y, x, first, at, channel] for at in range(points)]

    def tile(*at: Any) -> Any:
        return _combined(matrices.data, at[1], row_elements(*at))

    def product(first: Any, second: Any, image: Any, y: Any, x: Any, channel: Any, summed: Any) -> Any:
        return data_tiles[first, second, image, y, x, summed] * weight[first, second, summed, channel]

    # Sums over the points: TVM moves a block behind its producer only if each index of its reads is an axis.
    def output_row(image: Any, y: Any, x: Any, line: Any, second: Any, channel: Any, first: Any) -> Any:
        return products[first, second, image, y, x, channel] * _element(matrices.output, line, first)

    def output(image: Any, y: Any, x: Any, line: Any, column: Any, channel: Any, second: Any) -> Any:
        return output_rows[image, y, x, line, second, channel] * _element(matrices.output, column, second)

    program.element_wise(data_rows, row, reads=lambda *at: _sum(pixels(*at)))
    program.element_wise(data_tiles, tile, reads=lambda *at: _sum(row_elements(*at)))
    program.sum(products, inputs, product)
    program.sum(output_rows, points, output_row)
    program.sum(output_tile, points, output)
    program.add(_epilogue(convolution, output_tile, outputs))
    main = convolution.main
    function = PrimFunc([weight if each.same_as(convolution.weight) else each for each in main.params], program.body())
    return tvm.IRModule({"main": function.with_attr(dict(main.attrs))})


def _element(matrix: Matrix, row: Any, column: Any) -> Any:
    """Return an element of ``matrix``."""
    return selected(row, [selected(column, [tirx.const(float(each), FLOAT) for each in line]) for line in matrix])


def _combined(matrix: Matrix, index: Any, terms: Sequence[Any]) -> Any:
    """Return row ``index`` of ``matrix`` times ``terms``."""
    return selected(index, [_linear(row, terms) for row in matrix])


def _sum(terms: Sequence[Any]) -> Any:
    """Return the sum of ``terms``: a short expression that reads all of them, as a transformed tile does."""
    return _linear([Fraction(1)] * len(terms), terms)


def _linear(factors: Sequence[Fraction], terms: Sequence[Any]) -> Any:
    """Return the sum of factors times terms. Terms with positive factors come first, so that the sum does not begin
    with a negation."""
    total = None
    for factor, term in sorted(zip(factors, terms, strict=True), key=lambda each: each[0] < 0):
        if not factor:
            continue
        value = term if abs(factor) == 1 else term * tirx.const(float(abs(factor)), FLOAT)
        if factor > 0:
            total = value if total is None else total + value
        else:
            total = (tirx.const(0.0, FLOAT) if total is None else total) - value
    return total


def _pixel(convolution: Convolution, place: Sequence[Any]) -> Any:
    """Return an element of the convolution's data, or zero after its last row or column, where the last tiles reach
    beyond it."""
    data, padding = convolution.data, convolution.padding
    value = data[tuple(place)]
    if padding is not None:
        value = replaced(padding.body.value, dict(zip(axes_of(padding), place, strict=True)))
    _, height, width, _ = (int(extent) for extent in data.shape)
    return tirx.if_then_else(tirx.all(place[1] < height, place[2] < width), value, tirx.const(0.0, FLOAT))


def _epilogue(convolution: Convolution, tile: Any, outputs: int) -> Stmt:
    """Return the nest that writes the program's result, tile by tile."""
    images, height, width, channels = (int(extent) for extent in convolution.result.shape)
    variables = variables_of(6, convolution.index)
    image, y, x, line, column, channel = variables
    place = (image, y * outputs + line, x * outputs + column, channel)
    block = convolution.epilogue
    if block is None:
        body: Stmt = BufferStore(convolution.result, tile[tuple(variables)], place)
    else:
        known = dict(zip(axes_of(block), place, strict=True))

        def load(node: Any) -> Any:
            return tile[tuple(variables)] if node.source.same_as(convolution.result) else node

        value = structural_map(block.body.value, (TensorLoad, load))
        body = BufferStore(block.body.buffer, replaced(value, known), place)
    if height % outputs or width % outputs:
        body = IfThenElse(tirx.all(place[1] < height, place[2] < width), body, None)
    extents = [images, -(-height // outputs), -(-width // outputs), outputs, outputs, channels]
    return nest("epilogue", extents, variables, body)
