"""Columns of a replay: which methods run, from what, and in rounds of what size."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from bench.models.laboratory import method_named
from bench.replay.replay_runs import EFFECTS, has_effect, task_policies, with_effect
from policies.search.methods import METHOD_NAMES, Method

BASES = ("fleet", "bansor")
"""Methods in which each effect is switched."""
WARM = ", warm"
"""End of the name of a method that has a warm start."""
OWN = 0
"""Stands for the size that a method's own source gives its rounds."""


def all_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods that ``--method`` names: some of them, or ``all``."""
    return METHOD_NAMES if "all" in methods else tuple(methods)


def is_deep(chosen: Method) -> bool:
    """Return true if the method trains a neural network, so that a run of hundreds of trials takes minutes."""
    return chosen.training is not None and chosen.training.learns_on


def with_rounds(methods: Mapping[str, Method], batches: Sequence[int]) -> dict[str, Method]:
    """The methods in rounds of each size of ``batches`` (:data:`OWN`: their own), one after the other.

    With several sizes a name says which, unless it is the method's own; a size that a method has anyway is not another
    column.
    """
    found: dict[str, Method] = {}
    for name, method in methods.items():
        sizes = dict.fromkeys(batch or method.batch for batch in batches)
        for size in sizes:
            plain = len(batches) == 1 or size == method.batch
            found[name if plain else f"{name}, rounds of {size}"] = dataclasses.replace(method, batch=size)
    return found


def with_warm(methods: Mapping[str, Method], warm: Collection[str]) -> dict[str, Method]:
    """The methods, each of ``warm`` a second time by the name of a warm start."""
    found: dict[str, Method] = {}
    for name, method in methods.items():
        found[name] = method
        if name in warm:
            found[f"{name}{WARM}"] = method
    return found


def effect_variants() -> dict[str, Method]:
    """Each base with each effect switched: off where it has it, on where not (``fleet - ei``, ``bansor + ei``)."""
    variants = {}
    for base in map(method_named, BASES):
        variants[base.name] = base
        for effect in EFFECTS:
            on = has_effect(base, effect)
            variants[f"{base.name} {'-' if on else '+'} {effect}"] = with_effect(base, effect, not on)
    return variants


def network_variants() -> dict[str, Method]:
    """Each base with each rule that gives trials to tasks."""
    return {
        f"{base.name}, {tasks.name}": dataclasses.replace(base, tasks=tasks)
        for base in map(method_named, BASES)
        for tasks in task_policies(base)
    }
