"""Decision on a new version: does it replace the last one, and which old ones are kept?

On the first device the new version has to be faster beyond doubt, by the rule of duels: for two equal versions the rule
finds this at most once in 200 times. On each further device of the class, up to the number that is asked for, it must
not be slower: its ratio, the mean of as many pairs as the duel took, is at most 1. So more devices make a false
improvement rarer, and a version that is faster on one device alone is not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.measuring.duel import Verdict


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """Comparison of a new version with the last one on a device. ``verdict.ratio``: seconds of the new version over
    those of the last one."""

    device: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on a new version. ``worst``: the comparison with the highest ratio; ``why``: the reason in words."""

    publish: bool
    worst: DeviceComparison
    why: str


def decide(met: Sequence[DeviceComparison]) -> Decision:
    """Decide by comparisons on at least one device, the first one's first."""
    first, *others = met
    worst = max(met, key=lambda each: each.verdict.ratio)
    if not first.verdict.faster:
        return Decision(False, worst, f"it is not faster beyond doubt on {first.device}: {_told(first)}")
    slower = next((each for each in others if each.verdict.ratio > 1.0), None)
    if slower is not None:
        return Decision(False, worst, f"it is slower on {slower.device}: {_told(slower)}")
    where = first.device if not others else f"all of {len(met)} devices, the worst of them {worst.device}"
    return Decision(True, worst, f"it is faster on {where}: {_told(worst)}")


def should_continue(met: Sequence[DeviceComparison]) -> bool:
    """Return true if a comparison on another device is worth while."""
    return met[0].verdict.faster and all(each.verdict.ratio <= 1.0 for each in met[1:])


def _told(met: DeviceComparison) -> str:
    verdict = met.verdict
    return f"{verdict.ratio:.3f} ± {verdict.error:.3f} of the last one's time, {verdict.pairs} pairs"


def superseded(versions: Sequence[int], current: int, keep: int) -> list[int]:
    """Return the versions that are not kept: all but the current one, the one before it, and the ``keep`` newest."""
    older = [each for each in versions if each < current]
    kept = {current, *older[-1:], *sorted(versions)[-keep:]}
    return [each for each in versions if each not in kept]
