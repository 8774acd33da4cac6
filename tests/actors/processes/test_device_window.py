"""The quiet window of a device's host, as its process has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.processes.device_window import DeviceWindow
from devices.host.quiet_windows.quiet_window import QuietWindow


class Windows:
    """The windows of hosts, all in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def here(self, title: str) -> QuietWindow:
        return QuietWindow(self._folder, title=title)


@pytest.mark.parametrize("shares_host", [False, True])
def test_an_oracle_on_the_host_disturbs_no_device(tmp_path: Path, shares_host: bool) -> None:
    windows: Any = Windows(tmp_path)
    window = DeviceWindow(windows, shares_host, "device gpu of run 1")
    assert window.of_host() is not None  # an oracle is run on the host
    try:
        with window.quiet():
            window.check()
        with window.working():
            pass
    finally:
        window.close()
