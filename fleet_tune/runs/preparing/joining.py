"""The steps by which a device class joins a run that goes on: those of its start, for one class alone.

They load TVM, as :mod:`fleet_tune.runs.preparing.preparation` does, and take their time beside the tuning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from actors.clients.recorder import StoreWriter
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.datasets.dataset_codec import encode_value
from fleet_tune.runs.preparing import preparation
from fleet_tune.runs.preparing.preparation import Prepared
from fleet_tune.runs.shared_store.exchange import take
from fleet_tune.runs.shared_store.lookup import StoreLookup
from fleet_tune.runs.transfer.transfer_prior import TransferPrior

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Newcomer:
    """A device class that may join. ``prepared``: the network for it alone. ``teaching``: what its tasks learn before
    their first trial; ``found``: what the store that several runs share has of them. None for nothing."""

    prepared: Prepared
    teaching: TransferPrior | None
    found: StoreLookup | None


def newcomer(
    running: Prepared,
    device: DeviceConfig,
    fingerprint: Fingerprint,
    request: RunRequest,
    lowering: LoweringProcess,
    store: Path | None,
    teaching: TransferPrior | None,
) -> Newcomer:
    """Prepare the network of a run for the class of ``device``. ``running``: what is prepared by now; ``store``: that
    several runs share, if any; ``teaching``: of the classes that were there when the run began.

    Raises UserError for a network, or a source to learn from, that is not for this class, and FleetTuneError where
    ``lowering`` is closed meanwhile.
    """
    fleet = request.fleet.model_copy(update={"devices": (device,), "source": None})
    alone = preparation.imported(running.network, {device.name: fingerprint}, fleet, lowering)
    alone = preparation.check(dataclasses.replace(alone, expected=running.expected), lowering)
    found = None if store is None else _found_in(store, alone, request)
    if found is not None:
        alone = preparation.with_imported(alone, found)
    if request.collects:
        teaching = None
    elif request.transfer_from is None or teaching is None:  # what was named is for all classes
        teaching = preparation.teaching_of(alone, request)
    return Newcomer(alone, teaching, found)


def _found_in(store: Path, alone: Prepared, request: RunRequest) -> StoreLookup | None:
    """What the shared store has for a class; that it cannot be used is told when the run gives to it."""
    try:
        return preparation.found_in(store, alone, request)
    except RecordStoreError as error:
        _LOG.warning("nothing is taken from the store: %s", error.problem)
        return None


def introduce(joining: Newcomer, request: RunRequest, run_id: str, store: StoreWriter) -> None:
    """Have the store of the run know a class that joins: its target and what it depends on, and what others have of its
    tasks. Raises OutputFolderError where earlier runs in this folder knew the class with another target."""
    prepared = joining.prepared
    store.put_classes([encode_value(each) for each in prepared.prints.values()])
    if not request.fleet.datasets:
        store.put_run(run_id, prepared.origins)
    if joining.found is not None:
        devices = {name: [config.name for config in configs] for name, configs in prepared.devices.items()}
        take(joining.found, request.records, store, prepared.origins, devices)


def lowering_beside(window: QuietWindow | None) -> contextlib.closing[LoweringProcess]:
    """What lowers the network while devices of this host may measure."""
    return contextlib.closing(LoweringProcess(window=window))
