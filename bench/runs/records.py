"""Limits of the record store: durable records a second, time of a start with many records, size in bytes, and disk
space of a month.

The recorder is that of a run (:mod:`actors.processes.recorder`), here without Ray. Writers append batches as devices
do. Followers take every page as the answer of an actor, pickled as it would be sent."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pickle
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.result import BenchResult
from bench.runs import synthetic_records
from bench.tables import markdown
from fleet_tune.base.records.stores.pages import unpack_pages

ASKED_A_SECOND, ASKED_START_SECS = 20_000.0, 10.0
_BATCH = 16  # records that a device appends at once
_WRITING = 64  # batches that wait for their commit: one of each device
# The fleet whose month is calculated. The numbers below are for each device.
DEVICES, DAYS = 100, 30
TRIALS_A_MINUTE = 20
FAULTS_A_DAY, EVENTS_A_FAULT = 10, 4
LEASES_A_MINUTE = 10


def run(dataset: Path, records: int, followers: int, most_secs: float) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.db"
        written = asyncio.run(_written(path, dataset, records, followers, most_secs))
        filled = fill(path, dataset, records - written["records"])
        details = {
            "followed": written,
            "filled_a_second": filled,
            "records": records,
            **asyncio.run(_start(path, dataset)),
            "followers": followers,
            "store": sizes(path, records),
        }
    details["month"] = month(details["store"])
    details["asked"] = {"records_a_second": ASKED_A_SECOND, "start_secs": ASKED_START_SECS}
    return BenchResult("records", written["a_second"], None, None, "durable records/s", details)


async def _written(path: Path, dataset: Path, count: int, followers: int, most_secs: float) -> dict[str, Any]:
    """Append up to ``count`` records as fast as possible, for ``most_secs`` at most, while ``followers`` read them, and
    return the figures. The number of records is also limited to ``2 * ASKED_A_SECOND``."""
    from actors.processes.recorder import Recorder

    recorder = Recorder(str(path), {"network": "bench"})
    await recorder.put_tasks(synthetic_records.tasks_of(dataset))
    # The records are made beforehand, since the records of a run come from other processes.
    made = list(itertools.islice(synthetic_records.records(dataset), min(count, int(2 * ASKED_A_SECOND))))
    batches = iter([made[at : at + _BATCH] for at in range(0, len(made), _BATCH)])
    followed = [0] * followers
    over = asyncio.Event()

    @lru_cache(256)
    def unpacked(page: bytes) -> list[int]:
        """Unpack a page once for all followers. In a run, each follower unpacks it in its own process."""
        return [seq for seq, _ in unpack_pages([page], 0)]

    async def follow(number: int) -> None:
        cursor = 0
        while not (over.is_set() and cursor >= await recorder.last_seq()):
            pages = await recorder.follow(cursor, 0.1)
            pickle.dumps(pages, 5)
            for page in pages:
                seqs = unpacked(page)
                followed[number] += sum(seq > cursor for seq in seqs) if seqs[0] <= cursor else len(seqs)
                cursor = seqs[-1]

    async def write() -> None:
        for batch in batches:
            if time.perf_counter() - began > most_secs:
                return
            await recorder.append(batch)

    following = [asyncio.create_task(follow(number)) for number in range(followers)]
    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write() for _ in range(_WRITING)))
    secs = time.perf_counter() - began
    over.set()
    await asyncio.gather(*following)
    everything_secs = time.perf_counter() - began
    durable = await recorder.last_seq()
    await recorder.close()
    assert followed == [durable] * followers, "a follower missed some"
    return {
        "records": durable,
        "secs": secs,
        "a_second": durable / secs,
        "followed_secs": everything_secs,
        "cpu_secs_a_record": (time.process_time() - cpu_began) / durable,
    }


def fill(path: Path, dataset: Path, count: int) -> float | None:
    """Append ``count`` records, 4096 at a time, without followers. Return the records a second, without the time to
    make them; None if ``count`` is not positive."""
    from fleet_tune.base.records.stores.store import RecordStore

    if count <= 0:
        return None
    secs = 0.0
    coming = synthetic_records.records(dataset, "earlier", seed=1)
    with RecordStore(path) as store:
        left = count
        while left > 0:
            batch = list(itertools.islice(coming, min(left, 4096)))
            began = time.perf_counter()
            store.append(batch)
            secs += time.perf_counter() - began
            left -= len(batch)
    return count / secs


async def _start(path: Path, dataset: Path) -> dict[str, Any]:
    """Return the seconds until a recorder has opened the store, and until the state of a run knows all its records."""
    from actors.clients.calls import GC_THRESHOLDS
    from actors.processes.recorder import Recorder
    from fleet_tune.base.records.stores.codec import decode_record
    from policies.runs import events as ev
    from policies.runs.plan import RunPlan
    from policies.runs.planned_task import PlannedTask
    from policies.runs.state import RunState
    from policies.search.bandits import TaskBandit

    gc.set_threshold(*GC_THRESHOLDS)  # as the scheduler does
    tasks = synthetic_records.tasks_of(dataset)
    began = time.perf_counter()
    recorder = Recorder(str(path), {"network": "bench"})
    opened_secs = time.perf_counter() - began
    plan = RunPlan("again", tuple(PlannedTask(task, ("rule",) * 64, 1e-9) for task in tasks), {}, 1)
    state = RunState(plan, TaskBandit())
    state.handle(ev.DevicesRestored({}), 0.0)
    cursor, read_secs, decode_secs = 0, 0.0, 0.0
    while True:
        at = time.perf_counter()
        page = unpack_pages(await recorder.follow(cursor, 0.0), cursor)
        read_secs += time.perf_counter() - at
        if not page:
            break
        at = time.perf_counter()
        found = tuple(decode_record(body, seq) for seq, body in page)
        decode_secs += time.perf_counter() - at
        state.handle(ev.RecordsCommitted(found), 0.0)
        cursor = page[-1][0]
    secs = time.perf_counter() - began
    await recorder.close()
    known = state.progress(0.0).trials
    return {
        "start_secs": secs,
        "opened_secs": opened_secs,
        "read_secs": read_secs,
        "decode_secs": decode_secs,
        "known": known,
    }


def sizes(path: Path, count: int) -> dict[str, float]:
    """Return sizes in bytes: of the file for each record, of a record's body and trace (means), of the file for each
    device event, and of all leases of :data:`DEVICES` devices (``leases``)."""
    import contextlib
    import sqlite3

    from fleet_tune.base.device_state import Connectivity, DeviceEvent, DeviceState, Health, Lease
    from fleet_tune.base.records.stores.store import RecordStore

    with contextlib.closing(sqlite3.connect(path)) as connection:

        def of(query: str) -> float:
            return float(connection.execute(query).fetchone()[0])

        before = of("PRAGMA page_count") * of("PRAGMA page_size")
        body, trace = of("SELECT avg(length(body)) FROM records"), of("SELECT avg(length(packed)) FROM traces")
    good = DeviceState(Connectivity.ONLINE, Health.GOOD, lease=Lease("run", 1.7e9, 1))
    reason = "it does not answer (the network is unreachable: no answer for 6 s) (failure 1)"
    events = [
        DeviceEvent(f"board-{at % DEVICES}", "0123456789abcdef", "lost", reason, good, 1.7e9) for at in range(10_000)
    ]
    leases = [DeviceEvent(event.device_id, event.run_id, "leased", reason, good, 1.7e9) for event in events]
    with RecordStore(path) as store:
        store.append_device_events(events[:DEVICES])
        store.append_device_events(events)
        store.close()
    with_events = path.stat().st_size
    with RecordStore(path) as store:
        store.append_device_events(leases)
        store.close()
    return {
        "a_record": before / count,
        "a_body": body,
        "a_trace": trace,
        "an_event": (with_events - before) / len(events),
        "leases": path.stat().st_size - with_events,
    }


def month(store: Mapping[str, float]) -> dict[str, float]:
    """Return the gigabytes of a month of the fleet above: records, device events, leases, and leases if they were
    stored as events. ``store``: the result of :func:`sizes`."""
    minutes = DAYS * 24 * 60
    return {
        "records_gb": DEVICES * TRIALS_A_MINUTE * minutes * store["a_record"] / 1e9,
        "events_gb": DEVICES * DAYS * FAULTS_A_DAY * EVENTS_A_FAULT * store["an_event"] / 1e9,
        "leases_gb": store["leases"] / 1e9,
        "leases_as_events_gb": 2 * DEVICES * LEASES_A_MINUTE * minutes * store["an_event"] / 1e9,
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    written, store, a_month = details["followed"], details["store"], details["month"]
    rows: Sequence[tuple[str, str]] = [
        (f"durable records a second, {details['followers']} followers", f"{written['a_second']:,.0f}"),
        ("... processor µs a record, followers' answers included", f"{written['cpu_secs_a_record'] * 1e6:,.0f}"),
        (f"start with {details['records']:,} records, s", f"{details['start_secs']:.1f}"),
        ("... of that reading and decoding, s", f"{details['read_secs']:.1f} and {details['decode_secs']:.1f}"),
        ("bytes of the file for each record", f"{store['a_record']:,.0f}"),
        ("... of its body and its trace", f"{store['a_body']:,.0f} and {store['a_trace']:,.0f}"),
        ("bytes of the file for each event of a device", f"{store['an_event']:,.0f}"),
        ("a month of the fleet: records, GB", f"{a_month['records_gb']:,.1f}"),
        ("... events, GB", f"{a_month['events_gb']:.3f}"),
        ("... its leases, GB", f"{a_month['leases_gb']:.3f}"),
        ("... its leases, were they events, GB", f"{a_month['leases_as_events_gb']:,.1f}"),
    ]
    return markdown(("store", "figure"), rows)


BENCHMARK = Benchmark(
    name="records",
    help="Durable records a second with many followers, a start with a million, and what a month takes.",
    options=(
        options.dataset(),
        options.count("--records", 1_000_000, "In the store with which a run starts."),
        options.count("--followers", 50),
        click.Option(["--seconds", "most_secs"], type=float, default=30.0, help="The writer stops after these."),
    ),
    short=("--records", "100000"),
    run=run,
    table=table,
)
