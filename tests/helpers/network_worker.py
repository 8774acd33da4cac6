"""Compiled networks run in the process of the test instead of fresh ones: for tests whose networks do not crash, and
that are not about these processes."""

from __future__ import annotations

import contextlib
import io
import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devices.networks.network import Array
from devices.networks.processes import fresh_process, network_worker
from devices.networks.processes.fresh_process import OtherInputs, Outputs
from devices.timing.in_network import InNetworkTimes


def run_networks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the worker's code in this process."""
    monkeypatch.setattr(network_worker, "die_with_parent", lambda _: None)
    monkeypatch.setattr(network_worker, "load_tvm", lambda: None)
    monkeypatch.setattr(fresh_process, "_run", _run)
    monkeypatch.setattr(fresh_process, "PreloadedProcess", _Here)


def _run(folder: Path, work: Path, budget_secs: float, *what: str) -> dict[str, Any]:
    arguments = [str(folder), str(work), str(budget_secs), "0", *what]
    out, errors = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            network_worker.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    return fresh_process._found(subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue()))


class _Here:
    """In place of :class:`devices.networks.processes.fresh_process.PreloadedProcess`."""

    def __init__(self, inputs: Sequence[Array], budget_secs: float, others: OtherInputs | None = None) -> None:
        self._inputs, self._budget_secs, self._others = inputs, budget_secs, others or OtherInputs()

    def tried(self, folder: Path) -> tuple[Outputs, tuple[float, InNetworkTimes] | None]:
        with fresh_process._work_folder(self._inputs, self._others) as work:
            found = _run(folder, work, self._budget_secs, network_worker.ALL)
            outputs = fresh_process._written_outputs(work, self._others)
        if found["secs"] is None:
            return outputs, None
        return outputs, (float(found["secs"]), InNetworkTimes(**found["networks"][0][0]))

    def close(self) -> None:
        pass
