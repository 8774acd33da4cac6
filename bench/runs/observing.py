"""The cost of monitoring a run: processor time of the metrics endpoint at 100 records a second, seconds until a record
is on the dashboard's page, and time and size of the report of a long run, with the schedules of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.result import BenchResult
from bench.runs import synthetic_records
from bench.tables import markdown
from fleet_tune.base.domain import Record, Task
from fleet_tune.base.results import Progress, TaskProgress
from fleet_tune.base.stages import DurationCounter, Stage, StageProgress

RECORDS_A_SEC = 100
_SCRAPE_SECS = 5.0
_SCRAPER = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1], timeout=60).read()
    print("scraped", flush=True)
    time.sleep(float(sys.argv[2]))
"""
_LOOKS = 20
_POLL_SECS = 0.5  # as fleet_tune/report/dashboard/static/live.js
_PAGE_SECS = 60.0


def run(dataset: Path, records: int, seconds: float) -> BenchResult:
    """Measure the three figures. ``ours``: processor time of the metrics in percent of a core.

    ``records``: number of records in the store that the page and the report show. ``seconds``: time for which the
    metrics are served.
    """
    tasks = synthetic_records.tasks_of(dataset)
    cores = exporter_cores(tasks, synthetic_records.records(dataset), seconds)
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as made:
        folder = Path(made)
        coming = _in_time(synthetic_records.records(dataset))
        _store(folder, tasks, [*synthetic_records.best_records(dataset), *itertools.islice(coming, records)])
        page = asyncio.run(page_secs(folder, tasks, coming))
        secs, size = report_cost(folder)
    details = {
        "records": records,
        "tasks": len(tasks),
        "exporter_cores": cores,
        "page_secs": {"median": statistics.median(page), "max": max(page), "count": len(page)},
        "report_secs": secs,
        "report_bytes": size,
    }
    return BenchResult("observing", 100 * cores, None, None, "% of a core", details)


def _in_time(records: Iterator[Record]) -> Iterator[Record]:
    """Yield the records with predicted times and with time stamps 1/100 s apart."""
    import dataclasses

    for number, record in enumerate(records):
        predicted = record.measurement.cost_secs * (1 + (number % 7) / 10)
        candidate = dataclasses.replace(record.candidate, predicted_secs=predicted)
        yield dataclasses.replace(record, unix_secs=1.7e9 + number / RECORDS_A_SEC, candidate=candidate)


def _store(folder: Path, tasks: Sequence[Task], records: Sequence[Record]) -> None:
    from fleet_tune.base.records.stores.store import RecordStore

    with RecordStore(folder / "records.db") as store:
        for task in tasks:
            store.put_task(task)
        for at in range(0, len(records), 4096):
            store.append(records[at : at + 4096])


def exporter_cores(tasks: Sequence[Task], records: Iterator[Record], seconds: float) -> float:
    """Return the processor seconds a second of the metrics in a process that takes in 100 records and two snapshots
    each second. Another process scrapes it every five seconds. The processor time of the same loop without metrics is
    subtracted."""
    from fleet_tune.runs.metrics import Metrics

    known = list(itertools.islice(_in_time(records), int(seconds * RECORDS_A_SEC) + 64))
    metrics = Metrics(0)
    for record in known[:64]:  # imports and new label sets cost only once
        metrics.observe(record)
    metrics.update(_snapshot(tasks, 64))
    without = _cores(tasks, known[64:], lambda _: None, lambda _: None)
    with _scraped(metrics.port):
        whole = _cores(tasks, known[64:], metrics.observe, metrics.update)
    metrics.close()
    return whole - without


