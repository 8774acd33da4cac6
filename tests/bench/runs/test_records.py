"""What the store takes, from rows as runs make them: what docs/store.md says of a month holds."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from bench.datasets import dataset_path
from bench.runs import records, synthetic_records
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore

DOCS = Path(__file__).parents[3] / "docs" / "store.md"


def test_a_month_of_a_hundred_devices_stays_below_what_is_stated(tmp_path: Path) -> None:
    dataset, path = dataset_path(None), tmp_path / "records.db"
    made = list(itertools.islice(synthetic_records.records(dataset), 4000))
    with RecordStore(path) as store:
        for at in range(0, len(made), 500):
            store.append(made[at : at + 500])
    with RecordReader(path) as reader:
        assert [record.trace for record in reader] == [record.trace for record in made]
    month = records.month(records.sizes(path, len(made)))
    stated = {
        what: float(figure)
        for what, figure in re.findall(r"\| (trials|events|leases) \|.*\| below ([0-9.]+) GB", DOCS.read_text())
    }
    assert set(stated) == {"trials", "events", "leases"}
    assert month["records_gb"] < stated["trials"]
    assert month["events_gb"] < stated["events"]
    assert month["leases_gb"] < stated["leases"]


def test_what_is_written_while_others_follow_is_followed_by_all_and_known_after_a_start() -> None:
    result = records.run(dataset_path(None), 600, 5, 60.0)
    details = result.details
    assert details["followed"]["records"] == details["known"] == 600
    assert records.table({"details": details}).count("\n") == 12
