"""ONNX files as Relax modules, read without torch (TVM's bindings load it if it is installed, but it need not be)."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from devices.error_text import brief
from devices.networks.checks.comparison import compare
from devices.networks.dynamic.dimensions import bounded, with_dimensions
from devices.networks.frontend_errors import failing_onnx_node, silenced, unsupported_error
from devices.networks.network import Array, Intermediate, Network, example_array, network_of
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError
from fleet_tune.base.shapes.extent_sums import ExtentSum

if TYPE_CHECKING:
    import onnx

    from fleet_tune.base.shapes.dimensions import Dimension
    from fleet_tune.base.shapes.shapes import Shapes


def _multiplies_bytes_exactly() -> bool:
    """Return true if this processor has an instruction that adds four products of bytes in 32 bits. On other
    processors, ONNX Runtime's fused operators saturate, so that their error is more than rounding."""
    from devices.builds.passes.byte_instructions import fast_integer_dot
    from devices.targets import NATIVE, parse_target, resolve_target

    dot = fast_integer_dot(parse_target(resolve_target(NATIVE)))
    return dot is not None and dot.terms == 4


_IN_INTEGERS = re.compile(r"^QLinear|^QGemm$|Integer")


@dataclass(frozen=True)
class _OnnxFramework:
    """ONNX Runtime, or ONNX's own evaluator, on an ONNX file."""

    name: ClassVar[str] = "ONNX Runtime"
    file: Path
    inputs: dict[str, Array]
    in_integers: bool = False
    """True if operators of the network multiply integers of 8 bits."""

    def run(self) -> tuple[Array, ...]:
        """Return ONNX Runtime's outputs. If ONNX Runtime is not installed or cannot read the network, return the
        outputs of ONNX's own evaluator: new releases of onnx write versions of the format that ONNX Runtime supports
        only later."""
        try:
            return self._run_with_onnxruntime()
        except Exception as error:
            refusal = error
        from onnx.reference import ReferenceEvaluator

        try:
            return tuple(np.asarray(out) for out in ReferenceEvaluator(str(self.file)).run(None, self.inputs))
        except Exception as error:
            raise UnsupportedNetworkError(
                f"neither ONNX Runtime ({brief(refusal)}) nor ONNX's own evaluator ({brief(error)}) runs the network",
                "export it for an older opset, or check that its weights and its operators' domains are right",
            ) from error

    def given(self, inputs: tuple[Array, ...]) -> _OnnxFramework:
        return replace(self, inputs=dict(zip(self.inputs, inputs, strict=True)))

    def intermediates(self) -> tuple[Intermediate, ...]:
        from devices.networks.onnx import intermediates

        return intermediates.intermediates(self.file)

    def returning(self, values: Sequence[Intermediate], folder: Path) -> Network:
        from devices.networks.onnx.intermediates import write_returning

        shapes = {name: array.shape for name, array in self.inputs.items()}
        write_returning(self.file, values, folder / self.file.name, shapes)
        return from_onnx_file(folder / self.file.name)

    def _run_with_onnxruntime(self) -> tuple[Array, ...]:
        import onnxruntime

        if self.in_integers:
            with contextlib.suppress(Exception):  # fails for signed activations, whose kernels do not saturate
                return self._run_without_saturation()
        # No optimisations: run the network as it is defined.
        return self._run_session(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)

    def _run_without_saturation(self) -> tuple[Array, ...]:
        """Run ONNX Runtime at a level whose optimisation avoids saturation. Without it, kernels for unsigned times
        signed 8 bits saturate on processors that lack instructions for them (AVX2)."""
        import onnxruntime

        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        return self._run_session(level, {"session.x64quantprecision": "1", "session.disable_quant_qdq": "1"})

    def _run_session(self, level: Any, entries: Mapping[str, str] = MappingProxyType({})) -> tuple[Array, ...]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # its errors are reported here, not its log
        options.graph_optimization_level = level
        for name, value in {"session.disable_prepacking": "1", **entries}.items():  # no packed copy of the weights
            options.add_session_config_entry(name, value)
        # Loaded by path: models above 2 GB can only be passed as files.
        session = onnxruntime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])
        return tuple(np.asarray(out) for out in session.run(None, self.inputs))

    def spread(self) -> float:
        import onnxruntime

        if not _multiplies_bytes_exactly():
            return 0.0
        try:
            in_integers = self._run_session(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
            relative = compare(in_integers, self.run())[1]
        except Exception:  # an ONNX Runtime may run the network in only one of the two ways: no spread is known
            return 0.0
        return relative if math.isfinite(relative) else 0.0

    def measure_secs(self, threads: int, repeats: int) -> float | None:
        """Return the median seconds per run. None if ONNX Runtime cannot run the network: the speed of ONNX's own
        evaluator would tell nothing."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        try:
            session = onnxruntime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])
            for _ in range(3):
                session.run(None, self.inputs)
        except Exception:
            return None
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            session.run(None, self.inputs)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def from_onnx_file(file: Path, asked: Shapes | None = None) -> Network:
    """Read the network in an ONNX file. ``asked``: the user's bounds of its dynamic dimensions. Raises
    :class:`NetworkError`, :class:`UnsupportedNetworkError`, and the errors of
    :func:`devices.networks.dynamic.dimensions.bounded`."""
    from devices.networks.onnx import file as onnx_file
    from devices.networks.onnx.dimensions import named, with_extents

    try:
        model = onnx_file.read(file)
    except Exception as error:
        raise NetworkError(f"{file} is not a valid ONNX model: {brief(error)}", "export it again") from error
    proto = model.proto
    if not proto.graph.output:
        raise UnsupportedNetworkError(f"{file} has no output", "declare its outputs")
    weights = {tensor.name for tensor in proto.graph.initializer} | model.weights.keys()
    _check_inputs(proto, weights, str(file))
    proto, found = named(proto, weights)
    shapes = bounded(found, asked, str(file))
    fixed = {} if shapes is None else {each.name: each.most for each in shapes.dimensions if each.is_fixed}
    proto = with_extents(proto, fixed) if fixed else proto
    inputs = _stand_ins(proto, weights, shapes)
    types = {name: array.dtype.name for name, array in {**inputs, **model.weights}.items()}
    with silenced():
        module, readable = _translated(proto, types, str(file), () if shapes is None else shapes.dynamic)
    module = _with_weights(module, readable, model.weights)
    _check_outputs(module, readable, str(file))
    in_integers = any(_IN_INTEGERS.search(node.op_type) for node in proto.graph.node)
    framework = _OnnxFramework(file, inputs, in_integers)
    network = network_of(file.stem, module, tuple(inputs.values()), framework, tuple(inputs))
    return with_dimensions(
        replace(network, inputs_from=""), shapes, {each.name: each.name for each in found if each.name not in fixed}
    )


def _stand_ins(proto: onnx.ModelProto, weights: Collection[str], shapes: Shapes | None) -> dict[str, Array]:
    """Return arrays of the inputs' types and shapes. Dynamic extents have their largest value."""
    from onnx import helper

    most = {} if shapes is None else {each.name: each.most for each in shapes.dimensions}
    inputs: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            shape = tuple(
                int(extent.dim_value) or ExtentSum.parse(extent.dim_param).at(most) for extent in tensor.shape.dim
            )
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
            inputs[value.name] = example_array(shape, dtype, len(inputs))
    return inputs


def _check_inputs(proto: onnx.ModelProto, weights: Collection[str], where: str) -> None:
    """Raise :class:`UnsupportedNetworkError` for an input that is no tensor, has an unknown rank, or has no
    elements."""
    for value in proto.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            kind = str(value.type.WhichOneof("value") or "unknown").removesuffix("_type")
            raise UnsupportedNetworkError(
                f"{where}: input {value.name!r} is not a tensor but {kind}", "make it tensors"
            )
        if not tensor.HasField("shape"):
            raise UnsupportedNetworkError(
                f"{where}: input {value.name!r} has an unknown number of dimensions", "export it with a shape"
            )
        for at, extent in enumerate(tensor.shape.dim):
            if extent.HasField("dim_value") and not extent.dim_value:
                raise UnsupportedNetworkError(
                    f"{where}: input {value.name!r} has no elements: its dimension {at} is 0", "leave it out"
                )


def _translated(
    proto: onnx.ModelProto, types: dict[str, str], where: str, dynamic: Sequence[Dimension]
) -> tuple[Any, onnx.ModelProto]:
    """Return the Relax module of ``proto``, and the prepared model that it was imported from. If TVM fails to translate
    an operator, the operator is replaced by the function that ONNX defines it by, if there is one."""
    from devices.networks.onnx.converters import to_relax
    from devices.networks.onnx.folding import opset_of
    from devices.networks.onnx.graph import has_function, prepared, said

    expanded: frozenset[str] = frozenset()
    while True:
        try:
            readable = prepared(proto, where, expanded)
            return to_relax(readable, types, opset_of(readable), dynamic), readable
        except UnsupportedNetworkError:
            raise
        except Exception as error:
            node = failing_onnx_node(error)
            if node is None or not has_function(node) or node.op_type in expanded:
                raise unsupported_error(error, where, node=said(node) if node is not None else "") from error
            expanded |= {node.op_type}


def _with_weights(module: Any, proto: onnx.ModelProto, weights: Mapping[str, Array]) -> Any:
    """Return ``module`` with its weights bound. TVM renames its parameters, but keeps their order."""
    if not weights:
        return module
    from tvm import relax

    from devices.builds.tensors import tensor_of

    constants = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in constants]
    parameters = zip(module["main"].params, names, strict=True)
    bound = {parameter: tensor_of(weights[name]) for parameter, name in parameters if name in weights}
    return relax.transform.BindParams("main", bound)(module)


