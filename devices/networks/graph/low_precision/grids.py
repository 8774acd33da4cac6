"""Values of a quantised network that are whole numbers times a scale, and the products of such values.

Data is known to be whole numbers if it was rounded and clipped to known bounds; operators in between may keep whole
numbers whole. Weights are recognised by their values. So it does not matter which tool quantised the network, and in
which form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te
from tvm.ir import Call, GenericConst

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import operator_name, shown_product
from devices.networks.graph.ir.tensors import shape_of
from devices.networks.graph.low_precision.byte_kernels import Integers
from devices.networks.graph.low_precision.packed_sums import (
    Packing,
    Window,
    summed_convolution,
    summed_product,
)

_MOST_TERMS = 2**31 // (255 * 128)
"""Most terms of a sum that fits 32 bits."""
_MOST_TERMS_OF_TWO = 2**31 // (4 * 255 * 255)
"""Most terms of a sum of products of two computed values. It has three corrections, each a sum of its own."""
_LEVELS = 255
_WHOLE = 1e-3
"""Largest distance of a weight from a whole number, in units of its factor: far above the rounding of the factor."""
_LARGEST_WEIGHTS = (127, 128, *range(1, 127))
"""Magnitudes that a channel's largest weight may have. The magnitudes that quantisers aim at come first."""
_SAMPLE = 16
"""Rows of weights that are checked before all rows are."""
_HAND_ON = frozenset(
    f"relax.{name}"
    for name in (
        "permute_dims",
        "reshape",
        "expand_dims",
        "squeeze",
        "flatten",
        "strided_slice",
        "take",
        "nn.max_pool2d",
    )
)
"""Operators that pass on numbers of their operand, and make no new ones."""

_BYTES = {"uint8": (0, 255), "int8": (-128, 127)}
"""Least and greatest number of each type of bytes."""


@dataclass(frozen=True)
class Grid:
    """Whole numbers from ``least`` to ``most``, of which there are at most 256, times ``scale``."""

    least: int
    most: int
    scale: float
    source: Any = None
    """Variable of a value with the same whole numbers, in the same order unless ``moved``. None if this value was
    itself rounded."""
    moved: bool = False
    """True if an operator that passes numbers on made the value from the source."""
    zero: Any = None
    """Variable of a whole number, known at run time, that is subtracted from the numbers. None if nothing is
    subtracted."""
    factor: Any = None
    """Variable of a number, known at run time, that multiplies the value besides the scale. None if nothing does."""
    dtype: str = "float32"
    """Type that the network computes in: float32 or int32."""

    @property
    def is_whole(self) -> bool:
        """True for whole numbers without a scale or factor."""
        return self.scale == 1 and self.factor is None


