"""From a network to tasks: the graph pipeline, and one task for each distinct workload of the network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from devices.builds.executables import (
    FIX_SHAPES,
    SymbolicSpec,
    blocks,
    calls,
    compile_host,
    kernel_calls,
    symbolic_specs,
)
from devices.error_text import brief
from devices.networks.checks.comparison import INT8_WEIGHTS, compare, network_tolerance
from devices.networks.checks.intermediates import Compare, first_difference
from devices.networks.graph.folding.constants import fold_constants, fold_lowered_constants
from devices.networks.graph.folding.uniform_values import replace_uniform_values
from devices.networks.graph.fusion.attention import group_attention
from devices.networks.graph.fusion.group_extents import join_group_extents
from devices.networks.graph.fusion.parallel_products import combine_products
from devices.networks.graph.fusion.views import make_output_views
from devices.networks.graph.ir.dynamic_extents import (
    dynamic_variables,
    has_known_shape,
    largest_value,
    simplify_extents,
)
from devices.networks.graph.layouts.channels_last import channels_last, gain, has_convolutions, not_worthwhile
from devices.networks.graph.layouts.transposes import fold_transposes
from devices.networks.graph.legalization.concatenations import mark_in_place
from devices.networks.graph.legalization.float_order import replace_sorts
from devices.networks.graph.legalization.image_convolutions import read_images_as_given
from devices.networks.graph.legalization.operators import LEGALIZED
from devices.networks.graph.legalization.row_writes import write_inner_rows
from devices.networks.graph.low_precision.byte_readers import keep_bytes
from devices.networks.graph.low_precision.grids import Grids
from devices.networks.graph.low_precision.half_products import half_products
from devices.networks.graph.low_precision.integer_products import ProductCounts, count_products, integer_products
from devices.networks.graph.low_precision.quantization import in_floats, quantizes
from devices.networks.graph.precisions.conversion import HALF_TYPES, convert
from devices.networks.graph.precisions.savings import convertible_products
from devices.networks.graph.rewrites.lifted_views import lift_views
from devices.networks.graph.rewrites.rewriter import rewrite
from devices.networks.graph.rewrites.scaled_weights import scale_weights
from devices.networks.graph.rewrites.transposed_convolutions import replace_transposed_convolutions
from devices.networks.network import Array, Network
from devices.networks.symbolic_variables import named_shapes
from devices.networks.tasks.extraction import DynamicTask, extract_tasks
from devices.sketches.description.accesses import REDUCTION, leaf_blocks
from devices.sketches.dynamic.divisions import simplify_divisions
from devices.sketches.dynamic.joined_extents import join_extents
from devices.sketches.dynamic.rows import is_dynamic
from devices.targets import device_kind, parse_target
from fleet_tune.base.domain import DeviceClass, Task
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError
from fleet_tune.base.precision import Conversion, ConvertibleProduct, Precision
from fleet_tune.base.shapes.dimensions import Dimension
from fleet_tune.base.shapes.shapes import Shapes

# Operators of Relax that the build turns into calls of kernels or of the runtime.
_RUNTIME_OPERATORS = frozenset({"relax.call_tir", "relax.reshape", "relax.call_pure_packed", "relax.call_dps_packed"})
_KERNELS = frozenset({"relax.call_tir", "relax.call_dps_packed"})
_QUANTISED = 5e-2
_MOST_SPREAD = 0.15
_UNTUNED_RUNS, _UNTUNED_SECS = 3, 0.1
"""An untuned network runs this often, or for this many seconds. (The first run of a small network takes far longer.)"""

__all__ = [
    "DisagreementError",
    "LoweredNetwork",
    "LoweringStepError",
    "LoweringSteps",
    "RunUntuned",
    "UntunedResult",
    "agreement",
    "check_network",
    "check_values",
    "compare",
    "computes",
    "import_network",
    "lower_network",
    "run_untuned",
    "tolerance",
    "with_operator",
]


RunUntuned = Callable[[Network], tuple["LoweredNetwork", tuple[Array, ...]]]


@dataclass(frozen=True)
class UntunedResult:
    """The result of a lowered network without any schedule, on one core of this machine's CPU."""

    outputs: tuple[Array, ...]
    secs: float
    """CPU seconds of the fastest of a few runs. On an otherwise idle host, a run takes about as long."""


