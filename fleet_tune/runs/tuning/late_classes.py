"""A run callback for device classes that join while a run tunes. Each is prepared like the classes at the start."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from pathlib import Path

from actors.clients.calls import error_line
from actors.clients.threads import in_thread
from actors.tuning_session import TuningSession
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import UserError
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes, run_store
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import OngoingTuning, RunCallback

_LOG = logging.getLogger(__name__)


class LateClasses(RunCallback):
    """Adds the device classes that join while a run tunes, one after the other. A class that cannot be added is
    reported and does not affect the others."""

    failure = "device classes that join late are not added any more"

    def __init__(self, request: RunRequest, run_id: str, store: SharedStore, reporter: ProgressReporter) -> None:
        self._request = request
        self._run_id = run_id
        self._store = store
        self._reporter = reporter

    async def during(self, tuning: OngoingTuning) -> None:
        """Prepare the network for each class that joins."""
        session = tuning.session
        while True:
            device, fingerprint = await session.next_class()
            try:
                await self._add_or_refuse(tuning, device, fingerprint)
            except asyncio.CancelledError:
                name = fingerprint.device_class.name
                text = (
                    f"class {name} is not part of this run: the tuning was over before the network was prepared for it"
                )
                self._reporter.warn(text)
                raise

    async def _add_or_refuse(self, tuning: OngoingTuning, device: DeviceConfig, fingerprint: Fingerprint) -> None:
        name = fingerprint.device_class.name
        try:
            await self._add(tuning, device, fingerprint)
        except UserError as error:
            await self._refuse(tuning.session, name, error.problem)
        except Exception as error:
            _LOG.exception("the network is not prepared for class %s", name)
            await self._refuse(tuning.session, name, error_line(error))

    async def _add(self, tuning: OngoingTuning, device: DeviceConfig, fingerprint: Fingerprint) -> None:
        session, running = tuning.session, tuning.prepared
        with _lowering_process(session.window) as lowering:
            late = await in_thread(
                prepare_late_class, running, device, fingerprint, self._request, lowering, self._store.path
            )
        await in_thread(run_store.introduce, late, self._request, self._run_id, session.store_writer)
        if await session.add_class(late.undescribed, late.settled):
            tuning.add_classes(late)
        else:
            name = fingerprint.device_class.name
            await session.refuse_class(name, "the tuning was over before the network was prepared for it")

    async def _refuse(self, session: TuningSession, name: str, reason: str) -> None:
        try:
            await session.refuse_class(name, reason)
        except Exception as error:
            _LOG.exception("class %s is not refused", name)
            session.notice(f"class {name} does not join this run: {reason} ({error_line(error)})", False)


def prepare_late_class(
    running: Prepared,
    device: DeviceConfig,
    fingerprint: Fingerprint,
    request: RunRequest,
    lowering: LoweringProcess,
    store: Path | None,
) -> Prepared:
    """Prepare the network of a run for the class of one device, by the same steps as at the start of the run.

    Args:
        running: the network as it is prepared so far.
        device, fingerprint: the device and its fingerprint.
        request: the request of the run.
        lowering: the process that lowers the network.
        store: the shared store. If it cannot be read, the class goes without it; the problem is reported when the run
            uploads its records.

    Raises UserError for a network, or a source to learn from, that cannot be used for this class.
    """
    fleet = request.fleet.model_copy(update={"devices": (device,), "source": None})
    of_class = dataclasses.replace(request, fleet=fleet, store_named=False)
    late = device_classes.prepare_classes(running.network, {device.name: fingerprint}, of_class, lowering, store)
    late = dataclasses.replace(late, expected=running.expected, other_extents=running.other_extents)
    late = device_classes.check(late, lowering)
    return device_classes.with_search_prior(late, request, running.first_prior)


def _lowering_process(window: QuietWindow | None) -> contextlib.closing[LoweringProcess]:
    """Return a process that lowers networks while devices of this host may measure."""
    return contextlib.closing(LoweringProcess(window=window))
