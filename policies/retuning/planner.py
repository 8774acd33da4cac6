"""Planner of the service: the next action."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.retuning import allowance
from policies.retuning.allowance import WINDOW_SECS
from policies.retuning.rules import Moment
from policies.retuning.state import Action, AskDevices, CheckVersion, Deployment, LookAtFiles, TuneDeployment, Wait
from policies.retuning.valuation import Valuation
from policies.retuning.view import OVERHEAD_SECS, ServiceView

CHECK_SECS = 120.0
"""Seconds that a check is assumed to need. It may take several times as long if the share allows."""
LEAST_SPAN_SECS = 10.0
LOST_AGAIN_SECS = 900.0
"""Seconds after which devices that did not answer are asked again."""
IDLE = "nothing is worth doing"
_TRIGGER = "a trigger waits for"
_ASK_SPARE = 4.0
_CHECK_SPARE = 5.0


class ActionPlanner:
    """Chooses the next action from the state of the service."""

    def __init__(self, view: ServiceView, valuation: Valuation) -> None:
        self._view = view
        self._valuation = valuation

    def next(self, moment: Moment) -> Action:
        """Return the next action."""
        now, state, rules = moment.unix_secs, self._view.state, self._view.rules
        look_at = state.looked_at + rules.files_every_secs
        if not state.looked_at or look_at <= now or state.looked_at > now:  # the last: the clock was set back
            return LookAtFiles()
        open_secs = math.inf if rules.hours is None else rules.hours.left_secs(moment.day_secs)
        if open_secs <= 0:
            assert rules.hours is not None
            opens = now + rules.hours.opens_in_secs(moment.day_secs)
            return Wait(min(look_at, opens), "outside of the hours in which devices may be used")
        later: list[tuple[float, str]] = [(look_at, IDLE)]
        for choose in (self._asking, self._triggered, self._checking, self._improving):
            found = choose(now, open_secs)
            if isinstance(found, Wait):
                later.append((found.until, found.why))
            elif found is not None:
                return found
        until = min(at for at, _ in later)
        why = next((why for _, why in later if why != IDLE), IDLE)
        return Wait(max(now, until), why)

    def _asking(self, now: float, open_secs: float) -> AskDevices | Wait | None:
        state, rules = self._view.state, self._view.rules
        names, at = list(rules.devices), state.asked_at + self._view.ask_every_secs
        if state.asked_at and state.asked_at <= now < at:
            known = {each.name for each in state.devices}
            new = [name for name in names if name not in known]
            lost = [each.name for each in state.devices if each.problem]
            at = min(at, state.asked_lost_at + LOST_AGAIN_SECS) if lost else at
            if now < at and not new:
                return Wait(at, IDLE)
            names = new or lost
        secs = self._view.ask_secs * len(names)
        for name, count in self._view.counts(names).items():
            of_class = len(self._view.online(name))
            free_at = allowance.free_at(state.used, name, of_class, rules.share, now, secs * count)
            if free_at > now:
                return Wait(free_at, f"asking devices waits for its share of the time of {name}")
        if secs > open_secs:
            return Wait(now + open_secs, "too little is left of the hours")
        return AskDevices(names, min(_ASK_SPARE * secs, open_secs))

    def _triggered(self, now: float, open_secs: float) -> TuneDeployment | Wait | None:
        waiting = [each for each in self._view.active() if each.pending]
        waiting.sort(key=lambda each: (-self._valuation.overdue_secs(each, now), -self._valuation.urgency(each)))
        return self._first_that_fits(waiting, now, open_secs, 1.0, _TRIGGER)

    def _improving(self, now: float, open_secs: float) -> TuneDeployment | Wait | None:
        slopes, taken = self._valuation.slopes(), self._taken(now, open_secs)
        worth = [
            (value, each)
            for each in self._view.active()
            if each.secs is not None
            and not each.pending
            and each.device_class not in taken
            and self._valuation.pays(value := self._valuation.value_with(each, now, None, slopes[each.name]))
        ]
        worth.sort(key=lambda each: -each[0].saved_secs_a_day / each[0].device_secs)
        return self._first_that_fits([each for _, each in worth], now, open_secs, 2.0, "tuning waits for")

    def _first_that_fits(
        self, ordered: Sequence[Deployment], now: float, open_secs: float, times: float, what: str
    ) -> TuneDeployment | Wait | None:
        """Return the first of these deployments that can be tuned now, else the shortest wait. ``times`` the device
        time that it needs has to be free."""
        waits: list[Wait] = []
        for each in ordered:
            found = self._tuning(each, now, open_secs, times, what)
            if isinstance(found, TuneDeployment):
                return found
            waits.append(found)
        return min(waits, key=lambda wait: wait.until, default=None)

    def _tuning(self, each: Deployment, now: float, open_secs: float, times: float, what: str) -> TuneDeployment | Wait:
        rules, state = self._view.rules, self._view.state
        devices = self._view.online(each.device_class)
        if not devices:
            return Wait(math.inf, f"no device of {each.device_class} answers")
        if each.network in state.file_problems:
            return Wait(math.inf, f"{each.network} cannot be read: {state.file_problems[each.network]}")
        if each.retry_at > now:
            return Wait(each.retry_at, f"{each.name} failed and is tried again later")
        count, reserve = len(devices), self._view.reserve_secs(each.device_class)
        most = (rules.share * WINDOW_SECS - reserve / count) / times
        least = min(LEAST_SPAN_SECS, rules.span_secs)
        # Runs that took too long may have been exceptions, and only another run corrects the estimate.
        overhead = min(self._view.overhead_secs(each), max(OVERHEAD_SECS, most / 2))
        secs = min(rules.span_secs, most - overhead, open_secs - overhead)
        if secs < least:
            if most - overhead < least:
                return Wait(math.inf, f"the share of {rules.share:.1%} is too small for any run of {each.name}")
            return Wait(now + open_secs, "too little is left of the hours")
        need = times * (secs + overhead) * count + reserve
        free_at = allowance.free_at(state.used, each.device_class, count, rules.share, now, need)
        if free_at > now:
            return Wait(free_at, f"{what} its share of the time of {each.device_class}")
        triggers = [pending.trigger for pending in each.pending]
        why = ", ".join(triggers) if triggers else self._valuation.describe(self._valuation.value_of(each, now))
        left = (allowance.left_secs(state.used, each.device_class, count, rules.share, now) - reserve) / count
        return TuneDeployment(
            network=each.network,
            device_class=each.device_class,
            digest=state.files[each.network],
            origin=devices[0].origin,
            devices=[device.name for device in devices],
            secs=secs,
            limit_secs=min(left, open_secs, secs + 4 * overhead),
            why=why,
            triggers=triggers,
        )

    def _checking(self, now: float, open_secs: float) -> CheckVersion | Wait | None:
        waits: list[Wait] = []
        taken = self._taken(now, open_secs)
        for each in self._view.active():
            if each.secs is None or each.pending or each.device_class in taken:
                continue
            found = self._check_of(each, now, open_secs)
            if isinstance(found, CheckVersion):
                return found
            if found is not None:
                waits.append(found)
        return min(waits, key=lambda wait: wait.until, default=None)

    def _taken(self, now: float, open_secs: float) -> set[str]:
        """Return the classes in which a trigger waits for the share: time that becomes free is for the trigger."""
        found = (
            (each, self._tuning(each, now, open_secs, 1.0, _TRIGGER))
            for each in self._view.active()
            if each.pending and each.retry_at <= now
        )
        return {
            each.device_class
            for each, wait in found
            if isinstance(wait, Wait) and math.isfinite(wait.until) and wait.why.startswith(_TRIGGER)
        }

    def _check_of(self, each: Deployment, now: float, open_secs: float) -> CheckVersion | Wait | None:
        devices = [device.name for device in self._view.online(each.device_class)]
        if not devices:
            return None
        suspicion = each.suspicion
        if suspicion is not None:
            others = [
                name for name in devices if name != suspicion.device and name not in each.odd and name in each.baselines
            ]
            at = now if others else suspicion.again_at
            device = others[0] if others else suspicion.device
            if device not in devices:
                return None
        else:
            at = each.checked_at + self._view.rules.devices_every_secs
            # Devices take turns, so that each has a baseline and is checked.
            device = devices[int(now // self._view.rules.devices_every_secs) % len(devices)]
        if at > now >= each.checked_at:
            return Wait(at, IDLE)
        need = CHECK_SECS + self._view.reserve_secs(each.device_class)
        free_at = allowance.free_at(
            self._view.state.used, each.device_class, len(devices), self._view.rules.share, now, need
        )
        if free_at > now:
            return Wait(free_at, f"a check waits for its share of the time of {each.device_class}")
        if open_secs < CHECK_SECS:
            return Wait(now + open_secs, "too little is left of the hours")
        left = allowance.left_secs(self._view.state.used, each.device_class, len(devices), self._view.rules.share, now)
        limit = min(_CHECK_SPARE * CHECK_SECS, left - need + CHECK_SECS, open_secs)
        return CheckVersion(each.network, each.device_class, device, limit)
