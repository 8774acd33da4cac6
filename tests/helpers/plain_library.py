"""A library of plain loops instead of oneDNN, for tests that need no fast one, and traces that call it."""

from __future__ import annotations

import json
import subprocess
from itertools import product
from pathlib import Path

import pytest

from devices.builds.libraries import onednn
from devices.builds.libraries.onednn import OneDnn
from devices.sketches.rules.library import rule
from devices.sketches.spaces import parse_module
from devices.sketches.traces import full_text, open_text
from devices.targets import parse_target
from fleet_tune.base.domain import Task

_SOURCE = Path(__file__).with_suffix(".c")


def use_plain_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> OneDnn:
    """Build the library in ``folder``, and have everything in this process take it for oneDNN's package."""
    folder.mkdir(parents=True, exist_ok=True)
    shared, licence = folder / onednn.SHARED_LIBRARY, folder / "LICENSE"
    # It has another name than oneDNN, which this process may have loaded.
    command = ["cc", "-O2", "-shared", "-fPIC", "-Wl,-soname,libplain.so.3", str(_SOURCE), "-o", str(shared)]
    subprocess.run(command, check=True, timeout=60)
    onednn.load(shared)
    licence.write_text("A licence of plain loops.\n")
    plain = OneDnn("1.2", shared, folder, (licence,))

    monkeypatch.setattr(onednn, "installed", lambda: plain)
    monkeypatch.setattr(onednn, "link_inputs", lambda _folder: (str(shared),))
    return plain


def library_traces(task: Task) -> list[str]:
    """Return the traces of all candidates of a task that the library computes; none where it does not."""
    schedules = rule.onednn(parse_module(task.workload.module), parse_target(task.device_class.target))
    traces = []
    for trace in (each.trace for each in schedules):
        steps, decisions = json.loads(full_text(trace))
        values = [
            attributes[0] for kind, _, attributes, _ in json.loads(open_text(trace)) if kind == "SampleCategorical"
        ]
        for chosen in product(*(range(len(each)) for each in values)):
            decided = [[at, index] for (at, _), index in zip(decisions, chosen, strict=True)]
            traces.append(json.dumps([steps, decided]))
    return traces
