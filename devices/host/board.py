"""Power mode, clock and memory of a board whose CPU and GPU are one chip: an NVIDIA Jetson. Runs on the device.

All is read from files that any user may read: ``/proc/device-tree``, what ``nvpmodel`` keeps (``/etc/nvpmodel.conf``,
``/var/lib/nvpmodel/status``), and ``/sys/class/devfreq``. On another machine the functions return nothing.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from devices.host.system_files import text_of

_HELD = ", clock held"

GPU_NODE = re.compile(r"gpu|gm20b|gp10b|gv11b|ga10b|gb10b")
"""Names of a GPU on the chip: that of its node in the device tree, or of its generation, from the Nano to Thor."""


def is_board(root: Path = Path("/")) -> bool:
    """Return true on a Jetson, also in a container, which does not see the device tree."""
    return "nvidia,tegra" in text_of(root / "proc/device-tree/compatible") or (root / "etc/nv_tegra_release").exists()


def board_name(root: Path = Path("/")) -> str:
    """Return the name of a Jetson, as its device tree has it; empty elsewhere."""
    return text_of(root / "proc/device-tree/model") if is_board(root) else ""


def power_mode(root: Path = Path("/"), kind: str = "cpu") -> str:
    """Return the power mode of a Jetson, and whether its clock is held: equal texts for equal limits of the clocks;
    empty elsewhere, and where nothing tells the mode.

    ``"MAXN (0, a3f0c1)"`` is the mode that ``nvpmodel -q`` tells, by name and number, with a digest of its settings,
    which people edit. The clock of the CPU, or the GPU (``kind`` ``"cuda"``), is held after ``jetson_clocks``; else it
    follows the load. Heat, which also lowers the clock, changes nothing here (see :mod:`devices.host.clock_watch`).
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
    return f"{mode}{_HELD}" if _clock_held(root, kind) else mode


def mode_of(power: str) -> str:
    """Return a text of :func:`power_mode` without whether the clock is held: heat may lower the limits of a clock until
    they are the same, and times follow the clock as they follow any change of speed."""
    return power.removesuffix(_HELD)


def gpu_clock_folder(root: Path = Path("/")) -> Path | None:
    """Return the folder of devfreq that tells the clock of the GPU on a Jetson's chip; None without one.

    Its name is ``17000000.ga10b`` on an Orin with JetPack 5, ``17000000.gpu`` with JetPack 6.
    """
    for folder in sorted((root / "sys/class/devfreq").glob("*")) if is_board(root) else ():
        names = (folder.name, text_of(folder / "device/of_node/name"))
        if any(GPU_NODE.search(name) for name in names):
            return folder
    return None


def shared_free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that a GPU may allocate which has no memory of its own, those that the host has available; None
    for any other GPU.

    CUDA's own figure lacks what the kernel gives back when it is asked for memory, as the cache of files.
    """
    stated = re.search(r"^MemAvailable:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    return int(stated[1]) << 10 if stated is not None and is_board(root) else None


def _clock_held(root: Path, kind: str) -> bool:
    """Return true if the lowest clock that is allowed is the highest one, or if the governor always takes that."""
    if kind == "cuda":
        folder = gpu_clock_folder(root)
        limits = [] if folder is None else [[text_of(folder / name) for name in ("governor", "min_freq", "max_freq")]]
    else:
        folders = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))
        names = ("scaling_governor", "scaling_min_freq", "scaling_max_freq")
        limits = [[text_of(each / name) for name in names] for each in folders]
    told = [each for each in limits if all(each)]  # cores that are switched off tell nothing
    return bool(told) and all(governor == "performance" or lowest == highest for governor, lowest, highest in told)


def _digest(settings: str) -> str:
    """Return a short digest of the lines of a mode, however they are spaced; comments do not count."""
    lines = [" ".join(line.split()) for line in settings.splitlines()]
    kept = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.blake2b(kept.encode(), digest_size=3).hexdigest()
