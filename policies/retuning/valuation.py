"""The worth of tuning a deployment further, and the urgency of deployments that wait."""

from __future__ import annotations

import math
import statistics

from policies.retuning import benefit
from policies.retuning.allowance import WINDOW_SECS
from policies.retuning.benefit import HOUR_SECS, Value
from policies.retuning.state import Deployment, Trigger
from policies.retuning.view import ServiceView

_UNKNOWN_SECS = 0.01
"""Latency that is assumed for a network while no network was timed."""


class Valuation:
    """Estimates of benefit and urgency, from the state of the service."""

    def __init__(self, view: ServiceView) -> None:
        self._view = view

    def value_of(self, each: Deployment, now: float, device_secs: float | None = None) -> Value:
        """Return the expected worth of one more span for a deployment with a version, or of ``device_secs``."""
        return self.value_with(each, now, device_secs, self.slopes()[each.name])

    def slopes(self) -> dict[str, float]:
        """Return the slope of each deployment, by its name. The prior of each is the slope of all others."""
        found = {each.name: benefit.evidence(each.spans) for each in self._view.active()}
        whole = sum(found.values(), benefit.Evidence())
        return {
            name: own.slope((whole + benefit.Evidence(-own.over, -own.under)).slope()) for name, own in found.items()
        }

    def value_with(self, each: Deployment, now: float, device_secs: float | None, slope: float) -> Value:
        """Return the expected worth with this slope."""
        assert each.secs is not None
        count = max(1, len(self._view.online(each.device_class)))
        tuning = self._view.rules.span_secs * count if device_secs is None else device_secs
        cost = (
            (self._view.rules.span_secs + self._view.overhead_secs(each)) * count
            if device_secs is None
            else device_secs
        )
        effort = benefit.faded(each.effort_secs, now - each.effort_at, self._view.rules.age_secs)
        share = benefit.expected_share(slope, effort, tuning, each.lost_log)
        return benefit.value(each.secs, self._view.subjects[each.network].calls_a_day, share, cost)

    def next_hour(self, each: Deployment, now: float) -> Value:
        """Return the expected worth of the next hour of a device."""
        return self.value_of(each, now, HOUR_SECS)

    def describe(self, value: Value) -> str:
        """Describe a value in words."""
        days = f"pays back in {value.payback_days:.3g} days" if math.isfinite(value.payback_days) else "never pays back"
        return (
            f"{value.device_secs / HOUR_SECS:.2g} device hours buy {value.saved_secs * 1e3:.3g} ms a call, "
            f"{value.saved_secs_a_day:.3g} s a day: {days}"
        )

    def pays(self, value: Value) -> bool:
        """Return true if it pays back in time."""
        return value.payback_days <= self._view.rules.payback_days

    def is_worth(self, each: Deployment, now: float) -> bool:
        """Return true if another span of a deployment with a version pays back in time."""
        return self.pays(self.value_of(each, now))

    def urgency(self, each: Deployment) -> float:
        """Return the seconds a day that tuning is expected to save. A deployment that was never timed counts with the
        median latency of the others."""
        known = [other.secs for other in self._view.active() if other.secs is not None]
        secs = each.secs if each.secs is not None else statistics.median(known) if known else _UNKNOWN_SECS
        share = benefit.FIRST_SHARE
        if {pending.trigger for pending in each.pending} <= {Trigger.SLOWER, Trigger.DRIFTED}:
            share = -math.expm1(-benefit.REGAINED * each.lost_log)
        return self._view.subjects[each.network].calls_a_day * secs * share

    def overdue_secs(self, each: Deployment, now: float) -> float:
        """Return the seconds that its oldest trigger has waited beyond half of the window."""
        waited = now - min(pending.since for pending in each.pending)
        return max(0.0, waited - WINDOW_SECS / 2)

    def bound_secs(self, each: Deployment) -> float:
        """Return the seconds within which a trigger is acted on after it was seen, if its devices answer and nothing
        fails."""
        pending = [other for other in self._view.active() if other.pending and other.device_class == each.device_class]
        waiting = [*pending, *([] if each in pending else [each])]
        cost = sum(self._view.rules.span_secs + self._view.overhead_secs(other) for other in waiting)
        days = math.ceil(cost / (self._view.rules.share * WINDOW_SECS))
        return days * WINDOW_SECS + self._view.rules.span_secs + 4 * self._view.overhead_secs(each)
