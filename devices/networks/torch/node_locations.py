"""Locations of operators in a torch network, for errors. Importing this module loads torch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import fx

_LINE = re.compile(r'File "[^"]*?([\w.-]+)", line (\d+)', re.ASCII)
_ROOT = "L['self']"


def operator_name(node: fx.Node) -> str:
    """Return torch's name of an operator: ``add.Tensor``."""
    return str(getattr(node.target, "__name__", node.target))


def place(node: fx.Node) -> str:
    """Return the module of the network that contains ``node`` and the source line that it comes from, as far as they
    are known."""
    modules = node.meta.get("nn_module_stack") or {}
    paths = [str(path).removeprefix(_ROOT).removeprefix(".") for path, *_ in modules.values()]
    lines = _LINE.findall(node.meta.get("stack_trace") or "")
    told = [f"in {path}" for path in paths[-1:] if re.fullmatch(r"[\w.@-]+", path, re.ASCII)]
    told += [f"{file}:{line}" for file, line in lines[-1:]]
    return ", ".join(told)


def with_place(node: fx.Node) -> str:
    """Return the operator with its location: ``add.Tensor (in layers.0, net.py:12)``."""
    where = place(node)
    return f"{operator_name(node)} ({where})" if where else operator_name(node)


def first_of_each(program: torch.export.ExportedProgram, operators: Iterable[str]) -> list[str]:
    """Return these operators by name, each with the location of its first node."""
    wanted, found = set(operators), dict[str, str]()
    for node in program.graph.nodes:
        if node.op == "call_function" and operator_name(node) in wanted:
            found.setdefault(operator_name(node), with_place(node))
    return [found.get(name, name) for name in sorted(wanted)]


def unlike_arrays(program: torch.export.ExportedProgram) -> str:
    """Return the first value of ``program`` that no kernel computes with, in words. Empty if there is none."""
    signature = program.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    weights |= signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not (value.is_complex() or value.layout != torch.strided):
            continue
        kind = "has complex numbers" if value.is_complex() else f"is a sparse tensor ({value.layout})"
        if node.op == "placeholder":
            what = f"the weight {weights[node.name]}" if node.name in weights else f"the input {node.name!r}"
            return f"{what} {kind}"
        return f"the result of {with_place(node)} {kind}"
    return ""


def random_results(program: torch.export.ExportedProgram) -> list[str]:
    """Return the operators of ``program`` whose results are random, each with the location of its first node."""
    random = [
        operator_name(node)
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        and node.users
    ]
    return first_of_each(program, random)
