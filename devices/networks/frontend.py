"""Networks as the user gives them: read, checked, and translated into a Relax module with fixed shapes.

Three forms are read: ``file.py:function`` (the function returns a torch module and its example inputs), an ``.onnx``
file, and a ``.pt2`` file saved by :func:`torch.export.save`. Importing this module loads neither torch, onnx nor TVM;
an ONNX model is read without torch (TVM's bindings load it if it is installed, but it need not be).

Every mistake in the input is a :class:`~fleet_tune.errors.NetworkError`; what was read but cannot be compiled is an
:class:`~fleet_tune.errors.UnsupportedNetworkError` that names the operator, or the input and dimension.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from fleet_tune.errors import NetworkError, UnsupportedNetworkError

if TYPE_CHECKING:
    import onnx
    import torch

Array = npt.NDArray[Any]

_FORMS = "give file.py:function, an .onnx file or a .pt2 file saved by torch.export"
_SEED = 0


class Framework(Protocol):
    """The framework that the network came from, as the judge of our numbers."""

    def run(self) -> tuple[Array, ...]:
        """Outputs on the example inputs."""
        ...

    def measure_secs(self, threads: int, repeats: int) -> float | None:
        """Median seconds per run, None where the framework's speed says nothing to the user."""
        ...


@dataclass(frozen=True)
class Network:
    """A network that was read and translated.

    ``relax_module``: a TVM IRModule whose function ``main`` takes the inputs and has the weights bound as constants.
    ``example_inputs``: one array per input, in order. ``fingerprint``: content hash of architecture and weights, equal
    in every process; it tells whether an output folder belongs to another network.
    """

    name: str
    relax_module: Any = field(repr=False)
    example_inputs: tuple[Array, ...] = field(repr=False)
    input_names: tuple[str, ...]
    outputs: int
    fingerprint: str
    framework: Framework = field(repr=False)

    def framework_outputs(self) -> tuple[Array, ...]:
        """The outputs of the network's own framework (PyTorch eager, ONNX Runtime) on the example inputs."""
        return self.framework.run()

    def measure_framework_secs(self, threads: int, repeats: int = 20) -> float | None:
        """Median seconds per run in PyTorch eager with ``threads`` threads; None for one that is not torch's."""
        return self.framework.measure_secs(threads, repeats)


def load_network(spec: str | Path | tuple[torch.nn.Module, tuple[torch.Tensor, ...]]) -> Network:
    """Reads and translates a network.

    ``spec``: one of the three forms of this module's docstring, or a pair of a torch module and its example inputs.

    Raises :class:`NetworkError` when it cannot be read, :class:`UnsupportedNetworkError` when it cannot be compiled.
    """
    if isinstance(spec, tuple):
        module, inputs = _checked_example(spec, "the network given")
        return _from_torch(type(module).__name__, module, inputs, "the network given")
    file, function = locate(spec)
    if function:
        module, inputs = _checked_example(_call_function(file, function), str(spec))
        return _from_torch(function, module, inputs, str(spec))
    return _from_onnx(file) if file.suffix == ".onnx" else _from_pt2(file)


def locate(spec: str | Path) -> tuple[Path, str]:
    """The file and the function (empty for ``.onnx`` and ``.pt2``) that ``spec`` names; nothing is read yet.

    Raises :class:`NetworkError` where there is no such file, or it is of no form that we read.
    """
    text = str(spec)
    path, _, function = text.rpartition(":") if _names_function(text) else (text, "", "")
    file = Path(path)
    if not function and file.suffix == ".py":
        raise NetworkError(f"{file} is a Python file, but no function is named", f"write {file}:FUNCTION")
    if not file.is_file():
        raise NetworkError(f"no such file: {file}", _FORMS)
    if not function and file.suffix not in (".onnx", ".pt2"):
        raise NetworkError(f"{file} is not a network that we read", _FORMS)
    return file, function


def _names_function(text: str) -> bool:
    return re.search(r"\.py:[^/\\:]*$", text) is not None


# --- torch -----------------------------------------------------------------------------------------------------------


