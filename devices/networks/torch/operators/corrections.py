"""TVM's translation of torch's operators, corrected where it assumes that all numbers are float32.

Importing this module loads torch and TVM. Changes, for programs that are not all float32:

- Operands are converted as torch does it (``int_tensor * 0.5`` is a float32 tensor) before the operator is translated.
- Products, convolutions, sums and softmax of half-precision numbers add up in float32 and are rounded once, as in
  PyTorch's own kernels. Those of float64 and of integers stay in their type.
- Other results whose type differs from torch's only in width are converted. Results of another kind or shape are
  refused.
- Only tensors are outputs: ``None`` and numbers that a module returns are not part of the compiled network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.ir import Call

from devices.networks.torch import dynamic_extents
from devices.networks.torch.dimensions import program_inputs
from devices.networks.torch.node_locations import operator_name
from devices.networks.torch.operators import functions, quantization, resizing, scatters, shifts, vision, windows
from devices.networks.torch.operators.translations import Convert, Translations

_HALF = (torch.float16, torch.bfloat16)
_DIVISIONS = ("div.Tensor", "div.Scalar")
_PROMOTED = (
    *_DIVISIONS,
    *(f"{name}.{kind}" for name in ("add", "sub", "mul", "remainder", "fmod", "pow") for kind in ("Tensor", "Scalar")),
    *(f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "div.Tensor_mode", "atan2.default"),
    *("maximum.default", "minimum.default"),
)
"""Operators whose two operands torch converts to one type."""

_ADDING = (
    *("_softmax.default", "softmax.int", "_log_softmax.default", "log_softmax.int"),
    *("mean.dim", "mean.default", "sum.default", "sum.dim_IntList", "var.correction", "std.correction"),
    *("cumsum.default", "linalg_vector_norm.default"),
)
"""Operators that add up many elements of their first operand."""

_CONVOLUTIONS = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")


class TorchImporter(Translations):
    """TVM's importer of exported programs with the translations of this module's docstring."""

    def create_convert_map(self) -> dict[Any, Convert]:
        table: dict[Any, Convert] = super().create_convert_map()
        del table["cond"]  # its branches become functions that no later step processes
        replaced: dict[str, tuple[Sequence[str], Callable[[Convert], Convert]]] = {
            "promoted": (_PROMOTED, self._promoted),
            "adding": (_ADDING, self._summed),
            "products": (("mm.default", "bmm.default", "matmul.default"), self._product),
            "added products": (("addmm.default", "baddbmm.default"), self._added_product),
            "norms": (
                ("_native_batch_norm_legit_no_training.default", "native_layer_norm.default"),
                self._norm_in_float32,
            ),
            "linear": (("linear.default",), self._linear_layer),
            "convolutions": (("convolution.default",), self._any_convolution),
        }
        for names, wrap in replaced.values():
            table.update({name: wrap(table[name]) for name in names if name in table})
        for subject in (functions, quantization, resizing, scatters, shifts, vision, windows):
            table.update(subject.translations(self))
        for name, wrap in dynamic_extents.translations(self, table).items():
            table[name] = wrap(table[name])
        return {name: self._checked(convert) for name, convert in table.items()}

    # --- torch's types and shapes of a node ---

    def create_input_vars(self, exported_program: torch.export.ExportedProgram) -> Any:
        found = super().create_input_vars(exported_program)
        for name, value in program_inputs(exported_program).items():
            self.symbols.learn(value, found[1][name])
        return found

    def _checked(self, convert: Convert) -> Convert:
        """Wrap ``convert``: its result is checked against torch's type and shape of the node."""

        def converted(node: fx.Node) -> Any:
            if isinstance(node.meta.get("val"), torch.SymInt):
                extent = self.symbols.expression(node.meta["val"])
                return convert(node) if extent is None else extent
            result = convert(node)
            if isinstance(result, Call):  # TVM binds some calls to no variable, but does not accept them as operands
                result = self.block_builder.emit(result)
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor) or not isinstance(getattr(result, "ty", None), relax.TensorType):
                return result
            shape = result.ty.shape
            if isinstance(shape, relax.ShapeExpr) and all(isinstance(extent, int) for extent in value.shape):
                ours = [getattr(extent, "value", None) for extent in shape.values]
                if None not in ours and ours != list(value.shape):
                    raise ValueError(f"its result has the shape {ours} instead of {list(value.shape)}")
            return self._as_type(result, value.dtype)

        return converted

    def _as_type(self, result: Any, dtype: torch.dtype) -> Any:
        theirs, ours = self._convert_data_type(dtype), str(result.ty.dtype)
        if ours == theirs:
            return result
        if _kind(ours) != _kind(theirs):
            raise ValueError(f"its result has the type {ours} instead of {theirs}")
        return self._cast(result, dtype)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        name = self._convert_data_type(dtype)
        return value if str(value.ty.dtype) == name else self.block_builder.emit(relax.op.astype(value, name))

    def _with_operands(self, convert: Convert, node: fx.Node, nodes: Sequence[Any], dtype: torch.dtype) -> Any:
        """Return ``convert(node)`` while those operands that are tensors or dynamic extents have the type ``dtype``."""
        before = {operand: self.env[operand] for operand in nodes if isinstance(operand, fx.Node)}
        tensors = {operand: value for operand, value in before.items() if _is_tensor(value)}
        extents = {operand: value for operand, value in before.items() if _is_extent(operand)}
        self.env.update({operand: self._cast(value, dtype) for operand, value in tensors.items()})
        name = self._convert_data_type(dtype)
        self.env.update({operand: dynamic_extents.scalar(self, value, name) for operand, value in extents.items()})
        try:
            return convert(node)
        finally:
            self.env.update(before)

    # --- translations ---

    def _promoted(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            operands = node.args[:2]
            values: list[Any] = [
                operand.meta.get("val") if isinstance(operand, fx.Node) else operand for operand in operands
            ]
            values = [1 if isinstance(value, torch.SymInt) else value for value in values]  # any int has its type
            if len(values) < 2 or not all(isinstance(value, torch.Tensor | int | float) for value in values):
                return convert(node)
            dtype = torch.result_type(*values)
            if operator_name(node) in _DIVISIONS and not dtype.is_floating_point:
                dtype = torch.float32
            if operator_name(node) == "div.Tensor_mode" and not isinstance(operands[1], fx.Node):
                return self._with_operands(self._divided_by_number(dtype), node, operands, dtype)
            return self._with_operands(convert, node, operands, dtype)

        return converted

    def _divided_by_number(self, dtype: torch.dtype) -> Convert:
        def converted(node: fx.Node) -> Any:
            left, right = self.env[node.args[0]], relax.const(node.args[1], self._convert_data_type(dtype))
            if node.kwargs.get("rounding_mode") == "floor":
                return self.block_builder.emit(relax.op.floor_divide(left, right))
            quotient = self.block_builder.emit(relax.op.divide(left, right))  # of integers: rounded to zero
            return self.block_builder.emit(relax.op.trunc(quotient)) if dtype.is_floating_point else quotient

        return converted

    def _summed(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            # Add up in the result's type: torch counts booleans in int64.
            return self._with_operands(convert, node, node.args[:1], _sum_type(node.meta["val"].dtype))

        return converted

    def _norm_in_float32(self, convert: Convert) -> Convert:
        """Compute a norm in float32. A batch norm then has the type of the sums before it, so that it can be folded
        into the weights of their convolution."""

        def converted(node: fx.Node) -> Any:
            dtype = node.meta["val"][0].dtype
            if dtype not in _HALF:
                return convert(node)
            return self._cast(self._with_operands(convert, node, node.args[:5], torch.float32), dtype)

        return converted

    def _product(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            dtype = node.meta["val"].dtype
            if dtype == torch.float32:
                return convert(node)
            return self._matmul(self.env[node.args[0]], self.env[node.args[1]], dtype)

        return converted

    def _added_product(self, convert: Convert) -> Convert:
        """Compute ``beta * bias + alpha * (left @ right)``."""

        def converted(node: fx.Node) -> Any:
            dtype = node.meta["val"].dtype
            if dtype == torch.float32:
                return convert(node)
            bias, left, right = (self.env[operand] for operand in node.args[:3])
            product = self._matmul(left, right, dtype)
            parts = (
                (product, node.kwargs.get("alpha", 1)),
                (self._cast(bias, _sum_type(dtype)), node.kwargs.get("beta", 1)),
            )
            scaled = [
                part if factor == 1 else relax.op.multiply(part, relax.const(factor, str(product.ty.dtype)))
                for part, factor in parts
            ]
            return self.block_builder.emit(relax.op.add(*scaled))

        return converted

    def _linear_layer(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            dtype = node.meta["val"].dtype
            if dtype == torch.float32:
                return convert(node)
            data, weight, *bias = (self.env[operand] for operand in node.args if operand is not None)
            transposed = self.block_builder.emit(relax.op.permute_dims(weight))
            product = self._matmul(data, transposed, dtype)
            if not bias:
                return product
            return self.block_builder.emit(relax.op.add(product, self._cast(bias[0], _sum_type(dtype))))

        return converted

    def _matmul(self, left: Any, right: Any, dtype: torch.dtype) -> Any:
        sums = self._convert_data_type(_sum_type(dtype))
        return self.block_builder.emit(relax.op.matmul(left, right, out_dtype=sums))

    def _any_convolution(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            dtype = node.meta["val"].dtype
            if dtype == torch.float32:
                return convert(node)
            bias = node.args[2]
            node.update_arg(2, None)
            try:
                result = convert(node)  # TVM's sums are float32, whatever the operands are
            finally:
                node.update_arg(2, bias)
            if dtype not in _HALF:
                result = self._convolution_in(result, self._convert_data_type(dtype))
            if bias is None:
                return result
            shape = (1, -1) + (1,) * (len(node.meta["val"].shape) - 2)
            added = relax.op.reshape(self._cast(self.env[bias], _sum_type(dtype)), shape)
            return self.block_builder.emit(relax.op.add(result, added))

        return converted

    def _convolution_in(self, result: Any, dtype: str) -> Any:
        """Return the convolution that the variable ``result`` is bound to, with sums of the type ``dtype``."""
        call = self.block_builder.lookup_binding(result)
        define = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
        options = {name: getattr(call.attrs, name) for name in _CONVOLUTIONS}
        if "transpose" in call.op.name:
            options["output_padding"] = call.attrs.output_padding
        return self.block_builder.emit(define(call.args[0], call.args[1], **options, out_dtype=dtype))


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def _is_extent(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _kind(dtype: str) -> str:
    return dtype.rstrip("0123456789").removeprefix("b").removeprefix("u") if dtype != "bool" else dtype


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the sums in a product of ``dtype``."""
    return torch.float32 if dtype in _HALF else dtype


def drop_other_outputs(program: torch.export.ExportedProgram) -> int:
    """Remove outputs of ``program`` that are not tensors, or are changed buffers. Return the number of outputs that
    stay."""
    from torch.export.graph_signature import OutputKind

    output = program.graph.output_node()
    users = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    specs = program.graph_signature.output_specs
    kept = [
        value
        for value, spec in zip(output.args[0], specs, strict=True)
        if spec.kind in users and isinstance(value, fx.Node)
    ]
    if len(kept) != len(specs):
        output.args = (tuple(kept),)
    return len(kept)


def translated(program: torch.export.ExportedProgram) -> Any:
    """Return ``program``, decomposed, as a Relax module. Raises the errors of TVM and :class:`TorchImporter`."""
    return TorchImporter().from_exported_program(
        program,
        keep_params_as_input=False,
        unwrap_unit_return_tuple=True,
        no_bind_return_tuple=False,
        custom_convert_map=None,
    )


def unknown_operators(program: torch.export.ExportedProgram) -> list[str]:
    """Return the operators of ``program`` that have no translation. TVM checks for them only after it may have failed
    on other properties of the same operators."""
    translations = TorchImporter().convert_map
    called = [node for node in program.graph.nodes if node.op == "call_function"]
    return sorted({operator_name(node) for node in called if node.target.__name__ not in translations})
