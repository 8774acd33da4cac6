"""The service that keeps networks tuned, for weeks of virtual time in this process: prints its resident memory as JSON.

The policy, the state file and the versions of the service are real. Its steps are simulated. As child processes do in
the real service, they append every record of a run to the run's store and copy it to the shared store.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import hashlib
import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from bench.runs import synthetic_records
from fleet_tune.base.config.retune_file import NetworkConfig, load_retune
from fleet_tune.base.domain import Record
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.retuning.service import Service, held
from fleet_tune.retuning.step_runner import PairedRun, TuneOutcome, VersionComparison
from fleet_tune.runs.shared_store.exchange import StoreUploader
from policies.measuring.duel import MAX_PAIRS
from policies.retuning.rules import Moment
from policies.retuning.slowdown import Baseline, Timed
from policies.retuning.state import DeviceAnswer

_CLASS, _DEVICE = "server", "server-1"
_BEGIN = 1.75e9
_DAY_SECS = 86400.0
_FILE = """\
folder = "kept"
fleet = "fleet.toml"
{networks}
[time]
share = 0.05
payback = "3000d"
"""
_NETWORK = '[[network]]\nname = "network-{number}"\npath = "network-{number}.onnx"\ncalls_per_day = 1e9\n'


class StepRunner:
    """See :class:`fleet_tune.retuning.step_runner.StepRunner`. Networks change every ten days.

    Args:
        dataset: dataset whose tasks and sketches the records have.
        store: path of the shared store.
        records_a_run: number of records of each run.
        most: number of records after which the service ends.

    ``looked`` has a pair for each run: the number of records so far, and the resident bytes after the run.
    """

    def __init__(self, dataset: Path, store: Path, records_a_run: int, most: int) -> None:
        self._dataset = dataset
        self._store = store
        self._records_a_run = records_a_run
        self._most = most
        self._now = _BEGIN
        self._rng = np.random.default_rng(0)
        self._coming: Iterator[Record] = synthetic_records.records(dataset)
        self._tasks = synthetic_records.tasks_of(dataset)
        self._runs = itertools.count(1)
        self._giving: dict[Path, StoreUploader] = {}  # a new uploader would copy a whole store again
        self.records = 0
        self.looked: list[tuple[int, int]] = []

    @property
    def stopping(self) -> bool:
        return self.records >= self._most

    @property
    def days(self) -> float:
        """Days of virtual time so far."""
        return (self._now - _BEGIN) / _DAY_SECS

    def moment(self) -> Moment:
        return Moment(self._now, self._now % _DAY_SECS)

    def wait(self, secs: float) -> None:
        self._now += max(secs, 0.01)

    def digest(self, network: NetworkConfig) -> str:
        return f"{network.name} of {int((self._now - _BEGIN) // (10 * _DAY_SECS))}"

    def ask(self, devices: Sequence[str], limit_secs: float) -> list[DeviceAnswer]:
        self._now += min(20.0, limit_secs)
        return [DeviceAnswer(name, _CLASS, "origin") for name in devices]

    def tune(
        self, network: NetworkConfig, devices: Sequence[str], folder: Path, secs: float, limit_secs: float
    ) -> TuneOutcome:
        self._now += min(secs + 60.0 * len(devices), limit_secs)
        folder.mkdir(parents=True, exist_ok=True)
        self._measure(folder / "records.db")
        quality = str(self._rng.uniform(0.5, 1.0))
        (folder / "network.so").unlink(missing_ok=True)
        (folder / "network.so").write_text(quality)
        digest = hashlib.blake2b(f"{network.name} {quality}".encode()).hexdigest()
        (folder / "manifest.json").unlink(missing_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"made_of": digest, "files": {"network.so": digest}}))
        gc.collect()
        self.looked.append((self.records, psutil.Process().memory_info().rss))
        return TuneOutcome(folder, "", secs, 0.01 * float(quality), 0.01, self._records_a_run)

    def _measure(self, own: Path) -> None:
        """Append the records of one run to its ``own`` store, and copy them to the shared store."""
        run_id = f"run-{next(self._runs)}"
        classes = {task.device_class.name: task.device_class.target for task in self._tasks}
        made = [_of(record, run_id) for record in itertools.islice(self._coming, self._records_a_run)]
        with RecordStore(own) as store:
            for task in self._tasks:
                store.put_task(task)
            store.put_run(run_id, {name: Origin(target, "cpu", 1) for name, target in classes.items()})
            for at in range(0, len(made), 64):
                store.append(made[at : at + 64])
        if own not in self._giving:
            self._giving[own] = StoreUploader(own, self._store)
        self.records += self._giving[own].give()

    def compare(self, last: Path, new: Path, device: str, to_the_end: bool, limit_secs: float) -> VersionComparison:  # noqa: ARG002
        self._now += min(30.0, limit_secs)
        secs = [0.01 * float((folder / "network.so").read_text()) for folder in (last, new)]
        noise = np.exp(0.01 * self._rng.standard_normal((MAX_PAIRS, 3)))
        return VersionComparison(tuple(PairedRun(secs[0] * a, secs[1] * b, 1e-3 * c) for a, b, c in noise.tolist()))

    def check(
        self,
        folder: Path,
        device: str,  # noqa: ARG002
        against: Baseline | None,  # noqa: ARG002
        limit_secs: float,
    ) -> tuple[Timed, ...]:
        self._now += min(20.0, limit_secs)
        secs = 0.01 * float((folder / "network.so").read_text())
        noise = np.exp(0.01 * self._rng.standard_normal((MAX_PAIRS, 2)))
        return tuple(Timed(secs * a, 1e-3 * b) for a, b in noise.tolist())

    def prune(self, store: Path, most_mb: int) -> int:  # noqa: ARG002
        return 0

    def hook(self, words: Sequence[str], about: dict[str, str]) -> str:  # noqa: ARG002
        return ""


def _of(record: Record, run_id: str) -> Record:
    return dataclasses.replace(record, uid=f"{run_id}-{record.uid}", run_id=run_id)


def played(dataset: Path, records: int, warm_up: int, records_a_run: int, networks: int) -> dict[str, Any]:
    """Run the service and return its figures. Resident bytes: ``first_bytes`` after the first ``warm_up`` records,
    ``middle_bytes`` after half of ``records`` more, ``last_bytes`` after all. ``growth``: growth from the first to the
    last, as a share."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as text:
        folder = Path(text)
        (folder / "fleet.toml").write_text(f'[[device]]\nname = "{_DEVICE}"\nconnect = "server:1"\n')
        tables = "".join(_NETWORK.format(number=number) for number in range(networks))
        (folder / "retune.toml").write_text(_FILE.format(networks=tables))
        config = load_retune(folder / "retune.toml")
        steps = StepRunner(dataset, config.store, records_a_run, warm_up + records)
        with held(config):
            service = Service(config, steps)
            service.run()
        state_bytes = (config.folder / "state.json").stat().st_size
    first = next(rss for count, rss in steps.looked if count >= warm_up)
    last = steps.looked[-1][1]
    middle = next(rss for count, rss in steps.looked if count >= warm_up + records / 2)
    return {
        "records": steps.records,
        "warm_up": warm_up,
        "runs": len(steps.looked),
        "days": steps.days,
        "published": service.state.published,
        "first_bytes": first,
        "middle_bytes": middle,
        "last_bytes": last,
        "growth": last / first - 1 if first else math.nan,
        "state_bytes": state_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", type=Path)
    for name in ("--records", "--warm-up", "--records-a-run", "--networks"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    result = played(given.dataset, given.records, given.warm_up, given.records_a_run, given.networks)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