@dataclass(frozen=True)
class LoweredNetwork:
    """A network lowered for one device class."""

    name: str
    fingerprint: str
    device_class: DeviceClass
    module: Any = field(repr=False)
    """IRModule of ``main`` and the kernels it calls."""
    tasks: tuple[Task, ...]
    """One task for each distinct workload that can be tuned, in the order of the first calls."""
    workloads: Mapping[str, str] = field(repr=False)
    """Hash of the workload of each kernel, by the kernel's name in ``module``. Other kernels are not tuned."""
    inputs: tuple[tuple[str, SymbolicSpec], ...] = field(repr=False)
    """Name, shape and dtype of each input."""
    outputs: tuple[SymbolicSpec, ...] = field(repr=False)
    shapes: Shapes | None = None
    """Bounds and weights of its dynamic dimension; None for fixed shapes."""
    dynamic: Mapping[str, DynamicTask] = field(default_factory=dict, repr=False)
    """Kernels over dynamic dimensions that are tuned: the task of each, by the kernel's name in ``module``."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Optional steps of lowering that failed on this network, each with the reason. The network is correct without
    them, but slower."""
    quantized: bool = False
    """True if the network rounds values to integers of few bits."""
    framework_spread: float = 0.0
    """Relative error between the framework's own ways to compute a quantised network; see
    :meth:`devices.networks.network.Framework.spread`."""
    products: ProductCounts | None = None
    """Products of a quantised network, in integers and in floats. None for other networks, and if the step that writes
    products in integers was skipped."""
    halves: tuple[str, ...] = ()
    """Half-precision types that values of the network are rounded to, even if no kernel reads or writes them."""
    conversion: Conversion | None = None
    """The conversion that was applied to it. None if it was not converted."""
    convertible: tuple[ConvertibleProduct, ...] = ()
    """If precisions are to be chosen: the products that another precision makes faster."""

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of its constants."""
        constants = {
            each: math.prod(each.value.shape) * tvm.DataType(str(each.value.dtype)).bits // 8
            for call in kernel_calls(self.module["main"])
            for each in call.args[1].fields
            if isinstance(each, GenericConst)
        }
        return sum(constants.values())

    def workload_of(self, name: str) -> str:
        """Return the hash of the workload that a kernel of the compiled network is tuned as. Empty if it is not tuned.

        Args:
            name: the kernel's name (see :func:`devices.timing.in_network.kernel_of`).
        """
        return self.dynamic[name].workload if name in self.dynamic else self.workloads.get(name, "")

    def repeats_of(self, name: str) -> int:
        """Return how many times the kernel does the work of its task in a call at the typical extent."""
        return self.dynamic[name].repeats if name in self.dynamic else 1

    @property
    def precision(self) -> Precision | None:
        """Precision that it was converted to. None if it was not converted."""
        return None if self.conversion is None else self.conversion.precision


class LoweringStepError(UnsupportedNetworkError):
    """TVM failed at a required step of lowering."""


@dataclass
class LoweringSteps:
    """Runs the steps of lowering a network, and announces each before it begins."""

    name: str
    without: Mapping[str, str] = field(default_factory=dict)
    """Optional steps to skip, each with the reason."""
    report_step: Callable[[str, bool], None] = lambda step, optional: None  # noqa: ARG005
    """Takes the name of a step, and true if it is optional."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Steps that were skipped, by request or because TVM raised an error in them."""
    products: ProductCounts | None = None
    """Products of a quantised network, once they are counted."""
    convertible: tuple[ConvertibleProduct, ...] = ()
    """See :attr:`LoweredNetwork.convertible`."""

    def needed(self, step: str, apply: Callable[[Any], Any], before: Any) -> Any:
        """Return the result of a required step. Raises :class:`LoweringStepError`, or the NetworkError that ``apply``
        raises."""
        self.report_step(step, False)
        try:
            return apply(before)
        except NetworkError:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise LoweringStepError(
                f"{self.name} cannot be lowered: {step}: {reason}", "simplify the network"
            ) from error

    def optional(self, step: str, apply: Callable[[Any], Any], before: Any) -> Any:
        """Return the result of an optional step, or the unchanged module if TVM fails."""
        if step in self.without:
            self.left_out.append((step, self.without[step]))
            return before
        self.report_step(step, True)
        try:
            return apply(before)
        except Exception as error:  # any error of TVM, std::bad_alloc included: the network is correct without the step
            self.left_out.append((step, f"TVM fails at it ({brief(error)})"))
            return before


