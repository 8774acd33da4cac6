"""Texts of a board's power mode (:attr:`fleet_tune.base.domain.Fingerprint.power`): ``"MAXN (0, a3f0c1)"``, and a
suffix if its clock is limited. The text is empty for a device that has no power mode, or does not report it.
"""

from __future__ import annotations

HELD = ", clock held"
"""Suffix of a mode: the lowest allowed clock equals the highest one, as ``jetson_clocks`` sets them."""
LOWERED = ", clock lowered by heat"
"""Suffix of a mode: heat has lowered the highest clock to the lowest one. Whether people hold the clock cannot be
seen."""


def mode_of(power: str) -> str:
    """Return the mode without a suffix. (A clock limit that changes within a mode is a change of speed like any
    other.)"""
    return power.removesuffix(HELD).removesuffix(LOWERED)


def without_heat(power: str) -> str:
    """Return the mode and, as far as it can be seen, whether the clock is held. The suffix for heat is left out."""
    return power.removesuffix(LOWERED)


def differ(one: str, other: str) -> bool:
    """Return true if both devices report their power mode and the modes differ. If heat has lowered the clock of one of
    them, the suffixes are not compared."""
    if not (one and other):
        return False
    if one.endswith(LOWERED) or other.endswith(LOWERED):
        return mode_of(one) != mode_of(other)
    return one != other
