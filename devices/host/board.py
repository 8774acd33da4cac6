"""Name, clock and memory of a board whose CPU and GPU are one chip: an NVIDIA Jetson. Runs on the device.

Everything is read from files that any user may read, such as ``/proc/device-tree`` and ``/sys/class/devfreq``. On
another machine the functions find nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from devices.host.system_files import text_of

GPU_NODE = re.compile(r"gpu|gm20b|gp10b|gv11b|ga10b|gb10b")
"""Names of a GPU on the chip: the name of its node in the device tree, or of its generation, from the Nano to Thor."""


def is_board(root: Path = Path("/")) -> bool:
    """Return true on a Jetson, also in a container, which does not see the device tree."""
    return "nvidia,tegra" in text_of(root / "proc/device-tree/compatible") or (root / "etc/nv_tegra_release").exists()


def board_name(root: Path = Path("/")) -> str:
    """Return the name of a Jetson, as its device tree has it; empty elsewhere."""
    return text_of(root / "proc/device-tree/model") if is_board(root) else ""


def gpu_clock_folder(root: Path = Path("/")) -> Path | None:
    """Return the folder of devfreq that tells the clock of the GPU on a Jetson's chip; ``None`` if there is none.

    Its name is ``17000000.ga10b`` on an Orin with JetPack 5, ``17000000.gpu`` with JetPack 6.
    """
    for folder in sorted((root / "sys/class/devfreq").glob("*")) if is_board(root) else ():
        names = (folder.name, text_of(folder / "device/of_node/name"))
        if any(GPU_NODE.search(name) for name in names):
            return folder
    return None


def shared_free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that a GPU without memory of its own may allocate: the available memory of the host. ``None``
    for any other GPU.

    CUDA's own figure lacks the memory that the kernel gives up on demand, such as the page cache.
    """
    stated = re.search(r"^MemAvailable:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    return int(stated[1]) << 10 if stated is not None and is_board(root) else None