def import_network(network: Network, device_class: DeviceClass) -> LoweredNetwork:
    """Return :func:`lower_network` of a network."""
    steps = LoweringSteps(network.name)
    module, names = network.relax_module, network.input_names
    return lower_network(module, network.fingerprint, names, device_class, steps, network.conversion, network.shapes)


def lower_network(
    relax_module: Any,
    fingerprint: str,
    input_names: Sequence[str],
    device_class: DeviceClass,
    steps: LoweringSteps,
    conversion: Conversion | None = None,
    shapes: Shapes | None = None,
) -> LoweredNetwork:
    """Lower the network in ``relax_module`` for ``device_class``, convert it, and extract its tasks. ``shapes``: the
    shapes of its dynamic dimensions.

    Raises :class:`UnsupportedNetworkError` naming the operators that cannot be lowered, or whose results have shapes
    that depend on the data, and for a precision that changes nothing in it. Raises :class:`LoweringStepError` if TVM
    fails.
    """
    if shapes is not None and device_kind(device_class.target) != "cpu":
        raise UnsupportedNetworkError(
            f"{steps.name} has dynamic dimensions ({shapes}), which only CPUs run, and {device_class.name} is none",
            "give it one extent for this device: --shapes NAME=EXTENT",
        )
    module = _lower(relax_module, parse_target(device_class.target), conversion, steps)
    _refuse_whole(module, steps.name)
    extracted = steps.needed("the extraction of tasks", lambda each: extract_tasks(each, device_class, shapes), module)
    main = module["main"]
    return LoweredNetwork(
        name=steps.name,
        fingerprint=fingerprint,
        device_class=device_class,
        module=module,
        tasks=extracted.tasks,
        workloads=extracted.workloads,
        shapes=shapes,
        dynamic=extracted.dynamic,
        inputs=tuple(
            (name, SymbolicSpec(shape, str(parameter.ty.dtype)))
            for name, shape, parameter in zip(input_names, named_shapes(module), main.params, strict=True)
        ),
        outputs=symbolic_specs([main.ret_ty]),
        left_out=tuple(steps.left_out),
        quantized=quantizes(relax_module),
        products=steps.products,
        halves=_halves(relax_module["main"]),
        conversion=conversion,
        convertible=steps.convertible,
    )


def computes(lowered: LoweredNetwork) -> bool:
    """Return true if the network has a kernel. A network that only returns its inputs, or views of them, has none."""
    main = lowered.module["main"]
    return any(isinstance(call.op, tvm.ir.Op) and call.op.name in _KERNELS for call in calls(main.body))


class DisagreementError(NetworkError):
    """An imported network and its framework compute different outputs."""


def check_network(lowered: LoweredNetwork, network: Network) -> tuple[float, float]:
    """Run the untuned network on this machine's CPU and compare it with its framework; see :func:`agreement`."""
    outputs = run_untuned(lowered.module, network.example_inputs).outputs
    return agreement(lowered, outputs, network.framework_outputs())


def run_untuned(module: Any, inputs: Sequence[Array]) -> UntunedResult:
    """Run a lowered network on this machine's CPU, without any schedule."""
    network = compile_host(module)
    times: list[float] = []
    while sum(times) < _UNTUNED_SECS and len(times) < _UNTUNED_RUNS:
        outputs = network(*inputs)
        times.append(network.secs)
    return UntunedResult(outputs, min(times))


def agreement(lowered: LoweredNetwork, outputs: tuple[Array, ...], expected: tuple[Array, ...]) -> tuple[float, float]:
    """Return the largest absolute and relative error of the untuned network (see
    :func:`devices.networks.checks.comparison.compare`). Raises :class:`DisagreementError` if the relative error is too
    large."""
    absolute, relative = compare(outputs, expected)
    limit = tolerance(lowered)
    if not relative <= limit:
        converted = "" if lowered.conversion is None else f" (converted to {lowered.conversion.options})"
        raise DisagreementError(
            f"the imported network {lowered.name}{converted} disagrees with its framework: relative error "
            f"{relative:.2g}, where rounding explains {limit:.2g}",
            "report the network: an operator of it is imported wrongly",
        )
    return absolute, relative


