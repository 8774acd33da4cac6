"""Loads a compiled network and runs it once on a set of inputs, in a process of its own.

``python -m bench.latency.load_process FOLDER ARRAYS`` prints one line of JSON: the seconds of loading and of the first
run, the peak resident memory of the process in MiB (``peak_mib``), and the part of the peak above the memory before
loading (``network_mib``). Linux only: memory is read from ``/proc/self``.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import click

from bench.processes import die_with_parent
from devices.networks.compiled import network_folder
from devices.networks.frameworks.array_file import read_arrays


def _resident_mib(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.argument("arrays", type=click.Path(exists=True))
def main(folder: Path, arrays: str) -> None:
    """Print the figures as one line of JSON."""
    die_with_parent()
    inputs, _ = read_arrays(arrays)
    before = _resident_mib("VmRSS")
    start = time.perf_counter()
    network = network_folder.load(folder)
    loaded = time.perf_counter()
    network(*inputs)
    ran = time.perf_counter()
    peak = _resident_mib("VmHWM")
    figures = {"load_secs": loaded - start, "first_run_secs": ran - loaded}
    click.echo(json.dumps({**figures, "peak_mib": peak, "network_mib": peak - before}))


if __name__ == "__main__":
    main()
