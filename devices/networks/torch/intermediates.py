"""Values between the inputs and the outputs of a torch network, made outputs of another module.

Importing this module loads torch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from devices.networks.network import Intermediate
from devices.networks.torch.node_locations import operator_name, place


def graph_of(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """Return a module as a graph of torch's operators. Raises what torch raises."""
    if isinstance(module, fx.GraphModule) and any("val" in node.meta for node in module.graph.nodes):
        graph = module  # from a .pt2 file: exporting it again would lose its source lines
    else:
        graph = torch.export.export(module, inputs).module()
    return copy.deepcopy(graph)  # a plain graph: an exported program's graph has no eval()


def intermediates(graph: fx.GraphModule) -> tuple[Intermediate, ...]:
    """Return the tensors that ``graph`` computes with its inputs."""
    computed: set[fx.Node] = set()
    found = []
    for node in graph.graph.nodes:
        if node.op != "placeholder" and computed.isdisjoint(node.all_input_nodes):
            continue
        computed.add(node)
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        source = node if isinstance(node.target, torch._ops.OpOverload) else node.all_input_nodes[0]
        where = place(source)
        told = f"{operator_name(source)}{f' ({where})' if where else ''} of {_arguments(source)}"
        found.append(Intermediate(node.name, told))
    return tuple(found)


def returning(graph: fx.GraphModule, values: Sequence[Intermediate]) -> fx.GraphModule:
    """Return ``graph`` with ``values`` as its outputs. Changes it."""
    nodes = {node.name: node for node in graph.graph.nodes}
    graph.graph.output_node().args = (tuple(nodes[value.name] for value in values),)
    graph.graph.set_codegen(fx.graph.CodeGen())  # it no longer returns the containers of the module's outputs
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _arguments(node: fx.Node) -> str:
    shown = [_shown(argument) for argument in node.args]
    return ", ".join([*shown, *(f"{name}={_shown(value)}" for name, value in node.kwargs.items())])


def _shown(argument: Any) -> str:
    if isinstance(argument, fx.Node):
        value = argument.meta.get("val")
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return argument.name
    if isinstance(argument, list | tuple) and any(isinstance(each, fx.Node) for each in argument):
        each_of: Iterable[Any] = argument
        return f"[{', '.join(map(_shown, each_of))}]"
    return str(argument)
