"""Lowered networks as executables of TVM's virtual machine, with separate weights.

The weights become arguments of ``main``, so that the library stays small and building it does not depend on their size.
If a schedule needs a weight in another layout, the conversion is lifted out of ``main`` into a separate function. That
function runs once, when the network is built, so the conversion costs nothing at run time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.concatenations import write_in_place
from devices.builds.linking import link
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.builds.passes.vector_math import use_vector_math
from devices.builds.tensors import array_of, tensor_of
from devices.cuda.compiler import compiling_for
from devices.cuda.cuda_graph import use_cuda_graph
from devices.host.owned_folder import owned_folder
from devices.protocol import TensorSpec
from devices.sketches.contiguous_loops import in_contiguous_order
from devices.sketches.defaults import default_schedules
from devices.targets import NATIVE, parse_target, resolve_target, without_late_optimisations
from fleet_tune.base.errors import UnsupportedNetworkError

Array = npt.NDArray[Any]

FIX_SHAPES = (
    "keep operators whose shapes depend on data (non-zero elements, unique values, boolean masks) out of the network"
)
_TRANSFORM = "main_transform_params"
_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


@dataclass(frozen=True)
class Executable:
    """A network that was built for a target."""

    module: Any
    """TVM's runtime module, not yet linked."""
    parameters: tuple[Array, ...]
    """Weights in the layouts that ``main`` expects, in the order of its arguments after the inputs."""
    lowered: Any
    """The IRModule that was built."""


def tensor_specs(types: list[Any]) -> tuple[TensorSpec, ...]:
    """Return shapes and dtypes of Relax tensor types, tuples flattened.

    Raises :class:`~fleet_tune.base.errors.UnsupportedNetworkError` for a shape that is not fixed.
    """
    specs: list[TensorSpec] = []
    for kind in types:
        if isinstance(kind, relax.TupleType):
            specs.extend(tensor_specs(list(kind.fields)))
        elif not has_fixed_shape(kind):
            raise UnsupportedNetworkError(
                f"the network has an input or output without a fixed shape: {str(kind).strip()}", FIX_SHAPES
            )
        else:
            specs.append(TensorSpec(tuple(int(extent) for extent in kind.shape.values), str(kind.dtype)))
    return tuple(specs)


@dataclass(frozen=True, slots=True)
class SymbolicSpec:
    """Shape and dtype of an input or output of a network."""

    shape: tuple[int | str, ...]
    """Extents: numbers, or expressions of dynamic dimensions, such as ``n``."""
    dtype: str


def symbolic_specs(types: list[Any]) -> tuple[SymbolicSpec, ...]:
    """Return shapes and dtypes of Relax tensor types, tuples flattened. Extents may be expressions of dynamic
    dimensions."""
    specs: list[SymbolicSpec] = []
    for kind in types:
        if isinstance(kind, relax.TupleType):
            specs.extend(symbolic_specs(list(kind.fields)))
        else:
            shape = tuple(int(n) if isinstance(n, int | tvm.tirx.IntImm) else str(n) for n in kind.shape.values)
            specs.append(SymbolicSpec(shape, str(kind.dtype)))
    return tuple(specs)


def has_fixed_shape(kind: Any) -> bool:
    """Return true if all extents of all tensors in a Relax type are numbers; true too for types without a tensor."""
    if isinstance(kind, relax.TupleType):
        return all(has_fixed_shape(field) for field in kind.fields)
    if not isinstance(kind, relax.TensorType):
        return True
    shape = kind.shape
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(n, int | tvm.tirx.IntImm) for n in shape.values)


def build(module: Any, target_text: str) -> Executable:
    """Build a lowered network for the canonical target ``target_text``. On a CPU, kernels without a schedule stay
    unchanged. On a GPU they get TVM's default schedule, without which they cannot run."""
    use_vector_math()
    use_kernel_passes()
    module, constants = _constants_to_parameters(module)
    module = relax.transform.LiftTransformParams()(_split_layout_rewrites(module))
    parameters = _transformed(_reachable(module, _TRANSFORM), constants)
    main = _reachable(module, "main")
    target = parse_target(target_text)
    with compiling_for(target_text):
        return Executable(_compile(main, target).mod, parameters, main)