def with_operator(error: DisagreementError, network: Network, run: RunUntuned) -> NetworkError:
    """Return ``error`` with the operator at which ``network`` and its framework begin to differ, if it can be found.

    Args:
        error: the disagreement.
        network: the network.
        run: lowers another network, and returns it and its outputs.
    """
    try:
        found = first_difference(network, _errors_by(run))
    except Exception as reason:  # any error of TVM, torch or onnx over a network that returns its values
        return NetworkError(
            f"{error.problem}; the operator at fault is not found: {brief(reason)}",
            "report the network: an operator of it is imported wrongly",
        )
    if found is None:
        return NetworkError(
            f"{error.problem}; each of its operators agrees", "report the network: operators are joined wrongly in it"
        )
    value, relative = found
    return NetworkError(
        f"{error.problem}; they begin to differ at the operator {value.operator}: relative error {relative:.2g}",
        "report this operator with its arguments, of which a network of one operator is made to reproduce it; or write "
        "it with other operators",
    )


def check_values(network: Network, run: RunUntuned) -> int:
    """Compare the values between the inputs and the outputs of ``network`` with its framework's, and return how many
    there are. ``run`` as for :func:`with_operator`.

    Raises :class:`NetworkError` with the first operator that differs, and any error that the libraries raise over a
    network that returns its values.
    """
    found = first_difference(network, _errors_by(run))
    if found is not None:
        value, relative = found
        raise NetworkError(
            f"the imported network {network.name} disagrees with its framework at the operator {value.operator}: "
            f"relative error {relative:.2g}; its outputs do not show it",
            "report this operator with its arguments; or write it with other operators",
        )
    return len(network.framework.intermediates())


def _errors_by(run: RunUntuned) -> Compare:
    def errors_of(opened: Network) -> list[float]:
        lowered, outputs = run(opened)
        limit = tolerance(lowered)
        errors = [
            compare((ours,), (theirs,))[1] for ours, theirs in zip(outputs, opened.framework_outputs(), strict=True)
        ]
        return [0.0 if relative <= limit else relative for relative in errors]

    return errors_of


def tolerance(lowered: LoweredNetwork) -> float:
    """Return the relative error that rounding alone may reach (see
    :func:`devices.networks.checks.comparison.network_tolerance`).

    In a quantised network, the order of summation decides to which of two steps a value halfway between them is
    rounded. A step is a 127th to a 255th of the largest value, and it leads to a few more steps in later layers. In a
    deep network there are many, and if the framework has two ways to compute the network, these differ as much. Weights
    of int8 differ from the framework's weights by up to half a step, which is a 127th of the largest weight in their
    column.
    """
    kernels = [lowered.module[call.args[0]] for call in kernel_calls(lowered.module["main"])]
    held = {str(spec.dtype) for kernel in kernels for spec in _buffers(kernel)}
    held |= {*lowered.halves, *(spec.dtype for spec in lowered.outputs)}
    if lowered.conversion is not None:
        held |= {HALF_TYPES.get(each, INT8_WEIGHTS) for each in lowered.conversion.precisions}
    dynamic = () if lowered.shapes is None else lowered.shapes.dynamic
    longest = max((_longest_sum(kernel, dynamic) for kernel in kernels), default=1)
    rounding = network_tolerance(held, len(kernels), longest)
    if not lowered.quantized:
        return rounding
    # Twice, because the spread and the error compared with it are each the largest error of one sample.
    return max(rounding, _QUANTISED, min(2 * lowered.framework_spread, _MOST_SPREAD))


def _halves(main: Any) -> tuple[str, ...]:
    """Return the half-precision types of the values of ``main``: ``x.to(bfloat16).to(float32)`` becomes part of a
    kernel on float32, or is removed."""
    types = (binding.var.ty for block in main.body.blocks for binding in block.bindings)
    return tuple(sorted({str(t.dtype) for t in types if isinstance(t, relax.TensorType)} & {"float16", "bfloat16"}))


