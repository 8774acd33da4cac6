"""What is done next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.retuning import allowance
from policies.retuning.allowance import WINDOW_SECS
from policies.retuning.book import Action, Ask, Check, Deployment, Look, Tune, Wait
from policies.retuning.known import Known
from policies.retuning.rules import Moment

CHECK_SECS = 120.0
"""What a check is taken to need; it may take some times of that where the share allows."""
LEAST_SPAN_SECS = 10.0
LOST_AGAIN_SECS = 900.0
"""After which devices that did not answer are asked again."""
IDLE = "nothing is worth doing"
_ASK_SPARE = 4.0
_CHECK_SPARE = 5.0


class Choosing(Known):
    """Chooses by what is known."""

    def next(self, moment: Moment) -> Action:
        """What to do now."""
        now, book, rules = moment.unix_secs, self.book, self.rules
        look_at = book.looked_at + rules.files_every_secs
        if not book.looked_at or look_at <= now or book.looked_at > now:  # the last: the clock was set back
            return Look()
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

    def _asking(self, now: float, open_secs: float) -> Ask | Wait | None:
        book, rules = self.book, self.rules
        names, at = list(rules.devices), book.asked_at + self.ask_every_secs
        if book.asked_at and book.asked_at <= now < at:
            known = {each.name for each in book.devices}
            new = [name for name in names if name not in known]
            lost = [each.name for each in book.devices if each.problem]
            at = min(at, book.asked_lost_at + LOST_AGAIN_SECS) if lost else at
            if now < at and not new:
                return Wait(at, IDLE)
            names = new or lost
        secs = self.ask_secs * len(names)
        for name, count in self.counts(names).items():
            of_class = len(self.online(name))
            free_at = allowance.free_at(book.used, name, of_class, rules.share, now, secs * count)
            if free_at > now:
                return Wait(free_at, f"asking devices waits for its share of the time of {name}")
        if secs > open_secs:
            return Wait(now + open_secs, "too little is left of the hours")
        return Ask(names, min(_ASK_SPARE * secs, open_secs))

    def _triggered(self, now: float, open_secs: float) -> Tune | Wait | None:
        waiting = [each for each in self.active() if each.pending]
        waiting.sort(key=lambda each: (-self.overdue_secs(each, now), -self.urgency(each)))
        return self._first_that_fits(waiting, now, open_secs, 1.0, "a trigger waits for")

    def _improving(self, now: float, open_secs: float) -> Tune | Wait | None:
        slopes = self.slopes()
        worth = [
            (value, each)
            for each in self.active()
            if each.secs is not None
            and not each.pending
            and self.pays(value := self.value_with(each, now, None, slopes[each.name]))
        ]
        worth.sort(key=lambda each: -each[0].saved_secs_a_day / each[0].device_secs)
        return self._first_that_fits([each for _, each in worth], now, open_secs, 2.0, "tuning waits for")

    def _first_that_fits(
        self, ordered: Sequence[Deployment], now: float, open_secs: float, times: float, what: str
    ) -> Tune | Wait | None:
        """The first of these that can be tuned now. ``times`` what it needs has to be free."""
        waits: list[Wait] = []
        for each in ordered:
            found = self._tuning(each, now, open_secs, times, what)
            if isinstance(found, Tune):
                return found
            waits.append(found)
        return min(waits, key=lambda wait: wait.until, default=None)

    def _tuning(self, each: Deployment, now: float, open_secs: float, times: float, what: str) -> Tune | Wait:
        rules, book = self.rules, self.book
        devices = self.online(each.device_class)
        if not devices:
            return Wait(math.inf, f"no device of {each.device_class} answers")
        if each.network in book.file_problems:
            return Wait(math.inf, f"{each.network} cannot be read: {book.file_problems[each.network]}")
        if each.retry_at > now:
            return Wait(each.retry_at, f"{each.name} failed and is tried again later")
        overhead = self.overhead_secs(each)
        count, reserve = len(devices), self.reserve_secs(each.device_class)
        most = (rules.share * WINDOW_SECS - reserve / count) / times
        secs, least = min(rules.span_secs, most - overhead, open_secs - overhead), min(LEAST_SPAN_SECS, rules.span_secs)
        if secs < least:
            if most - overhead < least:
                return Wait(math.inf, f"the share of {rules.share:.1%} is too small for any run of {each.name}")
            return Wait(now + open_secs, "too little is left of the hours")
        need = times * (secs + overhead) * count + reserve
        free_at = allowance.free_at(book.used, each.device_class, count, rules.share, now, need)
        if free_at > now:
            return Wait(free_at, f"{what} its share of the time of {each.device_class}")
        triggers = [pending.trigger for pending in each.pending]
        why = ", ".join(triggers) if triggers else self.told(self.value_of(each, now))
        left = (allowance.left_secs(book.used, each.device_class, count, rules.share, now) - reserve) / count
        return Tune(
            network=each.network,
            device_class=each.device_class,
            digest=book.files[each.network],
            origin=devices[0].origin,
            devices=[device.name for device in devices],
            secs=secs,
            limit_secs=min(left, open_secs, secs + 4 * overhead),
            why=why,
            triggers=triggers,
        )

    def _checking(self, now: float, open_secs: float) -> Check | Wait | None:
        waits: list[Wait] = []
        for each in self.active():
            if each.secs is None or each.pending:
                continue
            found = self._check_of(each, now, open_secs)
            if isinstance(found, Check):
                return found
            if found is not None:
                waits.append(found)
        return min(waits, key=lambda wait: wait.until, default=None)

    def _check_of(self, each: Deployment, now: float, open_secs: float) -> Check | Wait | None:
        devices = [device.name for device in self.online(each.device_class)]
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
            at = each.checked_at + self.rules.devices_every_secs
            # In turn, so that each has a baseline, and is looked at.
            device = devices[int(now // self.rules.devices_every_secs) % len(devices)]
        if at > now >= each.checked_at:
            return Wait(at, IDLE)
        need = CHECK_SECS + self.reserve_secs(each.device_class)
        free_at = allowance.free_at(self.book.used, each.device_class, len(devices), self.rules.share, now, need)
        if free_at > now:
            return Wait(free_at, f"a check waits for its share of the time of {each.device_class}")
        if open_secs < CHECK_SECS:
            return Wait(now + open_secs, "too little is left of the hours")
        left = allowance.left_secs(self.book.used, each.device_class, len(devices), self.rules.share, now)
        limit = min(_CHECK_SPARE * CHECK_SECS, left - need + CHECK_SECS, open_secs)
        return Check(each.network, each.device_class, device, limit)
