"""The record store of a run before it tunes: its network, its device classes and the found records are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.records.datasets.dataset_codec import encode_value
from fleet_tune.base.records.sharing.shared import SharedReader
from fleet_tune.base.records.stores.store import BOUND, NAME, PRECISION, SHAPES, RecordStore, class_unit
from fleet_tune.base.results import SkippedPart
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing.present_network import refuse_other_network
from fleet_tune.runs.shared_store.damaged_records import set_aside
from fleet_tune.runs.shared_store.exchange import RecordSink, take


class RunStoreWriter(RecordSink, Protocol):
    """Writes into the store of a run: a :class:`RecordStore`, or the recorder of a run that tunes."""

    def put_classes(self, fingerprints: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`RecordStore.put_classes`."""


def bind_store(path: Path, prepared: Prepared) -> dict[str, str]:
    """Bind the record store to this network and its device classes, and return the stored description of the network.
    Raises :class:`OutputFolderError` if the store belongs to another network, or knew a class with another target."""
    network = prepared.network
    meta = {BOUND: network.fingerprint, NAME: network.name}
    if network.conversion is not None:
        meta[PRECISION] = network.conversion.options
    if network.shapes is not None:
        bounds = ", ".join(map(str, network.shapes.dynamic))
        meta[SHAPES] = f"{bounds}, typically {', '.join(map(str, network.shapes.typical.values()))}"
    with RecordStore(path) as store:
        store.bind(meta)
        with SharedReader(path) as reader:
            # Records that were merged before the devices were known count in the units of their classes.
            for name, configs in prepared.devices.items():
                secs = reader.speeds.unit_of(class_unit(name))
                if secs is not None:
                    for config in configs:
                        store.unit(config.name, secs)
        _put_classes(prepared, store)
    return meta


def introduce(prepared: Prepared, request: RunRequest, run_id: str, store: RunStoreWriter) -> None:
    """Write the device classes, the origins of the run's records, and the records that were found in the shared store.
    Raises OutputFolderError if earlier runs in this folder knew a class with another target."""
    _put_classes(prepared, store)
    if not request.fleet.datasets:
        store.put_run(run_id, prepared.origins)
    if prepared.found is not None:
        take(prepared.found, request.records, store, prepared.origins, prepared.device_ids)


def open_run_store(prepared: Prepared, request: RunRequest, run_id: str) -> tuple[Prepared, dict[str, str]]:
    """Bind the store of a run that begins, and write to it what is known. Return the network with a notice of damaged
    records, and the result of :func:`bind_store`."""
    refuse_other_network(request.out, prepared.network.name)
    meta = bind_store(request.records, prepared)
    with RecordStore(request.records) as store:
        introduce(prepared, request, run_id, store)
    return without_damaged(prepared, request.records), meta


def without_damaged(prepared: Prepared, records: Path) -> Prepared:
    """Add damaged records of a store, if any, to the parts that the run does without."""
    damaged = set_aside(records)
    return prepared.with_left_out(SkippedPart("record", "", "", "", damaged)) if damaged else prepared


def _put_classes(prepared: Prepared, store: RunStoreWriter) -> None:
    store.put_classes([encode_value(each) for each in prepared.fingerprints.values()])
