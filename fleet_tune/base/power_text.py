"""Texts of a board's power mode (:attr:`fleet_tune.base.domain.Fingerprint.power`): ``"MAXN (0, a3f0c1)"``, and behind
it what is known of the limits of its clock. They are empty for a device that has no mode, or does not tell it.
"""

from __future__ import annotations

HELD = ", clock held"
"""Behind a mode: the lowest clock that is allowed is the highest one, as ``jetson_clocks`` sets them."""
LOWERED = ", clock lowered by heat"
"""Behind a mode: heat has lowered the highest clock to the lowest one; whether people hold it cannot be seen."""


def mode_of(power: str) -> str:
    """Return the mode alone: times follow the clock as they follow any change of speed."""
    return power.removesuffix(HELD).removesuffix(LOWERED)


def without_heat(power: str) -> str:
    """Return the mode, and whether its clock is held, as far as that can be seen: heat is no part of it."""
    return power.removesuffix(LOWERED)


def differ(one: str, other: str) -> bool:
    """Return true if both devices tell their mode, and another one. Where heat has lowered the clock of one, the mode
    alone counts."""
    if not (one and other):
        return False
    if one.endswith(LOWERED) or other.endswith(LOWERED):
        return mode_of(one) != mode_of(other)
    return one != other