class Grids:
    """The values of a function that are on a grid.

    Args:
        function: a function of Relax.
    """

    def __init__(self, function: Any) -> None:
        bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self._bound = {each.var: each.value for each in bindings}
        self._grids: dict[Any, Grid] = {}
        self._products: dict[Any, ByteProduct | ComputedProduct | str] = {}
        """Each product, or the reason why it has no form in integers, by its call."""
        self._readers: Counter[Any] = Counter(relax.analysis.free_vars(function.body.body))
        for each in bindings:
            self._readers.update(relax.analysis.free_vars(each.value))
        for each in bindings:
            if not isinstance(each.value, Call):
                continue
            grid, product = self._grid(each.value), self._product(each.value)
            if grid is not None:
                self._grids[each.var] = grid
            if product is not None:
                self._products[each.value] = product

    @property
    def has_products(self) -> bool:
        """True if a call has a form in integers."""
        return self.integer_products > 0

    def of(self, value: Any) -> Grid | None:
        """Return the grid of a variable. None if no grid is known."""
        return self._grids.get(value) if isinstance(value, relax.Var) else None

    def known(self, value: Any) -> Any:
        """Return the value that a variable is bound to. Any other expression is returned unchanged."""
        return self._bound.get(value, value) if isinstance(value, relax.Var) else value

    def is_read_once(self, value: Any) -> bool:
        """Return true for a variable that one binding reads."""
        return self._readers[value] == 1

    def product(self, call: Call) -> ByteProduct | None:
        """Return the product of a call. None if it has no form in integers."""
        product = self._products.get(call)
        return product if isinstance(product, ByteProduct) else None

    def computed_product(self, call: Call) -> ComputedProduct | None:
        """Return the product of two computed values of a call. None if it has no form in integers."""
        product = self._products.get(call)
        return product if isinstance(product, ComputedProduct) else None

    @property
    def float_products(self) -> tuple[FloatProduct, ...]:
        """The products that have no form in integers."""
        refused = ((call, reason) for call, reason in self._products.items() if isinstance(reason, str))
        return tuple(FloatProduct(shown_product(call), reason) for call, reason in refused)

    @property
    def products(self) -> tuple[FloatProduct, ...]:
        """All products, as products in floats without reasons, for when nothing is computed in integers."""
        return tuple(FloatProduct(shown_product(call), "") for call in self._products)

    @property
    def integer_products(self) -> int:
        """Number of products that have a form in integers."""
        return len(self._products) - len(self.float_products)

    def _product(self, call: Call) -> ByteProduct | ComputedProduct | str | None:
        """Return the product of a call, or the reason why it has no form in integers. None if the call is no
        product."""
        read = _PRODUCTS.get(operator_name(call))
        if read is None:
            return None
        grid, weight = self.of(call.args[0]), self.known(call.args[1])
        if not isinstance(weight, GenericConst):
            return self._computed_product(call)
        if grid is None:
            return "their data is not rounded to at most 256 levels"
        product = read(call, array_of(weight.value))
        if isinstance(product, str):
            return product
        if str(call.ty.dtype) != grid.dtype:
            return f"their results are {call.ty.dtype}"
        if product.padded and grid.zero is not None:
            return "the byte that stands for zero at their edges is not known before they run"
        return product

    def _computed_product(self, call: Call) -> ComputedProduct | str:
        left, right = map(self.of, call.args[:2])
        shapes = [shape_of(each) or () for each in call.args[:2]]
        if operator_name(call) != "relax.matmul" or min(map(len, shapes)) < 2:
            return "both of their operands are computed, and one is no matrix"
        if left is None or right is None:
            return "both of their operands are computed, and one is not rounded to at most 256 levels"
        known = all(each.zero is None and each.factor is None and each.dtype == "float32" for each in (left, right))
        if not known or str(call.ty.dtype) != "float32":
            return "both of their operands are computed, with steps that are not known before they run"
        if shapes[0][-1] > _MOST_TERMS_OF_TWO:
            return "both of their operands are computed, and their sums do not fit 32 bits"
        return ComputedProduct(left, right, shapes[0][-1])

    def _grid(self, call: Call) -> Grid | None:
        name = operator_name(call)
        if name == "relax.clip" and operator_name(rounded := self.known(call.args[0])) == "relax.round":
            return self._rounded(rounded.args[0], *(float(bound.value) for bound in call.args[1:]))
        source = self.of(call.args[0]) if call.args else None
        if name == "relax.astype":
            dtype, limits = str(call.attrs.dtype), _BYTES.get(str(call.args[0].ty.dtype))
            if dtype not in ("float32", "int32"):
                return None
            if source is not None:
                whole = dtype == "float32" or source.is_whole
                return replace(source, source=call.args[0], moved=False, dtype=dtype) if whole else None
            return Grid(*limits, 1.0, dtype=dtype) if limits else None
        if source is None:
            return None
        if name == "relax.subtract":
            zero = self.number(call)
            if not source.is_whole or source.zero is not None:
                return None
            if zero is None:
                known = self._is_whole_number(call, source.dtype)
                return replace(source, zero=call.args[1], source=call.args[0], moved=False) if known else None
            if not zero.is_integer():
                return None
            least, most = source.least - int(zero), source.most - int(zero)
            fits = least <= 0 <= most
            return replace(source, least=least, most=most, source=call.args[0], moved=False) if fits else None
        if name == "relax.multiply":
            scale = self.number(call)
            # Products of 32-bit integers have no scale.
            if source.dtype != "float32" or not source.is_whole or (scale is not None and scale <= 0):
                return None
            if scale is not None:
                return replace(source, scale=scale, source=call.args[0], moved=False)
            one = _is_one(call, "float32")
            return replace(source, factor=call.args[1], source=call.args[0], moved=False) if one else None
        # The factor may be negative, and would turn a maximum into a minimum.
        stays = name in _HAND_ON and (source.factor is None or name != "relax.nn.max_pool2d")
        return replace(source, source=call.args[0], moved=True) if stays else None

    def _rounded(self, value: Any, low: float, high: float) -> Grid | None:
        """Return the grid of the clipped whole numbers of ``value``."""
        if not (low.is_integer() and high.is_integer() and low <= 0 <= high and high - low <= _LEVELS):
            return None
        divided = self.known(value)
        if operator_name(divided) == "relax.divide":
            source = self.of(divided.args[0])
            if source is None or source.factor is not None or source.zero is not None:
                return Grid(int(low), int(high), 1.0)
            if self.number(divided) == source.scale and low <= source.least and source.most <= high:
                return replace(source, scale=1.0, source=divided.args[0], moved=False)
        return Grid(int(low), int(high), 1.0)

    def _is_whole_number(self, call: Call, dtype: str) -> bool:
        """Return true if the second operand of a call is one whole number of a type."""
        known = self.known(call.args[1])
        while operator_name(known) == "relax.reshape":
            known = self.known(known.args[0])
        from_integer = operator_name(known) == "relax.astype" and "int" in str(known.args[0].ty.dtype)
        return (from_integer or "int" in dtype) and _is_one(call, dtype)

    def number(self, call: Call) -> float | None:
        """Return the second operand of a call if it is a constant of one number that adds no axes to the first operand.
        None for anything else."""
        known = self.known(call.args[1])
        if not isinstance(known, GenericConst) or array_of(known.value).size != 1 or not _keeps_rank(call):
            return None
        number = float(array_of(known.value).reshape(-1)[0])
        return number if np.isfinite(number) else None