def _call_function(file: Path, function: str) -> object:
    """Runs ``function`` of the Python ``file``, which may import its neighbours and the current folder."""
    spec = importlib.util.spec_from_file_location(f"_fleet_tune_network_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise NetworkError(f"{file} is not a Python file", _FORMS)
    python_module = importlib.util.module_from_spec(spec)
    # Registered, as a plain import would be: dataclasses and torch look classes up by their module's name.
    sys.modules[spec.name] = python_module
    with _search_path(str(file.resolve().parent), str(Path.cwd())):
        try:
            spec.loader.exec_module(python_module)
        except (Exception, SystemExit) as error:
            raise NetworkError(
                f"{file} cannot be imported: {_brief(error)}", "run it with python and mend it"
            ) from error
        make = getattr(python_module, function, None)
        if not callable(make):
            offered = sorted(
                name
                for name, value in vars(python_module).items()
                if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == spec.name
            )
            hint = f"it has {', '.join(offered)}" if offered else "define it"
            raise NetworkError(f"{file} has no function {function!r}", hint)
        try:
            return make()
        except (Exception, SystemExit) as error:
            raise NetworkError(
                f"{file}:{function} raised {_brief(error)}", "call it with python and mend it"
            ) from error


@contextlib.contextmanager
def _search_path(*folders: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [folder for folder in folders if folder not in before]
    try:
        yield
    finally:
        sys.path[:] = before


def _checked_example(value: object, where: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import torch

    wanted = "return (torch module, tuple of example input tensors)"
    if not isinstance(value, tuple) or len(value) != 2:
        raise NetworkError(f"{where} returned {_kind(value)}, not a module and its example inputs", wanted)
    module, inputs = value
    if not isinstance(module, torch.nn.Module):
        raise NetworkError(f"{where} returned {_kind(module)} where a torch.nn.Module is expected", wanted)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list) or not inputs:
        raise NetworkError(f"{where} returned {_kind(inputs)} where a tuple of input tensors is expected", wanted)
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise NetworkError(f"{where}: example input {index} is {_kind(tensor)}, not a tensor", wanted)
    return module, tuple(inputs)


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@dataclass(frozen=True)
class _TorchFramework:
    module: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]

    def run(self) -> tuple[Array, ...]:
        import torch

        # Not inference_mode: a module exported to .pt2 may hold views that it refuses.
        with torch.no_grad():
            return tuple(_tensors(self.module(*self.inputs)))

    def measure_secs(self, threads: int, repeats: int) -> float:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.no_grad():
                for _ in range(3):
                    self.module(*self.inputs)
                times = []
                for _ in range(repeats):
                    start = time.perf_counter()
                    self.module(*self.inputs)
                    times.append(time.perf_counter() - start)
        finally:
            torch.set_num_threads(before)
        return statistics.median(times)


def _tensors(output: object) -> Iterator[Array]:
    """The tensors of a module's output in the order in which torch.export flattens them."""
    import torch
    from torch.utils import _pytree as pytree  # the order torch.export itself uses

    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf.detach().cpu().numpy()


def _from_torch(name: str, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], where: str) -> Network:
    import torch

    module = module.eval()
    with _quiet():
        try:
            program = torch.export.export(module, inputs)
        except Exception as error:
            raise NetworkError(
                f"torch.export cannot export {where}: {_brief(error)}",
                "check the example inputs, and rewrite what depends on data (see the torch.export documentation)",
            ) from error
    return _from_program(name, program, _TorchFramework(module, inputs), where)


def _from_pt2(file: Path) -> Network:
    import torch

    with _quiet():
        try:
            program = torch.export.load(str(file))
        except Exception as error:
            raise NetworkError(f"{file} is not a network saved by torch.export: {_brief(error)}", _FORMS) from error
    _refuse_dynamic_program(program, str(file))
    inputs, keywords = program.example_inputs or ((), {})
    if keywords or not all(isinstance(value, torch.Tensor) for value in inputs):
        raise UnsupportedNetworkError(
            f"{file} takes inputs that are no positional tensors", "export it with positional tensor arguments only"
        )
    if not inputs:
        inputs = tuple(
            torch.from_numpy(_example_array(tuple(value.shape), str(value.dtype).removeprefix("torch."), index))
            for index, value in enumerate(_program_inputs(program).values())
        )
    module = program.module()
    return _from_program(file.stem, program, _TorchFramework(module, tuple(inputs)), str(file))