def _cores(
    tasks: Sequence[Task],
    records: Sequence[Record],
    observe: Callable[[Record], None],
    update: Callable[[Progress], None],
) -> float:
    """Return the processor seconds a second of a loop with 100 records and two snapshots each second."""
    began, cpu = time.perf_counter(), time.process_time()
    for number, record in enumerate(records):
        due = began + number / RECORDS_A_SEC
        time.sleep(max(0.0, due - time.perf_counter()))
        observe(record)
        if number % (RECORDS_A_SEC // 2) == 0:
            update(_snapshot(tasks, number))
    return (time.process_time() - cpu) / (time.perf_counter() - began)


def _snapshot(tasks: Sequence[Task], trials: int) -> Progress:
    shown = tuple(
        TaskProgress(
            task.id, task.workload.name, task.device_class.name, task.weight, task.workload.flop, 4, trials, 1e-3
        )
        for task in tasks
    )
    durations = DurationCounter()
    durations.add(0.3)
    stages = {
        stage.value: StageProgress(trials, trials, 0, 0, durations.histogram, durations.histogram) for stage in Stage
    }
    devices = {f"board-{at}": "good" for at in range(100)}
    return Progress(
        "tuning", 1.0, 60.0, None, trials, trials, {"ok": trials}, 100.0, {"build": 1}, devices, shown, stages=stages
    )


@contextlib.contextmanager
def _scraped(port: int | None) -> Iterator[None]:
    """Have another process scrape the metrics every ``_SCRAPE_SECS``. The block begins after the first scrape."""
    command = [sys.executable, "-c", _SCRAPER, f"http://127.0.0.1:{port}/metrics", str(_SCRAPE_SECS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as scraper:
        try:
            assert scraper.stdout is not None
            assert scraper.stdout.readline(), "the metrics are not served"
            yield
        finally:
            scraper.kill()


async def page_secs(folder: Path, tasks: Sequence[Task], coming: Iterator[Record]) -> list[float]:
    """Return, for each of ``_LOOKS`` batches, the seconds from the moment when its records are durable until the page
    shows them to a client that polls as often as a browser."""
    from tornado.httpclient import AsyncHTTPClient

    from fleet_tune.base.records.stores.store import RecordStore
    from fleet_tune.report.dashboard.server import serve, site_of

    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(site_of(folder), "127.0.0.1", 0, ready.set_result))
    url = f"http://127.0.0.1:{await ready}/?part=main"
    client = AsyncHTTPClient()
    client.configure(None, defaults={"request_timeout": _PAGE_SECS})

    async def look() -> bytes:
        return (await client.fetch(url, request_timeout=_PAGE_SECS)).body

    shown = await look()
    waits = []
    with RecordStore(folder / "records.db") as store:
        for number in range(_LOOKS):
            await asyncio.sleep(_POLL_SECS * (number % 5) / 5)  # records come at different moments between two polls
            store.append([next(coming) for _ in tasks])
            began, before = time.perf_counter(), shown
            while shown == before:
                await asyncio.sleep(_POLL_SECS)
                shown = await look()
            waits.append(time.perf_counter() - began)
    serving.cancel()
    return waits


def report_cost(folder: Path) -> tuple[float, int]:
    """Return the seconds to write the report, and its size in bytes."""
    from fleet_tune.report.html.page import write_report

    began = time.perf_counter()
    write_report(folder, folder / "report.html")
    return time.perf_counter() - began, (folder / "report.html").stat().st_size


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    page = details["page_secs"]
    rows = (
        ("metrics at 100 records a second, % of a core", f"{100 * details['exporter_cores']:.2f}", "1"),
        ("a record on the page, s: median (longest)", f"{page['median']:.2f} ({page['max']:.2f})", "1"),
        (f"report of {details['records']:,} records, s", f"{details['report_secs']:.2f}", "10"),
        ("its size, MB", f"{details['report_bytes'] / 1e6:.2f}", "5"),
    )
    return markdown(("figure", "measured", "asked, at most"), rows)


BENCHMARK = Benchmark(
    name="observing",
    help="What metrics, the dashboard's page and the report of a run cost.",
    options=(
        options.dataset(),
        options.count("--records", 100_000, "In the store of the page and the report."),
        click.Option(["--seconds"], type=float, default=30.0, help="The metrics are served for these."),
    ),
    short=("--records", "10000", "--seconds", "5"),
    run=run,
    table=table,
)