def calls(expression: Any) -> Iterator[Call]:
    """Yield all calls in a Relax function's body, in order, branches included."""
    if isinstance(expression, Call):
        yield expression
    elif isinstance(expression, relax.SeqExpr):
        for block in expression.blocks:
            for binding in block.bindings:
                yield from calls(binding.value)
        yield from calls(expression.body)
    elif isinstance(expression, relax.If):
        yield from calls(expression.true_branch)
        yield from calls(expression.false_branch)


def kernel_calls(function: Any) -> list[Call]:
    """Return a Relax function's calls of kernels, in order. ``args[0]`` of a call is the kernel's variable, ``args[1]``
    its inputs."""
    return [call for call in calls(function.body) if isinstance(call.op, tvm.ir.Op) and call.op.name in _CALLS]


def _split_layout_rewrites(module: Any) -> Any:
    """Split each kernel that converts the layout of a weight into two: the conversion and the rest."""
    scheduled: dict[Any, Any] = {}
    others: dict[Any, Any] = {}
    for variable, function in module.functions.items():
        # Only kernels that convert layouts go through TVM's pass: it fails on kernels of external code, which have no
        # blocks.
        plain = isinstance(function, tvm.tirx.PrimFunc) and not _re_lays_out(function)
        (others if plain else scheduled)[variable] = function
    split = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(scheduled, module.attrs))
    return tvm.IRModule({**dict(split.functions.items()), **others}, module.attrs)


def _re_lays_out(kernel: Any) -> bool:
    return any("meta_schedule.layout_rewrite_preproc" in block.annotations for block in blocks(kernel.body))


def blocks(statement: Any) -> Iterator[Any]:
    """Yield the blocks of a kernel that are nested in blocks, loops and sequences only, outer blocks first."""
    if isinstance(statement, tvm.s_tir.SBlockRealize):
        yield statement.block
        yield from blocks(statement.block.body)
    elif isinstance(statement, tvm.tirx.SeqStmt):
        for part in statement.seq:
            yield from blocks(part)
    elif isinstance(statement, tvm.tirx.For):
        yield from blocks(statement.body)


def _reachable(module: Any, name: str) -> Any:
    """Return a module with only the function ``name`` and the kernels that it calls."""
    main = module.get_global_var(name)
    used = [main, *(call.args[0] for call in kernel_calls(module[main]))]
    return tvm.IRModule({variable: module[variable] for variable in used}, module.attrs)


class HostNetwork:
    """A network on this machine's CPU, for numerical checks."""

    def __init__(self, executable: Executable) -> None:
        self.secs = 0.0
        """CPU seconds of the calling thread in the last call, without the conversion of inputs and outputs."""
        self._main = _host_machine(executable.module)["main"]
        self._parameters = [tensor_of(array) for array in executable.parameters]

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        """Return the outputs for these inputs."""
        tensors = [tvm.runtime.tensor(np.asarray(each, order="C")) for each in inputs]
        began = time.thread_time()
        result = self._main(*tensors, *self._parameters)
        self.secs = time.thread_time() - began
        return flatten(result)


def compile_host(module: Any) -> HostNetwork:
    """Return a lowered network, built for this machine's CPU. Kernels without a schedule get a contiguous loop
    order."""
    return HostNetwork(build(in_contiguous_order(module), _host_target()))


def run_on_host(module: Any) -> tuple[Array, ...]:
    """Run ``main`` of a module without inputs on this machine's CPU and return its results."""
    executable = _compile(module, parse_target(_host_target()))
    return flatten(_host_machine(executable.mod)["main"]())


def _host_target() -> str:
    return without_late_optimisations(resolve_target(NATIVE))


