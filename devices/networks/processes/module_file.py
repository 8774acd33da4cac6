"""A network's module and its weights in a file. The weights are copied into it once, and another process maps them from
it.

The file is one of :mod:`devices.networks.compiled.tensor_file`: the weights, and the module as JSON text. There, each
weight is a parameter of ``main`` after the inputs. Weights that are small, or of a type that the file does not support,
stay in the text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import Array, array_of, tensor_of
from devices.networks.compiled.tensor_file import can_hold, contents, read
from fleet_tune.base.records.files.atomic_file import write_atomically

# Smaller constants stay in the text: shapes may follow from them, and types would be lost.
_LEAST_BYTES = 4096
_ALIGNMENT = 64
_MODULE, _USES = "module", "uses"


def write_module(module: Any, path: Path) -> None:
    """Write a module to ``path``. Raises OSError."""
    extractor = _WeightExtractor(module)
    main = module["main"]
    body = extractor.visit_expr(main.body)
    without = tvm.IRModule(dict(module.functions.items()), module.attrs)
    parameters = [*main.params, *extractor.variables]
    without.update_func(
        module.get_global_var("main"), relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    )
    text = np.frombuffer(tvm.ir.save_json(without).encode(), np.uint8)
    arrays = {str(at): array for at, array in enumerate(extractor.arrays)}
    # Arrays whose size keeps the next array aligned come first: only aligned memory can be shared with TVM.
    ordered = dict(sorted(arrays.items(), key=lambda item: item[1].nbytes % _ALIGNMENT != 0))
    uses = np.asarray(extractor.uses, np.int64)
    write_atomically(path, contents({**ordered, _USES: uses, _MODULE: text}), durable=False)


def read_module(path: Path, mode: Literal["r+", "c"]) -> Any:
    """Return the module in a file, with its weights mapped from it (``mode`` of
    :func:`devices.networks.compiled.tensor_file.read`). Raises OSError."""
    arrays = read(path, mode)
    module = tvm.ir.load_json(arrays.pop(_MODULE).tobytes().decode())
    uses = [str(at) for at in arrays.pop(_USES)]
    tensors = {key: tensor_of(array) for key, array in arrays.items()}
    parameters = module["main"].params
    inputs = len(parameters) - len(uses)
    bound = {parameter: tensors[key] for parameter, key in zip(parameters[inputs:], uses, strict=True)}
    return relax.transform.BindParams("main", bound)(module) if bound else module


@mutator
class _WeightExtractor(PyExprMutator):  # type: ignore[misc]
    """Replaces each weight by a parameter."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.variables: list[Any] = []
        self.arrays: list[Array] = []
        #: For each parameter, the position of its array.
        self.uses: list[int] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def visit_generic_const_(self, constant: GenericConst) -> Any:
        if not hasattr(constant.value, "numpy"):
            return constant
        array = np.asarray(array_of(constant.value), order="C")
        if array.nbytes < _LEAST_BYTES or not can_hold(array):
            return constant
        # Each use of a tied weight is a constant of its own, with the same memory.
        key = (array.__array_interface__["data"][0], array.shape, array.dtype.str)
        if key not in self._known:
            self._known[key] = len(self.arrays)
            self.arrays.append(array)
        variable = relax.Var(f"weight_{len(self.variables)}", constant.ty)
        self.variables.append(variable)
        self.uses.append(self._known[key])
        return variable