def _longest_sum(kernel: Any, dynamic: Sequence[Dimension]) -> int:
    """Return the terms of the longest reduction of a kernel, at the largest extents of its dynamic dimensions. 1 if it
    has no reduction. Axes whose length varies (windows of uneven pooling, which are short) do not count."""
    blocks = leaf_blocks(kernel).values() if hasattr(kernel.body, "block") else ()
    axes = ([axis for axis in block.iter_vars if int(axis.iter_type) == REDUCTION] for block in blocks)

    def most(terms: Any) -> int:
        return int(terms) if isinstance(terms, tirx.IntImm) else largest_value(terms, dynamic) or 1

    return max((math.prod(most(axis.dom.extent) for axis in over) for over in axes), default=1)


def _buffers(kernel: Any) -> list[Any]:
    return [parameter for parameter in kernel.params if hasattr(parameter, "dtype")]


# --- graph pipeline --------------------------------------------------------------------------------------------------


def _lower(module: Any, target: tvm.target.Target, conversion: Conversion | None, steps: LoweringSteps) -> Any:
    """Lower Relax operators to fused TensorIR functions, with constants as arguments whose layout is free."""
    transform, sequential, name = relax.transform, tvm.transform.Sequential, steps.name
    canonical = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(["main"]),
    ]
    with target:
        if dynamic_variables(module["main"]):
            module = steps.needed("the bounds of dynamic dimensions", simplify_extents, module)
        module = steps.needed("the decomposition of operators", sequential(canonical), module)
        _refuse_data_dependent(module["main"], name)
        is_quantised = quantizes(module)
        if dynamic_variables(module["main"]):
            module = steps.optional("values that are one number", replace_uniform_values, module)
        module = steps.needed("quantisation as arithmetic", in_floats, module)
        module = steps.optional("the rewrites of the graph", rewrite, module)
        module = steps.optional("the folding of constants", fold_constants, module)
        module = steps.optional("the form of transposed convolutions", replace_transposed_convolutions, module)
        module = steps.optional("the lifting of reshapes", lift_views, module)
        # One product instead of several saves waking the other threads. A single core has no other threads.
        if target.kind.name != "llvm" or int(target.attrs.get("num-cores", 2)) > 1:
            module = steps.optional("the combination of products of one input", combine_products, module)
        as_given = module
        if has_convolutions(module["main"]):
            module = steps.optional("the choice of layouts", channels_last, module)
        module = steps.needed("the normal form", transform.Normalize(), module)
        # Folds the transposed weights, and joins the transposes that the choice of layouts has left.
        module = steps.optional("the folding of transposes", fold_transposes, module)
        if has_convolutions(as_given["main"]):
            module = _in_worthwhile_layouts(as_given, module, steps)
        if conversion is None and target.kind.name == "llvm":  # conversions need constant weights
            module = steps.optional("scales as part of weights", scale_weights, module)
        _refuse_constant(module["main"], name)
        module = steps.needed("the order of floats", replace_sorts, module)

        def in_integers(before: Any) -> Any:
            if not is_quantised:
                return integer_products(before, target)
            grids = Grids(before["main"])
            after = integer_products(before, target, grids)
            steps.products = count_products(grids, target)
            return after

        module = steps.optional("products in integers", in_integers, module)
        if conversion is not None:
            if conversion.precision is Precision.AUTO:
                steps.convertible = convertible_products(module["main"], target)
            # The conversion is this late so that no rewrite removes a rounding, weights have the layout that kernels
            # read, and quantised products stay. It comes before the products of a type take the form that its
            # instructions need.
            step = f"the conversion to {conversion.precision}"
            module = steps.needed(step, partial(convert, conversion, name), module)
        module = steps.optional("products of 16 bits", lambda each: half_products(each, target), module)
        if target.kind.name == "llvm":
            module = steps.optional("images as they are given", read_images_as_given, module)
        libraries = relax.pipeline.library_dispatch_passes(target)
        if target.kind.name == "llvm":
            module = steps.optional("attention in one kernel", group_attention, module)
            module = steps.optional("rows written without transposes", write_inner_rows, module)
        module = steps.needed("the choice of libraries", sequential(libraries), module)
        module = steps.needed("the lowering of operators", transform.LegalizeOps(LEGALIZED), module)
        _refuse_unlowered(module["main"], name)
        groups = sequential([transform.FuseOps(), transform.Normalize()])
        fusion = [transform.FuseTIR(), transform.DeadCodeElimination(["main"])]
        # A reshape alone is a view at run time: no kernel to tune.
        views = [transform.RewriteDataflowReshape(), transform.DeadCodeElimination(["main"])]
        module = steps.needed("the patterns of kernels", transform.AnnotateTIROpPattern(), module)
        module = steps.optional("the folding of lowered constants", fold_lowered_constants, module)
        _refuse_constant(module["main"], name)
        grouped = steps.optional("the grouping of operators", groups, module)
        grouped = steps.optional("bytes between kernels", keep_bytes, grouped)
        grouped = steps.optional("the extents of groups", join_group_extents, grouped)
        module = steps.optional("fusion", lambda _: sequential(fusion)(grouped), module)
        module = steps.optional("reshapes without a copy", sequential(views), module)
        module = steps.optional("outputs without a copy", make_output_views, module)
        module = steps.optional("indices without divisions", simplify_divisions, module)
        module = steps.optional("rows of joined dimensions", join_extents, module)
        module = steps.optional("free layouts of weights", transform.AttachAttrLayoutFreeBuffers(), module)
        if target.kind.name == "llvm":
            module = steps.optional("concatenations in place", mark_in_place, module)
        return module


