"""Static caches: inputs of a fixed shape that a network returns with some rows replaced, such as a decoder's keys and
values for a fixed number of tokens.

    keys = scatter(old keys, places, keys of the new tokens)

Copying a cache takes longer than writing a few rows of it. The compiled network writes them into its argument, which it
returns. So the caller passes memory that may be overwritten (:mod:`devices.networks.caches.donation`).

Only replacements are written in place, not sums or maxima: so a second run on the overwritten argument returns the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar
from tvm.tirx import PrimFunc

from devices.networks.caches.donation import StaticCache
from devices.networks.graph.ir.calls import is_call
from devices.networks.graph.ir.main_function import reads, results_of, with_values
from devices.networks.graph.legalization.scatters import overwriting


def overwrite_caches(module: tvm.IRModule) -> tuple[tvm.IRModule, tuple[StaticCache, ...]]:
    """Return a scheduled network for CPUs whose ``main`` overwrites its static caches, and these caches.

    A cache is left alone if anything but its write reads the old rows, or if it is returned twice.
    """
    graph = _Graph.of(module)
    found = [cache for at, result in enumerate(graph.results) if (cache := _cache(graph, at, result)) is not None]
    if not found:
        return module, ()
    kernels: dict[Any, PrimFunc] = {}
    renamed: dict[Any, GlobalVar] = {}
    values: dict[Any, Any] = {}
    for each in found:
        for variable, call in each.writes.items():
            old = call.args[0]
            if old not in renamed:
                renamed[old] = GlobalVar(f"{old.name_hint}_overwriting")
                kernels[renamed[old]] = overwriting(module[old])
                relax.expr._update_type(renamed[old], kernels[renamed[old]].ty)
            values[variable] = relax.op.call_tir_inplace(renamed[old], call.args[1], 0, call.ty_args[0])
    changed = tvm.IRModule({**dict(module.functions.items()), **kernels}, module.attrs)
    changed.update_func(changed.get_global_var("main"), with_values(module["main"], values))
    cleaned = relax.transform.DeadCodeElimination(["main"])(relax.transform.Normalize()(changed))
    return cleaned, tuple(each.cache for each in found)


@dataclass(frozen=True)
class _Found:
    """A cache in ``main``."""

    cache: StaticCache
    writes: Mapping[Any, Call]
    """The calls that write into it, by the variables of their results."""


@dataclass(frozen=True)
class _Graph:
    """The function ``main``."""

    module: tvm.IRModule
    bound: Mapping[Any, Any]
    """The value of each variable."""
    uses: Mapping[Any, int]
    """How often each variable is read."""
    results: list[Any]
    """The variable of each output."""
    parameters: Mapping[Any, int]
    """The place of each input."""

    @classmethod
    def of(cls, module: tvm.IRModule) -> _Graph:
        main = module["main"]
        bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
        uses = Counter(variable for value in [*bound.values(), main.body.body] for variable in reads(value))
        parameters = {parameter: at for at, parameter in enumerate(main.params)}
        return cls(module, bound, uses, results_of(main), parameters)

    def memory(self, variable: Any) -> list[Any]:
        """Return the variables that share the memory of ``variable``: itself, the variable that it is a view of, and so
        on."""
        value: Any = self.bound.get(variable)
        if is_call(value, "relax.reshape"):
            (value, _) = value.args
        return [variable, *(self.memory(value) if isinstance(value, relax.Var) else [])]

    def write(self, variable: Any) -> Call | None:
        """Return the call that makes ``variable`` by replacing rows of its first argument. None if no such call makes
        it."""
        call: Any = self.bound.get(variable)
        is_write = is_call(call, "relax.call_tir") and overwriting(self.module[call.args[0]]) is not None
        return call if is_write else None


def _cache(graph: _Graph, at: int, result: Any) -> _Found | None:
    """Return the cache that the network returns as output ``at``. None if this output is no cache."""
    source = last = graph.memory(result)[-1]
    if sum(graph.memory(each)[-1].same_as(last) for each in graph.results) > 1:
        return None
    writes: dict[Any, Call] = {}
    while (call := graph.write(source)) is not None:
        writes[source] = call
        overwritten = graph.memory(call.args[1].fields[0])
        if any(graph.uses[each] > 1 for each in overwritten):
            return None
        source = overwritten[-1]
    if not writes or source not in graph.parameters or not _same_type(source, result):
        return None
    return _Found(StaticCache(graph.parameters[source], at), writes)


def _same_type(one: Any, other: Any) -> bool:
    shapes = [[int(extent) for extent in each.ty.shape.values] for each in (one, other)]
    return shapes[0] == shapes[1] and str(one.ty.dtype) == str(other.ty.dtype)
