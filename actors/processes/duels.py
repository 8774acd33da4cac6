"""Lets candidates of a task run in turn on one device, two at a time; see :mod:`policies.measuring.duel`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from devices.protocol import Artifact, MeasureRequest
from fleet_tune.base.domain import Comparison, Incumbent, Measurement, Outcome, StopRule
from policies.measuring.duel import STOPPED, challenger_first, judged, run_rule

Ask = Callable[[MeasureRequest], Measurement]
"""Measures one candidate. Returns every outcome as a value, failures too."""


@dataclass(frozen=True)
class DuelResult:
    """The measurement of the challenger in a duel. If ``rival_failed``, the measurement of the incumbent, which failed
    in the duel."""

    measured: Measurement
    rival_failed: bool = False


def duel(
    ask: Ask, rival: Artifact, incumbent: Incumbent, challenger: Artifact, rule: StopRule, verified: bool = False
) -> DuelResult:
    """Run the challenger and the incumbent, whose artifact is ``rival``, in turn until it is clear which is faster, for
    about ``rule.timeout_secs`` at most; the first failure ends it.

    The time may be up before the duel is decided: runs may be that long, and so may laying out hundreds of megabytes of
    weights. Then the challenger's measurement has no comparison, and its seconds decide.

    ``verified``: the challenger's outputs are known to be right; otherwise they are checked in its first run.
    """
    one_run = run_rule(rule)
    runs: list[Measurement] = []  # the challenger's
    ratios: list[float] = []
    left_secs = rule.timeout_secs
    while True:
        secs: dict[bool, float] = {}
        first = challenger_first(len(ratios))
        for is_challenger in (first, not first):
            unchecked = is_challenger and not verified and not runs
            # The run races against nothing: with infinity its outputs are checked, with 0 they are not.
            best_secs = math.inf if unchecked else 0.0
            artifact = challenger if is_challenger else rival
            measured = ask(MeasureRequest(artifact, best_secs, one_run, placed_anew=True))
            if measured.outcome is not Outcome.OK:
                return DuelResult(measured, rival_failed=not is_challenger)
            left_secs -= measured.measure_secs
            secs[is_challenger] = measured.raw_secs
            if is_challenger:
                runs.append(measured)
        ratios.append(math.log(secs[True] / secs[False]))
        verdict = judged(ratios, out_of_time=left_secs <= 0)
        if verdict is not None:
            break
    comparison = None
    if verdict.is_decided:
        comparison = Comparison(
            incumbent.candidate_id, incumbent.rank_secs, verdict.ratio, verdict.error, 2 * verdict.pairs, verdict.faster
        )
    joined = dataclasses.replace(
        runs[0],
        run_secs=tuple(each for run in runs for each in run.run_secs),
        measure_secs=rule.timeout_secs - left_secs,
        stopped=STOPPED,
        verified=verified or runs[0].verified,
        comparison=comparison,
    )
    return DuelResult(joined)


def run_shoot_out(
    ask: Ask, artifacts: Sequence[Artifact], incumbent: Incumbent, rule: StopRule
) -> dict[int, Measurement] | Measurement:
    """Let the finalists of a task meet: each meets the best of those before it. Return their measurements by number.

    ``artifacts``: the incumbent's is the first, if it takes part. It has a result only if it fails. A candidate whose
    process was ended from outside has no result. If the device is lost, return the measurement with that outcome.
    """
    found: dict[int, Measurement] = {}
    champion: int | None = None
    for number, artifact in enumerate(artifacts):
        assert artifact.candidate is not None
        if number == 0 and artifact.candidate.id == incumbent.candidate_id:
            champion = 0
            continue
        result = None if champion is None else duel(ask, artifacts[champion], incumbent, artifact, rule)
        if result is not None and result.rival_failed and result.measured.outcome.blames_candidate:
            assert champion is not None
            found[champion], champion, result = result.measured, None, None
        if result is None:  # there is no champion to compare with
            result = DuelResult(ask(MeasureRequest(artifact, math.inf, run_rule(rule), placed_anew=True)))
        measured = result.measured
        if measured.outcome is Outcome.DEVICE_LOST:
            return measured
        if measured.outcome is Outcome.KILLED:
            continue
        found[number] = measured
        if measured.verified and (champion is None or measured.rank_secs < incumbent.rank_secs):
            champion = number
            incumbent = Incumbent(artifact.candidate.id, measured.cost_secs, measured.rank_secs)
    return found