def _host_machine(module: Any, **options: str) -> Any:
    """Return a virtual machine that runs a compiled module on this machine's CPU.

    The module is linked in an owned folder, which the next run removes if this process is killed meanwhile. A temporary
    folder of TVM would stay.
    """
    with owned_folder("network") as folder:
        library = folder / "network.so"
        if any(each.kind == "llvm" for each in module.imports):
            library.write_bytes(link(module, _host_target()))
        else:  # without a kernel, the library has no code for LLVM: TVM writes it as a source file and compiles that
            module.export_library(str(library), workspace_dir=str(folder))
        linked = tvm.runtime.load_module(str(library))
    return relax.VirtualMachine(linked, tvm.cpu(), **options)


def flatten(result: Any) -> tuple[Array, ...]:
    """Return the tensors of a virtual machine's result as arrays, nested tuples flattened."""
    if hasattr(result, "numpy"):
        return (result.numpy(),)
    return tuple(array for item in result for array in flatten(item))


@mutator
class _Binder(PyExprMutator):  # type: ignore[misc]
    """Replaces every constant by a new parameter."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.variables: list[Any] = []
        self.arrays: list[Any] = []

    def visit_generic_const_(self, constant: GenericConst) -> Any:
        if not hasattr(constant.value, "numpy"):
            return constant
        # One variable for each use, because the kernel that reads a weight chooses its layout.
        variable = relax.Var(f"param_{len(self.variables)}", constant.ty)
        self.variables.append(variable)
        self.arrays.append(constant.value)
        return variable


def _constants_to_parameters(module: Any) -> tuple[Any, list[Any]]:
    function = module["main"]
    binder = _Binder(module)
    body = binder.visit_expr(function.body)
    with_parameters = relax.Function(
        [*function.params, *binder.variables], body, function.ret_ty, function.is_pure, function.attrs
    ).with_attr("num_input", len(function.params))
    result = tvm.IRModule(dict(module.functions.items()), module.attrs)
    result.update_func(module.get_global_var("main"), with_parameters)
    return result, binder.arrays


def _transformed(module: Any, constants: list[Any]) -> tuple[Array, ...]:
    """Run the lifted layout conversion on this machine."""
    if not module[_TRANSFORM].ret_ty.fields:  # a network without weights has nothing to convert
        return ()
    handed_on = _handed_on(module[_TRANSFORM])
    if handed_on is not None:  # no weight is converted
        return tuple(array_of(constants[at]) for at in handed_on)
    executable = _compile(module, parse_target(_host_target()))
    machine = _host_machine(executable.mod, memory_cfg="naive")
    # The function takes and returns tuples of tensors.
    return tuple(array_of(tensor) for tensor in machine[_TRANSFORM](constants))


def _handed_on(function: Any) -> list[int] | None:
    """If a function of one tuple only returns items of this tuple, return the position of each result in it; None if
    any result is computed."""
    bound = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}

    def followed(value: Any) -> Any:
        while value in bound:
            value = bound[value]
        return value

    result = followed(function.body.body)
    if result == function.params[0]:
        return list(range(len(result.ty.fields)))
    items = [followed(each) for each in result.fields] if isinstance(result, relax.Tuple) else []
    of_parameter = (isinstance(each, relax.TupleGetItem) and each.tuple_value == function.params[0] for each in items)
    return [int(each.index) for each in items] if items and all(of_parameter) else None


def _compile(module: Any, target: tvm.target.Target) -> Any:
    transform = relax.transform
    pipeline = [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        tvm.transform.module_pass(lambda module, _: write_in_place(module), opt_level=0, name="WriteInPlace"),
        transform.StaticPlanBlockMemory(),
        *([use_cuda_graph()] if target.kind.name == "cuda" else []),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]
    if target.kind.name != "llvm":
        pipeline.insert(0, default_schedules())
    with target:
        return relax.build(module, target, relax_pipeline=tvm.transform.Sequential(pipeline))
