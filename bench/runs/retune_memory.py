"""Growth of the resident memory of the service that keeps networks tuned over 100,000 simulated records.

The service is the real one and runs in virtual time. The work of its child processes on records is done in the process
of the service, so the measured memory is more than the service really holds. The first records are not counted, since
they fill caches and pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.tables import markdown

ASKED = 0.05
"""Largest allowed growth of the memory after the first records, as a share."""
_RECORDS_A_RUN = 500
_NETWORKS = 3
_MIB = 1 << 20


def run(dataset: Path, records: int) -> BenchResult:
    numbers = {
        "--records": records,
        "--warm-up": records // 10,
        "--records-a-run": min(_RECORDS_A_RUN, max(1, records // 20)),
        "--networks": _NETWORKS,
    }
    words = [word for name, value in numbers.items() for word in (name, str(value))]
    command = ["-m", "bench.runs.retune_memory_process", str(dataset), *words]
    details = run_json(command, env=bench_env(cores()), timeout_secs=3600)
    return BenchResult("retune-memory", details["growth"], None, None, "growth", {**details, "asked": ASKED})


def table(result: Mapping[str, Any]) -> str:
    """Return the result's JSON object as a table."""
    details = result["details"]
    rows = [
        ("records, after the first", f"{details['records'] - details['warm_up']:,}"),
        ("... which are not counted", f"{details['warm_up']:,}"),
        ("runs, and versions published", f"{details['runs']} and {details['published']}"),
        ("days of virtual time", f"{details['days']:.1f}"),
        ("resident memory after the first, MiB", f"{details['first_bytes'] / _MIB:.1f}"),
        ("... half-way, MiB", f"{details['middle_bytes'] / _MIB:.1f}"),
        ("... in the end, MiB", f"{details['last_bytes'] / _MIB:.1f}"),
        ("growth; asked: below 5%", f"{details['growth']:.1%}"),
        ("its file in the end, kB", f"{details['state_bytes'] / 1e3:.0f}"),
    ]
    return markdown(("the service", "figure"), rows)


BENCHMARK = Benchmark(
    name="retune-memory",
    help="Growth of the resident memory of fleet-tune retune over simulated records.",
    options=(options.dataset(), options.count("--records", 100_000, least=100)),
    short=("--records", "20000"),
    run=run,
    table=table,
)
