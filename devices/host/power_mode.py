"""Power mode of a board whose CPU and GPU are one chip: an NVIDIA Jetson. Runs on the device.

All is read from files that any user may read: what ``nvpmodel`` keeps (``/etc/nvpmodel.conf``,
``/var/lib/nvpmodel/status``), and the limits of the clocks.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from devices.host.board import gpu_clock_folder, is_board
from devices.host.clock_watch import ClockWatch
from devices.host.system_files import text_of
from fleet_tune.base.power_text import HELD, LOWERED


def power_mode(root: Path = Path("/"), kind: str = "cpu") -> str:
    """Return the power mode of a Jetson, and whether its clock is held: equal texts for equal limits of the clocks;
    empty elsewhere, and where nothing tells the mode.

    ``"MAXN (0, a3f0c1)"`` is the mode that ``nvpmodel -q`` tells, by name and number, with a digest of its settings,
    which people edit. The clock of the CPU, or the GPU (``kind`` ``"cuda"``), is held after ``jetson_clocks``; else it
    follows the load. Heat lowers the clock too; where it has left no room to follow the load, whether the clock is held
    cannot be seen, and the text says so (see :mod:`fleet_tune.base.power_text`).
    """
    if not is_board(root):
        return ""
    settings = text_of(root / "etc/nvpmodel.conf")
    # The file "pmode:0002 fmode:quiet" is there from the first change on; before that the default holds.
    found = re.search(r"pmode:\s*(\d+)", text_of(root / "var/lib/nvpmodel/status"))
    found = found or re.search(r"^<\s*PM_CONFIG\s+DEFAULT=(\d+)", settings, re.MULTILINE)
    if found is None:  # in a container, for example
        return ""
    number = int(found[1])
    block = re.search(rf"^<\s*POWER_MODEL\s+ID={number}\s+NAME=(\S+?)\s*>([^<]*)", settings, re.MULTILINE)
    mode = f"mode {number}" if block is None else f"{block[1]} ({number}, {_digest(block[2])})"
    return f"{mode}{_clock_text(root, kind)}"


def _clock_text(root: Path, kind: str) -> str:
    """Return what stands behind the mode: whether the lowest clock that is allowed is the highest one, or the governor
    always takes that."""
    if kind == "cuda":
        folder = gpu_clock_folder(root)
        limits = [] if folder is None else [[text_of(folder / name) for name in ("governor", "min_freq", "max_freq")]]
    else:
        folders = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))
        names = ("scaling_governor", "scaling_min_freq", "scaling_max_freq")
        limits = [[text_of(each / name) for name in names] for each in folders]
    told = [each for each in limits if all(each)]  # cores that are switched off tell nothing
    if not told or not all(governor == "performance" or lowest == highest for governor, lowest, highest in told):
        return ""
    by_people = all(governor == "performance" for governor, _, _ in told)
    return HELD if by_people or not ClockWatch(root, kind).look().limits else LOWERED


def _digest(settings: str) -> str:
    """Return a short digest of the lines of a mode, however they are spaced; comments do not count."""
    lines = [" ".join(line.split()) for line in settings.splitlines()]
    kept = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.blake2b(kept.encode(), digest_size=3).hexdigest()
