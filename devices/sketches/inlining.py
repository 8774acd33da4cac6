"""Inlining of element-wise blocks into their readers, as MetaSchedule does."""

from __future__ import annotations

from collections.abc import Collection

from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target


def inline_element_wise(sch: Schedule, target: Target, keep: Collection[str]) -> None:
    """Inline all element-wise blocks of ``main``, except the blocks named in ``keep`` and those that TVM prefers to
    compute once (those with an exp)."""
    context = ms.TuneContext(sch.mod, target=target)
    for rule in (
        ms.schedule_rule.InlineConstantScalars(),
        ms.schedule_rule.AutoInline(
            into_producer=False,
            into_consumer=True,
            inline_const_tensor=True,
            disallow_if_then_else=True,
            require_injective=True,
            require_ordered=True,
            disallow_op=["tirx.exp"],
        ),
    ):
        rule._initialize_with_tune_context(context)
        for name in [block.name_hint for block in reversed(blocks_of(sch))]:
            if name not in keep:
                rule.apply(sch, sch.get_sblock(name, "main"))


def blocks_of(sch: Schedule) -> list[SBlock]:
    """Return the blocks of ``main`` in program order, without the root."""
    root = sch.get_sblock("root", "main")
    return [sch.get(block) for block in sch.get_child_blocks(root)]
