"""State machine of the service: the next action, and the state after its end.

:meth:`Retuner.next` returns the next action. The caller runs it, and calls :meth:`Retuner.begun` before and one of
``looked``, ``asked``, ``checked``, ``tuned`` after it. One action runs at a time. It is chosen in this order:

1. the networks' files are looked at, every ``files_every_secs``;
2. devices are asked what they are, every ``devices_every_secs`` (lost devices more often), and less often if that would
   take more than half of the share;
3. a deployment with a *trigger* is tuned for one span: the one whose trigger has waited for more than half of the
   window of 24 hours, else the one with the highest expected benefit;
4. the current version of a deployment is timed beside the probe, every ``devices_every_secs``;
5. the deployment of the highest value for each device hour is tuned for one span, if that pays back in time. One span
   of the share is left for triggers that may come.

Neither 4 nor 5 begins while a trigger of the class waits for the share.

An action that uses devices begins only in the hours that are given, and only if its longest time fits into the share
(:mod:`policies.retuning.allowance`) and into the rest of these hours.

Time that asking the devices takes is kept free in the share.

**Bounds.** A changed file is seen within ``files_every_secs`` plus the length of one action, a changed device within
``devices_every_secs`` plus that length. A trigger that was seen is acted on after the action in progress; if ``n``
triggers of a class are pending and each takes ``c`` device seconds, after at most ``ceil(n * c / share of 24 hours)``
days (:meth:`Valuation.bound_secs`). A deployment whose tuning fails is tried again after twice the length of a span.
This time is doubled at each further failure, up to a day.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from policies.retuning import allowance, benefit, slowdown
from policies.retuning.allowance import UsedTime
from policies.retuning.benefit import DAY_SECS, Span
from policies.retuning.planner import ActionPlanner
from policies.retuning.rules import Moment, Rules
from policies.retuning.slowdown import Finding
from policies.retuning.state import (
    MOST_EVENTS,
    MOST_SPANS,
    Action,
    ActionInProgress,
    AskDevices,
    CheckVersion,
    CheckVersionResult,
    Deployment,
    DeviceAnswer,
    PendingTrigger,
    ServiceEvent,
    ServiceState,
    SlowdownSuspicion,
    Trigger,
    TuneDeployment,
    TuneDeploymentResult,
    UsesDevices,
)
from policies.retuning.valuation import Valuation
from policies.retuning.view import ServiceView

_MOST_LIMITS = 2.0
"""Longest time that an action is taken to have lasted, in multiples of its limit. It is ended by force after its limit,
so a longer time means that the clock was set forward."""


class Retuner:
    """The state machine of the service."""

    view: ServiceView
    """Queries on the state."""
    valuation: Valuation
    """Estimates of what tuning further is worth."""
    on_event: Callable[[ServiceEvent], None] | None
    """Is called with each event."""

    def __init__(self, rules: Rules, state: ServiceState, differences: Callable[[str, str], str]) -> None:
        """Make the state machine.

        Args:
            rules: rules of the file.
            state: state of the service; it is changed in place.
            differences: function that describes how two origins differ.
        """
        self.rules = rules
        self.state = state
        self.view = ServiceView(rules, state)
        self.valuation = Valuation(self.view)
        self.on_event = None
        self._planner = ActionPlanner(self.view, self.valuation)
        self._differences = differences

    def next(self, moment: Moment) -> Action:
        """Return what to do now."""
        return self._planner.next(moment)

    def log_event(self, now: float, kind: str, text: str, network: str = "", device_class: str = "") -> None:
        """Keep an event; the oldest is forgotten."""
        event = ServiceEvent(now, kind, network, device_class, text)
        self.state.events.append(event)
        del self.state.events[:-MOST_EVENTS]
        if self.on_event is not None:
            self.on_event(event)

    def begun(self, action: UsesDevices, now: float) -> None:
        """Note the begin of an action that uses devices."""
        self.state.doing = ActionInProgress(action, now)

    def resumed(self, now: float) -> bool:
        """Take up the state after a restart, and return true if an action was in progress. That action counts as used
        time, as long as it may have taken, and is chosen anew."""
        doing = self.state.doing
        if doing is None:
            return False
        ended = _end_of(doing, now, doing.action.limit_secs)
        self._charge(doing.action, doing.began, ended)
        self.log_event(now, "restart", f"the interrupted action is repeated: {doing.action.kind}")
        self.state.doing = None
        return True

    def _charge(self, action: UsesDevices, began: float, ended: float) -> None:
        if isinstance(action, AskDevices):
            counts = self.view.counts(action.devices)
        else:
            counts = {action.device_class: 1 if isinstance(action, CheckVersion) else len(action.devices)}
        self.state.used = allowance.still_counting(self.state.used, ended)
        self.state.used += [UsedTime(name, began, ended, count) for name, count in counts.items()]

    def _end(self, now: float) -> float:
        """End the action in progress. Return the seconds that it took."""
        doing = self.state.doing
        assert doing is not None
        self.state.doing = None
        ended = _end_of(doing, now, _MOST_LIMITS * doing.action.limit_secs)
        self._charge(doing.action, doing.began, ended)
        return ended - doing.began

    def looked(self, files: Mapping[str, str], problems: Mapping[str, str], now: float) -> bool:
        """Take in the result of a look at the networks' files, and return true if anything is new.

        ``files``: a digest by network; ``problems``: the reasons why others have none.
        """
        state = self.state
        if state.looked_at > now:
            self._set_back(state.looked_at - now)
        state.looked_at = now
        for name, problem in problems.items():
            if state.file_problems.get(name) != problem:
                self.log_event(now, "problem", f"cannot be read: {problem}", name)
        is_new = dict(problems) != state.file_problems or any(state.files.get(name) != files[name] for name in files)
        state.file_problems = dict(problems)
        for name, digest in files.items():
            state.files[name] = digest
        state.files = {name: digest for name, digest in state.files.items() if name in self.view.subjects}
        if is_new:
            self._compare(now)
        return is_new

    def _set_back(self, secs: float) -> None:
        """Move stored times back after the clock was set back by at least so many seconds. Otherwise the service would
        wait for times that lie ahead."""
        state = self.state
        state.used = [
            dataclasses.replace(each, began=each.began - secs, ended=each.ended - secs) for each in state.used
        ]
        for each in state.deployments:
            each.retry_at = max(0.0, each.retry_at - secs)
            if each.suspicion is not None:
                each.suspicion = dataclasses.replace(each.suspicion, again_at=each.suspicion.again_at - secs)

    def asked(self, devices: Sequence[DeviceAnswer], now: float) -> None:
        """Take in the answers of devices that were asked."""
        state = self.state
        before = {each.name: each for each in state.devices}
        for device in devices:
            last = before.get(device.name)
            if device.problem and (last is None or last.problem != device.problem):
                self.log_event(now, "lost", f"{device.name} does not answer: {device.problem}")
            elif not device.problem and last is not None and last.problem:
                self.log_event(now, "back", f"{device.name} answers again", "", device.device_class)
        # For a device that does not answer, its last class and origin stay known.
        answers = {each.name: each for each in devices}
        for name, answer in answers.items():
            if answer.problem and name in before:
                answers[name] = dataclasses.replace(before[name], problem=answer.problem)
        known = {**before, **answers}
        state.devices = [known[name] for name in self.rules.devices if name in known]
        if len(answers) == len(self.rules.devices):
            state.asked_at = now
        state.asked_lost_at = now
        secs = self._end(now) / max(1, len(devices))  # now: those that answer were used
        state.ask_secs = secs if state.ask_secs is None else max(secs, 0.5 * state.ask_secs)
        self._compare(now)

    def _compare(self, now: float) -> None:
        """Add the triggers that follow from the present files and devices."""
        known = {each.network for each in self.state.deployments}
        classes = list(dict.fromkeys(each.device_class for each in self.state.devices if each.device_class))
        for subject in self.rules.subjects:
            digest = self.state.files.get(subject.name)
            if digest is None:
                continue
            for name in classes:
                if subject.classes is not None and name not in subject.classes:
                    continue
                each = self.view.deployment(subject.name, name)
                if each is None:
                    each = Deployment(subject.name, name)
                    self.state.deployments.append(each)
                    new = Trigger.NEW_CLASS if subject.name in known else Trigger.NEW_NETWORK
                    self._trigger(each, new, now)
                elif each.digest and each.digest != digest:
                    self._trigger(each, Trigger.CHANGED_NETWORK, now)
                if each.failures and each.failed_digest not in ("", digest):
                    each.failures, each.retry_at = 0, 0.0  # it may be mended
                devices = self.view.online(name)
                if each.digest and devices and each.origin != devices[0].origin:
                    detail = self._differences(each.origin, devices[0].origin)
                    self._trigger(each, Trigger.CHANGED_FINGERPRINT, now, detail)

    def _trigger(self, each: Deployment, trigger: Trigger, now: float, detail: str = "") -> None:
        if any(pending.trigger is trigger for pending in each.pending):
            return
        each.pending.append(PendingTrigger(trigger, now, detail))
        each.failures, each.retry_at = 0, 0.0
        self.log_event(now, "trigger", f"{trigger}{': ' + detail if detail else ''}", each.network, each.device_class)

    def replaced(self, each: Deployment, version: int | None, secs: float | None, now: float, damage: str = "") -> None:
        """Take in another current version that somebody else made, its removal (None), or its ``damage``."""
        each.version, each.secs, each.suspicion, each.checked_at = version, secs, None, 0.0
        each.baselines.clear()
        if version is None:
            each.digest = ""
            self._trigger(each, Trigger.NEW_NETWORK, now, damage or "its current version is gone")
        else:
            self.log_event(now, "replaced", f"version {version} is the current one", each.network, each.device_class)

    def interrupted(self, now: float) -> None:
        """End the present action early. It counts as used time, and is chosen anew."""
        if self.state.doing is not None:
            self._end(now)

    def checked(self, action: CheckVersion, result: CheckVersionResult, now: float) -> None:
        """Take in the result of a check: the current version was timed beside the probe."""
        self._end(now)
        each = self.view.deployment(action.network, action.device_class)
        if each is None:
            return
        each.checked_at = now
        if result.problem or not result.pairs:
            self.log_event(
                now, "problem", f"not timed on {action.device}: {result.problem}", each.network, each.device_class
            )
            self.state.asked_at = 0.0  # the device may be lost
            each.suspicion = None  # the next regular check looks again: one at once might fail again and again
            return
        against = each.baselines.get(action.device)
        if against is None:
            each.baselines[action.device] = slowdown.baseline(result.pairs)
            each.suspicion = None
            return
        if slowdown.has_recovered(result.pairs, against, self.rules.slower):
            each.baselines[action.device] = slowdown.baseline(result.pairs)
        finding = slowdown.found(result.pairs, against, self.rules.slower, self.rules.drift) or Finding.FINE
        self._conclude(each, action.device, finding, slowdown.lost_log(result.pairs, against), now)

    def _conclude(self, each: Deployment, device: str, finding: Finding, lost_log: float, now: float) -> None:
        suspicion = each.suspicion
        if finding is Finding.FINE:
            each.odd.pop(device, None)
        if suspicion is None:
            if finding is not Finding.FINE and each.odd.get(device) is not finding:
                each.suspicion = SlowdownSuspicion(device, finding, now + self.rules.again_secs, lost_log)
            return
        each.suspicion = None
        if finding is suspicion.finding:
            each.lost_log = max(lost_log, suspicion.lost_log)
            trigger = Trigger.SLOWER if finding is Finding.SLOWER else Trigger.DRIFTED
            devices = " and ".join(dict.fromkeys((suspicion.device, device)))
            self._trigger(each, trigger, now, f"confirmed on {devices}")
        elif device != suspicion.device:
            each.odd[suspicion.device] = suspicion.finding
            text = f"{suspicion.device} is {suspicion.finding} than it was, {device} is not: look at {suspicion.device}"
            self.log_event(now, "device", text, each.network, each.device_class)

    def tuned(self, action: TuneDeployment, result: TuneDeploymentResult, now: float) -> None:
        """Take in the result of a span of tuning."""
        wall_secs = self._end(now)
        each = self.view.deployment(action.network, action.device_class)
        if each is None:
            return
        if result.problem:
            each.failures += 1
            each.retry_at = now + min(DAY_SECS, self.rules.span_secs * 2**each.failures)
            each.problem, each.failed_digest = result.problem, action.digest
            if wall_secs >= action.limit_secs:
                each.overhead_secs = min(DAY_SECS, 2 * self.view.overhead_secs(each))
            self.log_event(now, "problem", f"not tuned: {result.problem}", each.network, each.device_class)
            self.state.asked_at = 0.0  # devices may be lost
            return
        is_same = (each.digest, each.origin) == (action.digest, action.origin)
        if each.digest != action.digest:
            each.spans.clear()
        before = benefit.faded(each.effort_secs, now - each.effort_at, self.rules.age_secs) if is_same else 0.0
        spent = result.tuned_secs * len(action.devices)
        each.spans.append(Span(before, spent, max(0.0, result.log_gain)))
        del each.spans[:-MOST_SPANS]
        each.effort_secs, each.effort_at = before + spent, now
        each.digest, each.origin = action.digest, action.origin
        each.secs = result.secs if result.secs is not None else each.secs
        each.overhead_secs = max(wall_secs - result.tuned_secs, 0.5 * self.view.overhead_secs(each))
        each.baselines = dict(result.baselines)  # the next check of a device takes a missing one
        each.pending = [pending for pending in each.pending if pending.trigger not in action.triggers]
        each.lost_log, each.suspicion, each.failures, each.retry_at, each.problem = 0.0, None, 0, 0.0, ""
        each.odd.clear()
        each.checked_at = now if result.baselines else 0.0
        each.version = result.version
        if result.published:
            self.state.published += 1
            text = f"version {result.version}: {result.why}"
            self.log_event(now, "published", text, each.network, each.device_class)
        else:
            self.log_event(now, "kept", result.why, each.network, each.device_class)
        self._compare(now)


def _end_of(doing: ActionInProgress, now: float, most_secs: float) -> float:
    return min(max(now, doing.began), doing.began + most_secs)
