"""A run callback for the store that several runs share: it synchronizes the store and exchanges records with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from actors.clients.calls import error_line
from actors.clients.threads import in_thread
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.errors import FleetTuneError, RecordStoreError
from fleet_tune.base.records.sharing.shared import check_shared, shared_store
from fleet_tune.base.records.sharing.team import Team, sync_team
from fleet_tune.runs.interruption import Interruption
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import OngoingTuning, RunCallback
from fleet_tune.runs.shared_store.efforts import note_efforts
from fleet_tune.runs.shared_store.exchange import StoreSubscription, StoreUploader, take
from fleet_tune.runs.tuned import Tuned

EXCHANGE_SECS = 60.0
_LOG = logging.getLogger(__name__)


class SharedStore(RunCallback):
    """The shared store of one run. A run goes without it if its request has none, or if the default store, which the
    user has not named, cannot be used."""

    failure = "records are not exchanged with the shared store any more"

    def __init__(
        self, request: RunRequest, run_id: str, reporter: ProgressReporter, interruption: Interruption
    ) -> None:
        self.path: Path | None = None
        """The file of the store. None in a run without one."""
        self._request = request
        self._run_id = run_id
        self._reporter = reporter
        self._interruption = interruption
        self._team: Team | None = None
        self._uploader: StoreUploader | None = None
        self._subscription: StoreSubscription | None = None

    def before(self) -> None:
        """Check the store of the request, and make it if it is missing. Raises :class:`RecordStoreError` if the user
        has named a store that cannot be used."""
        place = self._request.store
        if place is None:
            return
        try:
            check_shared(place.path)
            with shared_store(place.path):
                pass
        except RecordStoreError as error:
            self._go_without(error)
            return
        self.path = place.path
        self._uploader = StoreUploader(self._request.records, place.path)
        if place.server:
            self._reporter.syncs_with = place.shown

    async def synchronize(self) -> None:
        """Fetch all records from the team's server, in a thread, if the store is a copy of a team's store."""
        place = self._request.store
        if self.path is not None and place is not None and place.server:
            try:
                self._team = await in_thread(sync_team, place)
            except RecordStoreError as error:
                self._go_without(error)
                self.path = self._uploader = None
            self._reporter.syncs_with = ""

    def subscribe(self) -> None:
        """Remember the present end of the store: :meth:`during` takes records that other runs add after it."""
        if self.path is not None:
            self._subscription = StoreSubscription(self.path, self._run_id)

    async def during(self, tuning: OngoingTuning) -> None:
        """Exchange records with the store each minute: upload new records for other runs, and take new records of other
        runs, so that this run does not measure the same candidates."""
        uploader, team, subscription = self._uploader, self._team, self._subscription
        if uploader is None:
            return
        # Without efforts: they are known only at the end of the run.
        steps: dict[str, Callable[[], object]] = {
            "new records are not uploaded to the store": lambda: uploader.give(with_efforts=False)
        }
        if team is not None:
            steps["the team's store is not synchronized with its server"] = lambda: team.sync(with_efforts=False)
        if subscription is not None:
            steps["records of other runs are not taken from the store"] = lambda: self._take_new(tuning, subscription)
        failing: set[str] = set()  # failures that are reported already
        while True:
            await asyncio.sleep(EXCHANGE_SECS)
            for what, step in steps.items():
                try:
                    await in_thread(step)
                    failing.discard(what)
                except Exception as error:
                    if what not in failing:
                        _LOG.warning("%s", what, exc_info=not isinstance(error, FleetTuneError))
                        tuning.session.notice(f"{what}, which is retried every minute: {error_line(error)}", False)
                    failing.add(what)

    def _take_new(self, tuning: OngoingTuning, subscription: StoreSubscription) -> None:
        prepared, writer = tuning.prepared, tuning.session.store_writer
        tasks, origins = {entry.task.id for entry in prepared.undescribed}, prepared.origins
        with subscription.new(tasks, origins) as found:
            take(found, self._request.records, writer, origins, prepared.device_ids)

    async def after(self, tuned: Tuned) -> None:
        """Upload the efforts of the run, and the records that are not uploaded yet. If this fails, the next run with
        this output folder uploads them."""
        if self._uploader is not None:
            await in_thread(self._upload_all, self._uploader, tuned)

    def _upload_all(self, uploader: StoreUploader, tuned: Tuned) -> None:
        hurry, last, tuning = self._interruption.came, self._reporter.last, tuned.progress
        try:
            if last is not None and tuning is not None and last.phase != "starting":
                note_efforts(
                    self._request.records,
                    self._run_id,
                    self._request.limits,
                    last.tasks,
                    tuning.elapsed_secs - (self._reporter.tuning_began or 0.0),
                    tuning.new_trials,
                    tuned.tried,
                )
            uploader.give(hurry=hurry)
            if self._team is not None:
                self._team.sync(hurry=hurry)
        except RecordStoreError as error:
            text = f"new records are not in the store yet, and the next run uploads them: {error.problem}"
            self._reporter.warn(text)

    def _go_without(self, error: RecordStoreError) -> None:
        """Raise the error if the user has named the store. Otherwise log a warning: the run goes without a store."""
        if self._request.store_named:
            raise error
        _LOG.warning("the run goes without a store: %s", error.problem)
