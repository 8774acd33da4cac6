"""Power mode of a board whose CPU and GPU are one chip: an NVIDIA Jetson. Runs on the device.

Everything is read from files that any user may read: the files of ``nvpmodel`` (``/etc/nvpmodel.conf``,
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
    """Return the power mode of a Jetson, and whether its clock is held. Equal texts mean equal limits of the clocks.
    Empty on another machine, and if the mode is not known.

    ``"MAXN (0, a3f0c1)"`` has the name and number of the mode that ``nvpmodel -q`` shows, and a digest of its settings,
    which people may edit. After ``jetson_clocks`` the clock of the CPU, or the GPU (``kind`` ``"cuda"``), is held;
    otherwise it follows the load. Heat lowers the highest clock. If heat has lowered it to the lowest clock, it cannot
    be seen whether people hold the clock, and the text says so (see :mod:`fleet_tune.base.power_text`).
    """
    if not is_board(root):
        return ""
    settings = text_of(root / "etc/nvpmodel.conf")
    # The file "pmode:0002 fmode:quiet" exists from the first change of the mode on; before that the default holds.
    found = re.search(r"pmode:\s*(\d+)", text_of(root / "var/lib/nvpmodel/status"))
    found = found or re.search(r"^<\s*PM_CONFIG\s+DEFAULT=(\d+)", settings, re.MULTILINE)
    if found is None:  # in a container, for example
        return ""
    number = int(found[1])
    block = re.search(rf"^<\s*POWER_MODEL\s+ID={number}\s+NAME=(\S+?)\s*>([^<]*)", settings, re.MULTILINE)
    mode = f"mode {number}" if block is None else f"{block[1]} ({number}, {_digest(block[2])})"
    return f"{mode}{_clock_text(root, kind)}"


def _clock_text(root: Path, kind: str) -> str:
    """Return the suffix of the mode: whether the lowest allowed clock equals the highest one, or the governor always
    takes the highest."""
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
    """Return a short digest of the lines of a mode. Spacing and comments do not count."""
    lines = [" ".join(line.split()) for line in settings.splitlines()]
    kept = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.blake2b(kept.encode(), digest_size=3).hexdigest()
