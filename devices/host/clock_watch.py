"""Causes that lower the clock of a device's hardware while it works: heat, and more current than allowed.

A Jetson reports both. Heat raises the state of *cooling devices* (``/sys/class/thermal/cooling_device*``): alerts of
the chip's firmware (``gpu-throttle-alert``), and limits that the kernel sets (``cpufreq-cpu0``,
``devfreq-17000000.gpu``). Over-current events are counted (``oc1_event_cnt``, 1 to 3: voltage too low, average, and
momentary current too high). Fans are cooling devices too, but lower no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devices.host.board import GPU_NODE, is_board
from devices.host.system_files import number_of, text_of

_OTHER = {"cpu": ("gpu", "cv"), "cuda": ("cpu", "cv")}  # "cv": the accelerators for images


@dataclass(frozen=True, slots=True)
class ClockCauses:
    """Causes that lower the clock at a moment, and counts of the over-current events until then."""

    heat: frozenset[str] = frozenset()
    """Types of the cooling devices that are active now."""
    events: Mapping[str, int] = field(default_factory=dict)
    """Over-current events since the machine started, by the name of their counter: ``"oc1"``."""

    @property
    def limits(self) -> frozenset[str]:
        """Cooling devices of ``heat`` that lower the highest allowed clock, and with it the lowest one if that were
        above it. Alerts of the firmware change neither."""
        return frozenset(name for name in self.heat if _limited(name).startswith(("cpufreq-", "devfreq-")))

    def since(self, earlier: ClockCauses) -> tuple[str, ...]:
        """Name the causes that lowered the clock between ``earlier`` and this moment; heat that came and went in
        between is not seen."""
        events = (name for name, count in self.events.items() if count > earlier.events.get(name, count))
        return (*sorted(self.heat | earlier.heat), *sorted(events))


class ClockWatch:
    """The files that tell what lowers the clock of a device. They are searched once, so that :meth:`look` reads only a
    few numbers.

    Only a Jetson has such files. ``kind``: ``"cpu"``, or ``"cuda"`` for a GPU on the chip; causes that concern only the
    other one are left out.
    """

    def __init__(self, root: Path = Path("/"), kind: str = "cpu") -> None:
        self._states: list[tuple[str, Path]] = []
        self._counters: list[tuple[str, Path]] = []
        if not is_board(root):
            return
        for file in sorted(root.glob("sys/class/thermal/cooling_device*/type")):
            name = text_of(file)
            if _lowers_clock(name, kind):
                self._states.append((name, file.with_name("cur_state")))
        counters = sorted(root.glob("sys/class/hwmon/hwmon*/oc[0-9]_event_cnt"))
        self._counters = [(file.name.removesuffix("_event_cnt"), file) for file in counters]

    @property
    def is_blind(self) -> bool:
        """True if the system reports no causes."""
        return not (self._states or self._counters)

    def look(self) -> ClockCauses:
        """Return the causes of this moment."""
        heat = frozenset(name for name, file in self._states if number_of(file) > 0)
        return ClockCauses(heat, {name: number_of(file) for name, file in self._counters})


def _lowers_clock(name: str, kind: str) -> bool:
    """Return true if a cooling device of this type lowers the clock of a device of this kind."""
    limit = _limited(name)
    if limit.startswith("cpufreq-"):
        return kind == "cpu"
    if limit.startswith("devfreq-"):
        # The video encoder's device has the name of its node too; newer kernels give a number alone.
        return kind == "cuda" and (GPU_NODE.search(limit) is not None or limit.removeprefix("devfreq-").isdigit())
    return name.endswith("-alert") and not name.startswith(_OTHER[kind])


def _limited(name: str) -> str:
    """Return the type of a cooling device without the prefix that only some kernels write."""
    return name.removeprefix("thermal-")
