"""Torch modules and ``.pt2`` files, through torch.export, as Relax modules."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from devices.error_text import brief
from devices.networks.checks.comparison import compare
from devices.networks.dynamic.dimensions import bounded, with_dimensions
from devices.networks.frontend_errors import silenced, unsupported_error
from devices.networks.network import Array, Intermediate, Network, example_array, network_of
from devices.networks.torch.arrays import array_of, tensor_of
from devices.networks.torch.program_file import load_program
from devices.networks.user_file import FORMS
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError

if TYPE_CHECKING:
    import torch

    from fleet_tune.base.shapes.shapes import Shapes


@dataclass(frozen=True)
class _TorchFramework:
    """PyTorch eager on a module. Changes of its inputs or buffers are undone after each run, so that the next run gives
    the same outputs."""

    name: ClassVar[str] = "PyTorch"
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]

    def run(self) -> tuple[Array, ...]:
        import torch

        # inference_mode would refuse views that a module exported to .pt2 may hold.
        with torch.no_grad(), _unchanged(self.module):
            try:
                output = self.module(*self._fresh_inputs())
            except Exception as error:
                raise NetworkError(
                    f"PyTorch cannot run the network on its inputs: {brief(error)}",
                    "fix it, or give inputs that it accepts",
                ) from error
            return tuple(array.copy() for array in _tensors(output))  # outputs may share memory with buffers

    def given(self, inputs: tuple[Array, ...]) -> _TorchFramework:
        return replace(self, inputs=tuple(tensor_of(array) for array in inputs))

    def spread(self) -> float:
        import torch

        try:
            # Sums in another order round some values to the other of two quantisation steps. Entering the flags makes
            # torch warn about a flag that no CPU has.
            with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
                other = self.run()
            relative = compare(other, self.run())[1]
        except Exception:  # only one of the two ways has some operator: no spread is known
            return 0.0
        return relative if math.isfinite(relative) else 0.0

    def measure_secs(self, threads: int, repeats: int) -> float:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        inputs = self._fresh_inputs()
        try:
            with torch.no_grad(), _unchanged(self.module):
                for _ in range(3):
                    self.module(*inputs)
                times = []
                for _ in range(repeats):
                    start = time.perf_counter()
                    self.module(*inputs)
                    times.append(time.perf_counter() - start)
        finally:
            torch.set_num_threads(before)
        return statistics.median(times)

    def intermediates(self) -> tuple[Intermediate, ...]:
        from devices.networks.torch import intermediates

        with silenced():
            return intermediates.intermediates(intermediates.graph_of(self.module, self.inputs))

    def returning(self, values: Sequence[Intermediate], folder: Path) -> Network:  # noqa: ARG002 - it needs no file
        from devices.networks.torch import intermediates

        with silenced():
            module = intermediates.returning(intermediates.graph_of(self.module, self.inputs), values)
        return from_torch("values", module, self.inputs, "the network")

    def _fresh_inputs(self) -> list[torch.Tensor]:
        return [value.clone() for value in self.inputs]


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Restore the buffers of ``module``, with their values, at the end."""
    import torch

    had = [
        (owner, name, buffer, buffer.clone())
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for owner, name, buffer, value in had:
            if not torch.equal(buffer, value):
                buffer.copy_(value)
            if getattr(owner, name, None) is not buffer:
                setattr(owner, name, buffer)


def _tensors(output: object) -> Iterator[Array]:
    """Yield the tensors of a module's output in the order in which torch.export flattens them."""
    import torch
    from torch.utils import _pytree as pytree  # the order torch.export itself uses

    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield array_of(leaf)


def from_torch(
    name: str,
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    where: str,
    dynamic_shapes: Any = None,
    asked: Shapes | None = None,
) -> Network:
    """Return the network of a torch module.

    Args:
        name: its name.
        module: the module.
        inputs: its example inputs.
        where: the user's name for it, for messages.
        dynamic_shapes: the dynamic dimensions of the inputs, in the form of torch.export.export.
        asked: the user's bounds of these dimensions.

    Raises :class:`NetworkError`, :class:`UnsupportedNetworkError`, and the errors of
    :func:`devices.networks.dynamic.dimensions.bounded`.
    """
    from devices.networks.torch.dimensions import dimension_names, dynamic_dimensions
    from devices.networks.torch.export import exported

    module = module.eval()
    with silenced():
        program = exported(module, inputs, where, dynamic_shapes)
    found = dynamic_dimensions(program, dimension_names(program, module, dynamic_shapes), where)
    shapes = bounded(list(found.values()), asked, where)
    network = _from_program(name, program, _TorchFramework(module, inputs), where)
    return with_dimensions(network, shapes, {symbol: each.name for symbol, each in found.items()})


def from_pt2(file: Path, trusted: bool = False, asked: Shapes | None = None) -> Network:
    """Return the network in the file. ``trusted``: run code that the file contains (see
    :mod:`devices.networks.torch.program_file`). ``asked``: the user's bounds of its dynamic dimensions."""
    import torch

    from devices.networks.torch.dimensions import dynamic_dimensions, program_inputs, sum_of
    from devices.networks.torch.operators import quantization  # noqa: F401 - registers the operators that the file may have

    with silenced():
        try:
            program = load_program(file, trusted)
        except NetworkError:
            raise
        except Exception as error:
            raise NetworkError(f"{file} is not a network saved by torch.export: {brief(error)}", FORMS) from error
    found = dynamic_dimensions(program, {}, str(file))
    shapes = bounded(list(found.values()), asked, str(file))
    given: Any = program.example_inputs or ((), {})
    inputs, keywords = given if isinstance(given, tuple) and len(given) == 2 else (given, ())
    if keywords or not isinstance(inputs, tuple | list) or not all(isinstance(value, torch.Tensor) for value in inputs):
        raise UnsupportedNetworkError(
            f"{file} takes inputs that are not positional tensors", "export it with positional tensor arguments only"
        )
    made_up = not inputs
    if made_up:
        most = {} if shapes is None else {each.name: each.most for each in shapes.dimensions}
        extents = {symbol: most[each.name] for symbol, each in found.items()}
        inputs = tuple(
            tensor_of(example_array(tuple(shape), str(value.dtype).removeprefix("torch."), index))
            for index, value in enumerate(program_inputs(program).values())
            for sums in [map(sum_of, value.shape)]
            for shape in [[each.at(extents) for each in sums if each is not None]]
        )
    module = program.module(check_guards=False)  # torch's guard wants a sum of two extents to be at least 4
    network = _from_program(file.stem, program, _TorchFramework(module, tuple(inputs)), str(file))
    network = replace(network, inputs_from="") if made_up else network
    return with_dimensions(network, shapes, {symbol: each.name for symbol, each in found.items()})


def _refuse_values(program: torch.export.ExportedProgram, where: str) -> None:
    """Raise :class:`UnsupportedNetworkError` for values that are not arrays of real numbers, and for networks whose
    outputs are empty."""
    from devices.networks.torch.node_locations import unlike_arrays

    unlike = unlike_arrays(program)
    if unlike:
        raise UnsupportedNetworkError(
            f"{where}: {unlike}", "compute with dense tensors of real numbers (of complex ones: the two parts)"
        )
    given = [value for value in program.graph.output_node().args[0] if hasattr(value, "meta")]
    shapes = [each.meta["val"].shape for each in given if hasattr(each.meta.get("val"), "shape")]
    fixed = [[extent for extent in shape if isinstance(extent, int)] for shape in shapes]  # others depend on data
    if fixed and all(0 in shape for shape in fixed):
        raise UnsupportedNetworkError(
            f"{where} returns no numbers: its outputs are empty", "give inputs that are not empty"
        )


def _refuse_random(program: torch.export.ExportedProgram, where: str) -> None:
    from devices.networks.torch.node_locations import random_results

    random = random_results(program)
    if random:
        raise UnsupportedNetworkError(
            f"{where} has operators with random results: {', '.join(random)}",
            "make these inputs of the network, and leave dropout to training",
        )


def _from_program(name: str, program: torch.export.ExportedProgram, framework: _TorchFramework, where: str) -> Network:
    from devices.networks.torch.node_locations import first_of_each, with_place
    from devices.networks.torch.operators.branches import inline_branches
    from devices.networks.torch.operators.corrections import drop_other_outputs, translated, unknown_operators
    from devices.networks.torch.operators.decompositions import WHOLE_OPERATORS, decompose, decompose_further

    _refuse_values(program, where)
    refusal = UnsupportedNetworkError(f"{where} cannot be imported", "simplify the network")
    inline_branches(program)
    for whole in (WHOLE_OPERATORS, ()):
        simpler = program
        with silenced():
            try:
                simpler = decompose(program, whole)
                simpler = decompose_further(simpler, unknown_operators(simpler))
                if not drop_other_outputs(simpler):
                    raise UnsupportedNetworkError(f"{where} returns no tensor", "return the tensors to compute")
                _refuse_random(simpler, where)
                module = translated(simpler)
            except UnsupportedNetworkError:
                raise
            except Exception as error:
                # Before the decomposition, many operators have no translation: they are not at fault.
                unknown = [] if simpler is program else first_of_each(simpler, unknown_operators(simpler))
                refusal = unsupported_error(error, where, unknown, say=with_place)
                refusal.__cause__ = error
                continue
        arrays = tuple(array_of(tensor) for tensor in framework.inputs)
        return network_of(name, module, arrays, framework)
    raise refusal
