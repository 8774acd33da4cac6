"""TVM's importer of ONNX graphs with converters of our own, for operators that other ONNX operators cannot express."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import ir, relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map, get_constant

from devices.networks.bit_casts import bit_cast
from devices.networks.onnx.shape_computation import computed
from devices.networks.onnx.shape_operators import converted
from devices.networks.onnx.shape_values import ShapeValues, expression_of
from fleet_tune.base.shapes.dimensions import Dimension

Converter = Callable[[Any, Any, dict[str, Any], Any], Any]


def to_relax(model: onnx.ModelProto, types: dict[str, str], opset: int, dynamic: Sequence[Dimension] = ()) -> Any:
    """Return the IRModule of ``model``. ``types``: the types of its inputs, by name. ``dynamic``: its dynamic
    dimensions. Raises whatever TVM raises."""
    if not dynamic:
        return _Importer(None, types).from_onnx(model.graph, opset)
    module = _DynamicImporter(types, dynamic).from_onnx(model.graph, opset)
    return relax.transform.DeadCodeElimination(["main"])(module)  # shapes that nothing reads


def is_readable(operator: str) -> bool:
    """Return true if TVM or this module has a converter for the operator."""
    return operator in CONVERTERS or operator in _get_convert_map()


class _Importer(ONNXGraphImporter):  # type: ignore[misc] # TVM has no types
    """TVM's importer with :data:`CONVERTERS`."""

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Do nothing: operators that TVM does not know have already been refused, by name and place."""

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        ours = CONVERTERS.get(op_name)
        if ours is None:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        return self.bb.normalize(ours(self.bb, inputs, attrs, [self._nodes, self._params]))


class _DynamicImporter(_Importer):
    """The importer of networks with dynamic dimensions. It follows values that are computed from shapes."""

    def __init__(self, types: dict[str, str], dynamic: Sequence[Dimension]) -> None:
        super().__init__(None, types)
        self._values = ShapeValues(dynamic)

    def _parse_graph_input(self, graph: Any) -> None:
        super()._parse_graph_input(graph)
        self._values.bind([each for each in self._inputs.values() if isinstance(each, ir.Var)])

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        value = computed(self._values, op_name, list(inputs), attrs)
        if value is not None:
            result = expression_of(self.bb, value)
            self._values.keep(result, value)
            return result
        ours = converted(self.bb, op_name, list(inputs), attrs, self._values)
        if ours is not None:
            return self.bb.normalize(ours)
        return super()._convert_operator(op_name, inputs, attrs, opset)


def _bit_cast(builder: Any, inputs: Any, attributes: dict[str, Any], _: Any) -> Any:
    return bit_cast(builder, inputs[0], np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"])).name)


def _cumulative_product(builder: Any, inputs: Any, attributes: dict[str, Any], known: Any) -> Any:
    axis = int(get_constant(inputs[1], known).value.numpy().reshape(()))
    data, backwards = inputs[0], attributes.get("reverse", 0)
    if backwards:
        data = builder.emit(relax.op.flip(data, axis))
    product = builder.emit(relax.op.cumprod(data, axis, exclusive=bool(attributes.get("exclusive", 0))))
    return relax.op.flip(product, axis) if backwards else product


CONVERTERS: dict[str, Converter] = {
    "BitCast": _bit_cast,
    "CumProd": _cumulative_product,
}
