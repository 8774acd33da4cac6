"""The methods by their names."""

from __future__ import annotations

import re
from dataclasses import replace

from fleet_tune.base.errors import UserError
from policies.cost_models.registry import COST_MODELS, LABORATORY, CostModelEntry, problem_of
from policies.measuring.stop_rules import STOP_RULES
from policies.search.allocation import JointSketches
from policies.search.generators import LatentGenerator
from policies.search.methods.adatune import ADATUNE
from policies.search.methods.ansor import ANSOR, BANSOR
from policies.search.methods.autotvm import AUTOTVM
from policies.search.methods.fleet import FLEET
from policies.search.methods.method import Method
from policies.search.methods.pruner import MOA_PRUNER, PRUNER
from policies.search.methods.random import RANDOM

_METHODS = {method.name: method for method in (FLEET, AUTOTVM, ADATUNE, ANSOR, BANSOR, PRUNER, MOA_PRUNER, RANDOM)}
METHOD_NAMES = tuple(_METHODS)
OFFLINE = "offline"
EQUATION_1 = "equation-1"
JOINT = "joint"
_ROUNDS = re.compile(r"rounds-([1-9]\d{0,3})")


def method_named(name: str) -> Method:
    """Return the method of this name. Raise UserError for an unknown one.

    A name may continue with a cost model that replaces the method's own, with ``offline``, and with a stop rule
    (:data:`policies.measuring.stop_rules.STOP_RULES`): ``autotvm:boosted``, ``pruner:offline``, ``ansor:pacm:offline``,
    ``adatune:deterministic``. ``pruner:equation-1`` drafts by Pruner's equation 1 as published. ``ansor:rounds-10`` has
    rounds of ten trials, and ``ansor:joint`` lets candidates of all sketches compete in each round, as Ansor's code
    does. The name of such a method is the whole string. With another model, or with one that is never trained, the
    method does not start from a shipped model by itself.
    """
    base, *changes = name.split(":")
    choose = f"choose one of: {', '.join(METHOD_NAMES)}"
    if base not in _METHODS:
        raise UserError(f"there is no method '{base}'", choose)
    method = _METHODS[base]
    if EQUATION_1 in changes:
        if not isinstance(method.generator, LatentGenerator):
            raise UserError(f"the method '{base}' does not draft by Pruner's analyzer", "choose pruner or moa-pruner")
        method = replace(method, name=name, generator=replace(method.generator, published=True))
        changes.remove(EQUATION_1)
    if JOINT in changes:
        method = replace(method, name=name, sketches=JointSketches())
        changes.remove(JOINT)
    rounds = [change for change in changes if _ROUNDS.fullmatch(change)]
    if len(rounds) > 1:
        raise UserError(f"'{name}' names {len(rounds)} sizes of rounds", "name one")
    if rounds:
        method = replace(method, name=name, batch=int(rounds[0].removeprefix("rounds-")))
        changes.remove(rounds[0])
    rules = [change for change in changes if change in STOP_RULES]
    if len(rules) > 1:
        raise UserError(f"'{name}' names {len(rules)} stop rules", "name one")
    if rules:
        method = replace(method, name=name, stop_rule=STOP_RULES[rules[0]])
        changes.remove(rules[0])
    if not changes:
        return method
    models = [_model_of(change, _METHODS[base]) for change in changes if change != OFFLINE]
    if method.training is None:
        raise UserError(f"the method '{base}' has no cost model to replace or to keep offline", choose)
    if len(models) > 1:
        raise UserError(f"'{name}' names {len(models)} cost models", "name one")
    return with_model(method, models[0] if models else None, name, offline=OFFLINE in changes)


def with_model(method: Method, model: CostModelEntry | None, name: str, *, offline: bool = False) -> Method:
    """Return the method under another name, with another cost model (None: its own), or with one that is never trained.

    Raise ValueError if the method has no cost model.
    """
    if method.training is None:
        raise ValueError(f"the method '{method.name}' has no cost model to replace")
    # A model that is never trained here does not know the level of the task: the calibrated analyzer does.
    training = replace(method.training, offline=offline, alone=method.training.alone and not offline)
    if model == method.training.model and not offline:
        return replace(method, name=name)
    if model is not None:
        training = replace(training, model=model, alone=False)  # alone is a setting of the method's own model
    return replace(method, name=name, training=training, starts_from="")


def _model_of(name: str, method: Method) -> CostModelEntry:
    if name in COST_MODELS:
        return COST_MODELS[name]
    problem = problem_of(name)
    if name not in LABORATORY:
        problem = f"there is no cost model or variant '{name}' for the method '{method.name}'"
    raise UserError(problem, f"choose one of: {', '.join(_variants(method))}")


def _variants(method: Method) -> list[str]:
    """Words that may follow the name of ``method``."""
    drafts = [EQUATION_1] if isinstance(method.generator, LatentGenerator) else []
    trained = [OFFLINE, *COST_MODELS] if method.training is not None else []
    return [*STOP_RULES, *drafts, JOINT, "rounds-10", *trained]


def spec(method: str, model: str | None = None, *, offline: bool = False) -> str:
    """Return the name by which :func:`method_named` finds a method with another model, or with one that is not trained
    online. Raise UserError for an unknown model."""
    if ".py" in method and (model or offline):
        raise UserError(
            "--cost-model and --offline-model change a method of fleet-tune, not one in a file",
            f"change the training of the method in {method.rpartition(':')[0] or method}",
        )
    if model and model not in COST_MODELS:
        raise UserError(problem_of(model), f"choose one of: {', '.join(COST_MODELS)}")
    return ":".join([method, *([model] if model else []), *([OFFLINE] if offline else [])])
