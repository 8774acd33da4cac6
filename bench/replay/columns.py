"""Columns of a replay: the methods that run, their warm starts, and the sizes of their rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from bench.models.laboratory import method_named
from bench.replay.replay_runs import EFFECTS, has_effect, task_policies, with_effect
from policies.search.methods import METHOD_NAMES, Method

BASES = ("fleet", "bansor")
"""Methods in which each effect is switched on or off."""
WARM = ", warm"
"""Suffix of the name of a column with a warm start."""
OWN = 0
"""Stands for the method's own number of trials in a round, which its source gives."""


def all_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the methods that ``--method`` gives: all methods if ``all`` is among them."""
    return METHOD_NAMES if "all" in methods else tuple(methods)


def is_deep(chosen: Method) -> bool:
    """Return true if the method trains a neural network, so that a run of hundreds of trials takes minutes."""
    return chosen.training is not None and chosen.training.learns_on


def with_rounds(methods: Mapping[str, Method], batches: Sequence[int]) -> dict[str, Method]:
    """Return each method with rounds of each size of ``batches`` (:data:`OWN` for the method's own size), by name.

    With several sizes the name has the size, except for the method's own size. A size that equals the method's own is
    not a second column.
    """
    found: dict[str, Method] = {}
    for name, method in methods.items():
        sizes = dict.fromkeys(batch or method.batch for batch in batches)
        for size in sizes:
            plain = len(batches) == 1 or size == method.batch
            found[name if plain else f"{name}, rounds of {size}"] = dataclasses.replace(method, batch=size)
    return found


def with_warm(methods: Mapping[str, Method], warm: Collection[str]) -> dict[str, Method]:
    """Return the methods by name, and those in ``warm`` a second time with the suffix :data:`WARM`."""
    found: dict[str, Method] = {}
    for name, method in methods.items():
        found[name] = method
        if name in warm:
            found[f"{name}{WARM}"] = method
    return found


def effect_variants() -> dict[str, Method]:
    """Return each base, and each base with one effect switched, by name. An effect that the base has is switched off
    (``fleet - ei``), any other one on (``bansor + ei``)."""
    variants = {}
    for base in map(method_named, BASES):
        variants[base.name] = base
        for effect in EFFECTS:
            on = has_effect(base, effect)
            variants[f"{base.name} {'-' if on else '+'} {effect}"] = with_effect(base, effect, not on)
    return variants


def network_variants() -> dict[str, Method]:
    """Return each base with each rule that allocates trials to tasks, by name."""
    return {
        f"{base.name}, {tasks.name}": dataclasses.replace(base, tasks=tasks)
        for base in map(method_named, BASES)
        for tasks in task_policies(base)
    }