def _check_outputs(module: Any, proto: onnx.ModelProto, where: str) -> None:
    """Raise :class:`UnsupportedNetworkError` if the module's outputs have other types or shapes than the model
    declares."""
    from onnx import helper
    from tvm import relax, tirx

    from devices.builds.executables import has_fixed_shape

    returned = module["main"].ret_ty
    ours = list(returned.fields) if isinstance(returned, relax.TupleType) else [returned]
    if len(ours) != len(proto.graph.output):
        raise UnsupportedNetworkError(
            f"{where}: {len(ours)} outputs are imported instead of {len(proto.graph.output)}", "simplify the network"
        )
    for kind, value in zip(ours, proto.graph.output, strict=True):
        said = f"{where}: the output {value.name!r}"
        if not isinstance(kind, relax.TensorType) or not value.type.HasField("tensor_type"):
            raise UnsupportedNetworkError(f"{said} is not a tensor", "return tensors")
        tensor = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        if str(kind.dtype) != dtype:
            raise UnsupportedNetworkError(f"{said} is imported as {kind.dtype} instead of {dtype}", "cast it")
        shape = [extent.dim_value for extent in tensor.shape.dim if extent.HasField("dim_value")]
        imported = [int(n) for n in kind.shape.values if isinstance(n, tirx.IntImm)] if has_fixed_shape(kind) else []
        fixed = len(shape) == len(tensor.shape.dim) and has_fixed_shape(kind)
        if fixed and shape != imported:
            raise UnsupportedNetworkError(
                f"{said} is imported as {imported} instead of {shape}", "simplify the network"
            )
