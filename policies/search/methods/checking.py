"""Checks of a method that a user has made of parts, before a run starts with it."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_tune.base.domain import StopRule
from fleet_tune.base.errors import UserError
from policies.cost_models.registry import CostModelEntry
from policies.search.allocation import UcbSketches
from policies.search.batch import Selection
from policies.search.methods.method import Method
from policies.search.trainer import Training

_PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tasks": ("an allocation of trials to tasks (policies.search.bandits)", ("name", "pick", "first")),
    "sketches": ("an allocation of trials to sketches (policies.search.allocation)", ("name", "joint", "shares")),
    "generator": ("a generator (policies.search.generators)", ("name", "with_analyzer", "offer")),
    "acquisition": ("an acquisition (policies.search.acquisition)", ("name", "__call__", "energy")),
    "exploration": ("a share of random candidates (policies.search.exploration)", ("plans", "share")),
}
"""Parts that any class may provide: what each of them is, and the attributes that the search uses."""

_CLASSES: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "source": (str,),
    "training": (Training, type(None)),
    "selection": (Selection,),
    "stop_rule": (StopRule,),
    "batch": (int,),
    "by_round": (bool,),
    "starts_from": (str,),
}
"""Parts of given classes."""


def checked(method: object, origin: str) -> Method:
    """Return the method, if it is one and every part can do its work. Raise UserError otherwise.

    Args:
        method: the value that a user gave.
        origin: where it comes from, for the message.
    """
    if not isinstance(method, Method):
        raise UserError(
            f"{origin} is {_kind(method)}, not a policies.search.methods.Method",
            "make one with Method(...), or with dataclasses.replace of a method such as method_named('fleet')",
        )
    for part, classes in _CLASSES.items():
        value = getattr(method, part)
        if not isinstance(value, classes):
            wanted = " or ".join("None" if each is type(None) else each.__name__ for each in classes)
            raise _wrong(origin, part, value, wanted)
    for part, (wanted, attributes) in _PARTS.items():
        value = getattr(method, part)
        lacking = [name for name in attributes if not hasattr(value, name)]
        if isinstance(value, type) or lacking:
            raise _wrong(origin, part, value, wanted)
    if method.by_round and isinstance(method.sketches, UcbSketches) and method.sketches.prior_visits:
        raise UserError(
            f"{origin} counts rounds, and its sketches have prior visits, which are trials",
            "leave out by_round or prior_visits",
        )
    if method.batch < 1:
        raise UserError(f"{origin} has batches of {method.batch} trials", "give a batch of 1 at least")
    if not method.name or ":" in method.name:
        raise UserError(f"{origin} is named '{method.name}'", "give a name without a colon")
    training = method.training
    if training is not None and not isinstance(training.model, CostModelEntry):
        raise _wrong(origin, "training.model", training.model, "an entry of policies.cost_models.registry.COST_MODELS")
    if training is not None and training.momentum is not None and not training.model.learns_on:
        raise UserError(
            f"{origin} adapts the cost model '{training.model.name}' with a momentum, and that model has no weights",
            "leave momentum out, or train a network such as pacm",
        )
    return method


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of the type {type(value).__name__}"


def _wrong(origin: str, part: str, value: object, wanted: str) -> UserError:
    return UserError(f"the part '{part}' of {origin} is {_kind(value)}", f"give {wanted}")
