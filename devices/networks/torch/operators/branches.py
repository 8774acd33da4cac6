"""torch.cond without branches: both branches are computed and a result is selected, as branches have no side effects.

Importing this module loads torch.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

_COND = torch.ops.higher_order.cond
_ATEN = torch.ops.aten


def inline_branches(program: torch.export.ExportedProgram) -> None:
    """Inline the branches of ``program`` into its graph, nested branches too. A torch.cond whose results are not all
    tensors stays."""
    graph, replaced = program.graph, True
    while replaced:
        conditions = [node for node in graph.nodes if node.target is _COND]
        replaced = sum(_inlined(program.graph_module, node) for node in conditions) > 0
        graph.eliminate_dead_code()
    program.graph_module.recompile()


def _inlined(module: fx.GraphModule, node: fx.Node) -> bool:
    """Replace ``node``. Returns true if that was possible."""
    arguments: tuple[fx.Node, fx.Node, fx.Node, tuple[fx.Node, ...]] = node.args  # type: ignore[assignment]
    condition, taken, otherwise, operands = arguments
    graph, ours = module.graph, [each for each in node.users if each.target is operator.getitem]
    if not isinstance(condition, fx.Node) or len(ours) < len(node.users):
        return False
    with graph.inserting_before(node):
        one, other = (_copied(module, branch, operands) for branch in (taken, otherwise))
        if not all(isinstance(value, fx.Node) for value in (*one, *other)):
            return False
        flag = graph.call_function(_ATEN.reshape.default, (condition, []))
        pairs = zip(one, other, strict=True)
        chosen = [graph.call_function(_ATEN.where.self, (flag, *pair)) for pair in pairs]
    for user in ours:
        user.replace_all_uses_with(chosen[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _copied(module: fx.GraphModule, branch: fx.Node, operands: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """Copy the nodes of ``branch`` to the current insertion point, and return its outputs."""
    path = str(branch.target)
    body: fx.Graph = module.get_submodule(path).graph  # type: ignore[assignment]
    inputs = [each for each in body.nodes if each.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = dict(zip(inputs, operands, strict=True))
    for each in body.nodes:
        if each.op in ("placeholder", "output"):
            continue
        copies[each] = module.graph.node_copy(each, copies.__getitem__)
        if each.op == "get_attr":
            copies[each].target = f"{path}.{each.target}"
    outputs: tuple[fx.Node, ...] = body.output_node().args[0]  # type: ignore[assignment]
    return tuple(copies.get(each, each) for each in outputs)