def _program_inputs(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Fake tensors of the user's inputs by name."""
    names = program.graph_signature.user_inputs
    return {
        node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names
    }


def _refuse_dynamic_program(program: torch.export.ExportedProgram, where: str) -> None:
    for name, value in _program_inputs(program).items():
        for at, extent in enumerate(getattr(value, "shape", ())):
            if not isinstance(extent, int):
                raise UnsupportedNetworkError(
                    f"{where}: input {name!r} has the dynamic dimension {at} ({extent})",
                    "export it with fixed shapes: call torch.export.export without dynamic_shapes",
                )


# Core ATen wraps every matrix product in reshapes and broadcasts, which then stand between the product and what
# should be fused with it. Everything else is decomposed: TVM misreads some whole operators (the momentum of
# aten.batch_norm becomes its epsilon).
_WHOLE_OPERATORS = ("linear", "matmul")


def _decomposed(program: torch.export.ExportedProgram, whole: tuple[str, ...]) -> torch.export.ExportedProgram:
    import torch

    table: Any = torch.export.default_decompositions()
    for name in whole:
        table.pop(getattr(torch.ops.aten, name).default, None)
    attention = torch.ops.aten.scaled_dot_product_attention.default
    table[attention] = _plain_attention(table[attention])
    decomposed: torch.export.ExportedProgram = program.run_decompositions(table)
    return decomposed


def _plain_attention(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention without torch's guard against rows in which everything is masked: five more passes over the scores,
    and without a mask there is no such row. With one, ``otherwise`` (torch's own decomposition) stays."""
    import torch

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if attn_mask is not None or dropout_p or enable_gqa:
            return otherwise(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
            scores = torch.where(seen, scores, float("-inf"))
        return torch.softmax(scores, -1) @ value

    return attention


def _from_program(name: str, program: torch.export.ExportedProgram, framework: _TorchFramework, where: str) -> Network:
    from tvm.relax.frontend.torch import from_exported_program

    _refuse_dynamic_program(program, where)
    refusal = UnsupportedNetworkError(f"{where} cannot be imported", "simplify the network")
    decomposed = program
    for whole in (_WHOLE_OPERATORS, ()):
        with _quiet():
            try:
                decomposed = _decomposed(program, whole)
                module = from_exported_program(decomposed, unwrap_unit_return_tuple=True, run_ep_decomposition=False)
            except Exception as error:
                refusal = _unsupported(error, where, _unknown_operators(decomposed))
                refusal.__cause__ = error
                continue
        arrays = tuple(tensor.detach().cpu().numpy() for tensor in framework.inputs)
        return _network(name, module, arrays, framework)
    raise refusal


def _unknown_operators(program: torch.export.ExportedProgram) -> list[str]:
    """Operators of ``program`` that TVM's frontend has no translation for. It looks for them only after other things
    that the same operators bring along have failed."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    translations = ExportedProgramImporter().convert_map
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return sorted(target.__name__ for target in called if target.__name__ not in translations)


# --- ONNX ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OnnxFramework:
    proto: onnx.ModelProto
    inputs: dict[str, Array]

    def run(self) -> tuple[Array, ...]:
        """ONNX Runtime's outputs, or those of ONNX's own evaluator where ONNX Runtime is not installed or does not know
        the network: new releases of onnx write versions of the format that it learns to read only later."""
        try:
            return self._run_with_onnxruntime()
        except Exception as error:
            refusal = error
        from onnx.reference import ReferenceEvaluator

        try:
            return tuple(np.asarray(out) for out in ReferenceEvaluator(self.proto).run(None, self.inputs))
        except Exception as error:
            raise UnsupportedNetworkError(
                f"neither ONNX Runtime ({_brief(refusal)}) nor ONNX's own evaluator ({_brief(error)}) runs the network",
                "export it for an older opset, or check that its weights and its operators' domains are right",
            ) from error

    def _run_with_onnxruntime(self) -> tuple[Array, ...]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it refuses is told by us, not by its log
        session = onnxruntime.InferenceSession(
            self.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return tuple(np.asarray(out) for out in session.run(None, self.inputs))

    def measure_secs(self, threads: int, repeats: int) -> None:  # noqa: ARG002 - the protocol's signature
        return None


def _from_onnx(file: Path) -> Network:
    import onnx
    from onnx import helper

    try:
        proto = onnx.load(str(file))
        onnx.checker.check_model(proto)
    except Exception as error:
        raise NetworkError(f"{file} is not a valid ONNX model: {_brief(error)}", "export it again") from error
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise UnsupportedNetworkError(
                f"{file}: input {value.name!r} has no fixed shape", "export it with fixed shapes"
            )
        for at, extent in enumerate(tensor.shape.dim):
            if extent.dim_value <= 0:
                called = extent.dim_param or "unnamed"
                raise UnsupportedNetworkError(
                    f"{file}: input {value.name!r} has the dynamic dimension {at} ({called})",
                    "export it with fixed shapes, or fix them with 'python -m "
                    f"onnxruntime.tools.make_dynamic_shape_fixed --input_name {value.name} --input_shape ...'",
                )
        shape = tuple(int(extent.dim_value) for extent in tensor.shape.dim)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        inputs[value.name] = _example_array(shape, dtype, len(inputs))
    from tvm.relax.frontend.onnx import from_onnx

    with _quiet():
        try:
            # None: take the types from the file (the default claims float32 for every input).
            module = from_onnx(proto, dtype_dict={name: array.dtype.name for name, array in inputs.items()})
        except Exception as error:
            raise _unsupported(error, str(file)) from error
    return _network(file.stem, module, tuple(inputs.values()), _OnnxFramework(proto, inputs), tuple(inputs))


def _example_array(shape: tuple[int, ...], dtype: str, index: int) -> Array:
    """A made-up input: normal floats, and 0 or 1 for integers, which index any table."""
    generator = np.random.default_rng((_SEED, index))
    if dtype.startswith("float"):
        return np.asarray(generator.standard_normal(shape).astype(dtype))
    return np.asarray(generator.integers(0, 2, shape).astype(dtype))


# --- common ----------------------------------------------------------------------------------------------------------


def _network(
    name: str, module: Any, inputs: tuple[Array, ...], framework: Framework, names: tuple[str, ...] | None = None
) -> Network:
    from tvm import relax

    main = module["main"]
    returned = main.ret_ty
    outputs = len(returned.fields) if isinstance(returned, relax.TupleType) else 1
    parameters = tuple(str(parameter.name) for parameter in main.params)
    return Network(
        name=re.sub(r"\W+", "_", name),
        relax_module=module,
        example_inputs=inputs,
        input_names=names or parameters,
        outputs=outputs,
        fingerprint=fingerprint(module),
        framework=framework,
    )


def fingerprint(module: Any) -> str:
    """Content hash of an IRModule: its text, and the bytes of its constants in order of appearance."""
    from tvm import relax
    from tvm.ir import GenericConst

    digest = hashlib.blake2b(module.script(show_meta=False).encode(), digest_size=16)

    def add(expression: object) -> None:
        if isinstance(expression, GenericConst):
            array = expression.value.numpy()
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())

    relax.analysis.post_order_visit(module["main"], add)
    return digest.hexdigest()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the frontends' warnings and progress prints from the user: they name things inside TVM and torch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _unsupported(error: Exception, where: str, unknown: Sequence[str] = ()) -> UnsupportedNetworkError:
    """The frontend's exception in the user's words: which operators it stumbled over."""
    next_step = "replace it in the network by operators that TVM's frontend knows"
    listed = re.search(r"not supported for frontend ONNX: (.*)", str(error))
    names = sorted(name.strip() for name in listed.group(1).split(",")) if listed else list(unknown)
    if names:
        return UnsupportedNetworkError(f"{where} uses operators that cannot be imported: {', '.join(names)}", next_step)
    operator = _operator_in(error)
    if operator:
        return UnsupportedNetworkError(
            f"{where} uses the operator {operator} in a way that cannot be imported: {_brief(error)}", next_step
        )
    return UnsupportedNetworkError(f"{where} cannot be imported: {_brief(error)}", "simplify the network")


def _operator_in(error: BaseException) -> str:
    """The operator that a frontend was converting when it raised, read from the frames of its traceback."""
    operator = ""
    trace = error.__traceback__
    while trace is not None:
        values = trace.tb_frame.f_locals
        if isinstance(values.get("op_name"), str):
            operator = values["op_name"]
        node: Any = values.get("node")
        if hasattr(node, "target") and hasattr(node, "op"):
            operator = str(node.target)
        trace = trace.tb_next
    return operator


def _brief(error: BaseException) -> str:
    """Type and first line of an exception's message."""
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