def _is_one(call: Call, dtype: str) -> bool:
    value = call.args[1]
    return shape_of(value) in ((), (1,)) and str(value.ty.dtype) == dtype and _keeps_rank(call)


def _keeps_rank(call: Call) -> bool:
    return int(call.ty.ndim) == int(call.args[0].ty.ndim)


@dataclass(frozen=True)
class ByteProduct:
    """A convolution or product whose weights are whole numbers times factors."""

    name: str
    numbers: Integers
    """Weights as whole numbers of eight bits, the channels of the input and of the output last."""
    factors: npt.NDArray[np.float64]
    """Factor of each output channel."""
    define: Callable[[te.Tensor, te.Tensor, Packing], te.Tensor]
    """Takes the bytes of the data, the weights, and the packing of both; see
    :mod:`devices.networks.graph.low_precision.byte_forms`."""
    groups: int = 1
    padded: bool = False
    """True if the data is padded at its edges."""

    @property
    def terms(self) -> int:
        """Channels that each sum reads at one position."""
        return int(self.numbers.shape[-2])


@dataclass(frozen=True)
class ComputedProduct:
    """A product of two computed values that are whole numbers times scales, such as the products of attention."""

    left: Grid
    right: Grid
    terms: int
    """Terms of each sum."""


@dataclass(frozen=True)
class FloatProduct:
    """A product of a quantised network that is computed in floats."""

    name: str
    """Operator and extents of the result."""
    reason: str
    """Reason why such products are computed in floats, as a clause."""


_NOT_WHOLE = "their weights are not whole numbers of 8 bits times a factor of each output channel"


def _convolution(call: Call, weight: npt.NDArray[Any]) -> ByteProduct | str:
    window = Window.of(call)
    if window is None:
        return "they are not channels last"
    if shape_of(call) is None:
        return "their extents are not known before they run"
    found = _whole_numbers(weight)
    if found is None:
        return _NOT_WHOLE

    def define(data: te.Tensor, weights: te.Tensor, packing: Packing) -> te.Tensor:
        return summed_convolution(data, weights, window, packing)

    return ByteProduct(f"conv{weight.ndim - 2}d", *found, define, window.groups, window.is_padded)


def _matrix_product(call: Call, weight: npt.NDArray[Any]) -> ByteProduct | str:
    if weight.ndim != 2 or len(shape_of(call.args[0]) or ()) < 2:
        return "an operand of theirs is no matrix"
    found = _whole_numbers(weight)
    return _NOT_WHOLE if found is None else ByteProduct("matmul", *found, summed_product)


_PRODUCTS: dict[str, Callable[[Call, npt.NDArray[Any]], ByteProduct | str]] = {
    **dict.fromkeys((f"relax.nn.conv{n}d" for n in (1, 2, 3)), _convolution),
    "relax.matmul": _matrix_product,
}
"""Reads a call and its weights. Returns the reason if it has no form in integers."""


def _whole_numbers(weight: npt.NDArray[Any]) -> tuple[Integers, npt.NDArray[np.float64]] | None:
    """Return the weights of eight bits and the factor of each output channel (the last axis); None if the weights are
    not such numbers, or their sums do not fit 32 bits."""
    if np.issubdtype(weight.dtype, np.integer):
        fits = weight.size // weight.shape[-1] <= _MOST_TERMS and weight.min() >= -128 and weight.max() <= 127
        return (weight.astype(np.int32), np.ones(weight.shape[-1])) if fits else None
    if weight.dtype != np.float32:
        return None
    columns = weight.reshape(-1, weight.shape[-1]).astype(np.float64)
    if len(columns) > _MOST_TERMS or not np.isfinite(columns).all():
        return None
    largest = np.abs(columns).max(axis=0)
    factors = np.where(largest == 0, 1.0, 0.0)
    sample = columns[:: max(1, len(columns) // _SAMPLE)]
    for most in _LARGEST_WEIGHTS:
        left = np.flatnonzero(factors == 0)
        # Few rows rule out most numbers of levels.
        left = left[_are_whole(sample[:, left], largest[left] / most)]
        left = left[_are_whole(columns[:, left], largest[left] / most)]
        factors[left] = largest[left] / most
    if (factors == 0).any():
        return None
    numbers = np.rint(columns / factors).astype(np.int32)
    # A channel can have 128 only as -128: its sign is flipped.
    flip = numbers.max(axis=0) > 127
    if (numbers[:, flip].min(axis=0, initial=0) < -127).any():
        return None
    numbers[:, flip] *= -1
    factors = np.where(flip, -factors, factors)
    return numbers.reshape(weight.shape), factors


def _are_whole(columns: npt.NDArray[np.float64], factors: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return, for each column, whether it is whole numbers times its factor."""
    scaled = columns / factors
    whole: npt.NDArray[np.bool_] = np.abs(scaled - np.rint(scaled)).max(axis=0, initial=0.0) <= _WHOLE
    return whole
