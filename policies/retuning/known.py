"""What is known of the deployments and devices, and what tuning them further is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from policies.retuning import benefit
from policies.retuning.allowance import WINDOW_SECS
from policies.retuning.benefit import HOUR_SECS, Value
from policies.retuning.book import Book, Deployment, Device, Trigger
from policies.retuning.rules import Rules

OVERHEAD_SECS = 300.0
"""What a run is taken to need beside its tuning before one was seen: import, description, compiling, comparing."""
ASK_SECS = 60.0
"""What asking a device is taken to need before one was asked."""
_UNKNOWN_SECS = 0.01


class Known:
    """``book``: what is known, by these rules."""

    def __init__(self, rules: Rules, book: Book) -> None:
        self.rules = rules
        self.book = book
        self.subjects = {subject.name: subject for subject in rules.subjects}
        book.devices = [each for each in book.devices if each.name in rules.devices]

    def active(self) -> list[Deployment]:
        """The deployments of the networks and classes that the file asks for now."""
        found = []
        for each in self.book.deployments:
            subject = self.subjects.get(each.network)
            if subject is not None and (subject.classes is None or each.device_class in subject.classes):
                found.append(each)
        return found

    def deployment(self, network: str, device_class: str) -> Deployment | None:
        """The one of a network and a class."""
        keys = ((each, (each.network, each.device_class)) for each in self.book.deployments)
        return next((each for each, key in keys if key == (network, device_class)), None)

    def online(self, device_class: str) -> list[Device]:
        """The devices of a class that answered when they were asked last."""
        return [each for each in self.book.devices if each.device_class == device_class and not each.problem]

    @property
    def ask_secs(self) -> float:
        """What asking one device takes."""
        return ASK_SECS if self.book.ask_secs is None else self.book.ask_secs

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """How many of these devices answered when they were asked last, by class."""
        counts: dict[str, int] = {}
        for device in self.book.devices:
            if device.name in names and not device.problem:
                counts[device.device_class] = counts.get(device.device_class, 0) + 1
        return counts

    @property
    def ask_every_secs(self) -> float:
        """How often all devices are asked: as often as is wanted, if no more than half of the share goes into it. Where
        devices become slow, asking alone would else take all that there is."""
        return max(self.rules.devices_every_secs, 2 * self.ask_secs * len(self.rules.devices) / self.rules.share)

    def reserve_secs(self, device_class: str) -> float:
        """Device seconds of a day that are left for asking the devices of a class."""
        asks = math.ceil(WINDOW_SECS / self.ask_every_secs) + 1
        return asks * self.ask_secs * len(self.rules.devices) * len(self.online(device_class))

    def value_of(self, each: Deployment, now: float, device_secs: float | None = None) -> Value:
        """What a span more is expected to buy a deployment with a version, or so many ``device_secs``."""
        return self.value_with(each, now, device_secs, self.slopes()[each.name])

    def slopes(self) -> dict[str, float]:
        """Of each deployment by its name; the prior of each is that of all others."""
        found = {each.name: benefit.evidence(each.spans) for each in self.active()}
        whole = sum(found.values(), benefit.Evidence())
        return {
            name: own.slope((whole + benefit.Evidence(-own.over, -own.under)).slope()) for name, own in found.items()
        }

    def value_with(self, each: Deployment, now: float, device_secs: float | None, slope: float) -> Value:
        """The same with this slope."""
        assert each.secs is not None
        count = max(1, len(self.online(each.device_class)))
        tuning = self.rules.span_secs * count if device_secs is None else device_secs
        cost = (self.rules.span_secs + self.overhead_secs(each)) * count if device_secs is None else device_secs
        effort = benefit.faded(each.effort_secs, now - each.effort_at, self.rules.age_secs)
        share = benefit.expected_share(slope, effort, tuning, each.lost_log)
        return benefit.value(each.secs, self.subjects[each.network].calls_a_day, share, cost)

    def next_hour(self, each: Deployment, now: float) -> Value:
        """What the next hour of a device is expected to buy."""
        return self.value_of(each, now, HOUR_SECS)

    def told(self, value: Value) -> str:
        """In words."""
        days = f"pays back in {value.payback_days:.3g} days" if math.isfinite(value.payback_days) else "never pays back"
        return (
            f"{value.device_secs / HOUR_SECS:.2g} device hours buy {value.saved_secs * 1e3:.3g} ms a call, "
            f"{value.saved_secs_a_day:.3g} s a day: {days}"
        )

    def pays(self, value: Value) -> bool:
        """Whether it pays back in time."""
        return value.payback_days <= self.rules.payback_days

    def is_worth(self, each: Deployment, now: float) -> bool:
        """Whether another span of a deployment with a version pays back in time."""
        return self.pays(self.value_of(each, now))

    def urgency(self, each: Deployment) -> float:
        """Seconds a day that are expected to be saved: of a deployment that was never timed by those of the others."""
        known = [other.secs for other in self.active() if other.secs is not None]
        secs = each.secs if each.secs is not None else statistics.median(known) if known else _UNKNOWN_SECS
        share = benefit.FIRST_SHARE
        if {pending.trigger for pending in each.pending} <= {Trigger.SLOWER, Trigger.DRIFTED}:
            share = -math.expm1(-benefit.REGAINED * each.lost_log)
        return self.subjects[each.network].calls_a_day * secs * share

    def overdue_secs(self, each: Deployment, now: float) -> float:
        """How long its oldest trigger has waited for more than half of the window."""
        waited = now - min(pending.since for pending in each.pending)
        return max(0.0, waited - WINDOW_SECS / 2)

    def overhead_secs(self, each: Deployment) -> float:
        """What a run of it takes beside its tuning."""
        return OVERHEAD_SECS if each.overhead_secs is None else each.overhead_secs

    def bound_secs(self, each: Deployment) -> float:
        """Within how many seconds after a trigger was seen it is acted on, if its devices answer and nothing fails."""
        pending = [other for other in self.active() if other.pending and other.device_class == each.device_class]
        waiting = [*pending, *([] if each in pending else [each])]
        cost = sum(self.rules.span_secs + self.overhead_secs(other) for other in waiting)
        days = math.ceil(cost / (self.rules.share * WINDOW_SECS))
        return days * WINDOW_SECS + self.rules.span_secs + 4 * self.overhead_secs(each)