def _in_worthwhile_layouts(as_given: Any, module: Any, steps: LoweringSteps) -> Any:
    """Return the best of three modules: ``as_given``, ``module`` (all convolutions channels last), and a module in
    which only those convolutions are channels last that are worth their changes of layout."""
    normalize = relax.transform.Normalize()

    def in_part(given: Any) -> Any:
        apart = not_worthwhile(given, module)
        return fold_transposes(normalize(channels_last(given, apart))) if apart else given

    in_some = steps.optional("the choice of some layouts", in_part, as_given)
    best = max((module, in_some, as_given), key=lambda each: gain(as_given, each))
    return steps.needed("the normal form", normalize, best)


def _refuse_constant(main: Any, name: str) -> None:
    """Raise an error for a network whose output is constant: the build needs something to compute."""
    result = main.body.body
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    while result in bound:
        result = bound[result]
    if isinstance(result, tvm.ir.GenericConst):
        raise UnsupportedNetworkError(f"{name}: the output does not depend on the inputs", "remove it")


def _refuse_data_dependent(main: Any, name: str) -> None:
    """Raise an error for shapes that depend on data: apart from dynamic dimensions, kernels are compiled and measured
    for shapes that are known before the network runs."""
    dynamic = list(dynamic_variables(main).values())
    for block in main.body.blocks:
        for binding in block.bindings:
            if has_known_shape(binding.var.ty, dynamic):
                continue
            call = binding.value
            named = isinstance(call, tvm.ir.Call) and isinstance(call.op, tvm.ir.Op)
            source = f"operator {call.op.name.removeprefix('relax.')}" if named else f"value {binding.var.name}"
            raise UnsupportedNetworkError(
                f"{name}: the {source} gives a tensor whose shape depends on data", FIX_SHAPES
            )


def _refuse_whole(module: Any, name: str) -> None:
    """Raise an error for kernels over a dynamic dimension that are not made of blocks with axes: TVM's running sums and
    sorts do not support variable extents."""
    for variable, function in module.functions.items():
        if is_dynamic(function) and not any(len(block.iter_vars) for block in blocks(function.body)):
            operator = re.sub(r"\d+$", "", variable.name_hint.removeprefix("fused_"))
            raise UnsupportedNetworkError(
                f"{name}: the operator {operator} cannot be compiled over a dynamic dimension",
                "give the dimension one extent: --shapes NAME=EXTENT",
            )


def _refuse_unlowered(main: Any, name: str) -> None:
    unknown = sorted(
        {
            call.op.name
            for call in calls(main.body)
            if isinstance(call.op, tvm.ir.Op)
            and call.op.name not in _RUNTIME_OPERATORS
            and isinstance(call.ty, relax.TensorType | relax.TupleType)
        }
    )
    if unknown:
        raise UnsupportedNetworkError(
            f"{name} uses operators that cannot be compiled: {', '.join(op.removeprefix('relax.') for op in unknown)}",
            "replace them in the network",
        )
