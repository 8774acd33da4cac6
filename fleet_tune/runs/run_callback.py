"""The protocol of a callback: before, during and after a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from actors.run_hosts import RunHosts
from actors.tuning_session import TuningSession
from fleet_tune.base.domain import Record
from fleet_tune.base.results import NetworkResult, Progress
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.tuned import Tuned


class OngoingTuning(Protocol):
    """The tuning of a run, as its callbacks see it."""

    @property
    def session(self) -> TuningSession:
        """The session that tunes."""

    @property
    def hosts(self) -> RunHosts:
        """The builders and devices with which the tuning began."""

    @property
    def prepared(self) -> Prepared:
        """The network with all device classes that take part so far."""

    @property
    def is_interrupted(self) -> bool:
        """True once a signal came."""

    def add_classes(self, late: Prepared) -> None:
        """Add device classes whose tasks the session already knows. Each task starts when it is described."""


class RunCallback:
    """Work that accompanies a run. Every method does nothing unless a callback overrides it."""

    failure: ClassVar[str]
    """Notice for users if :meth:`during` fails, such as "the fleet file is not followed any more"."""

    def before(self) -> None:
        """Open the resources of the callback, before any process of the run starts. Raises UserError."""

    async def during(self, tuning: OngoingTuning) -> None:
        """Work while the run tunes. Cancelled when the tuning ends. An error is reported and does not end the run."""

    async def after(self, tuned: Tuned) -> None:
        """Finish the work for a run that has tuned. Its networks, if any, are published by then."""

    def close(self) -> None:
        """Release what :meth:`before` opened, however the run ended."""

    def on_record(self, record: Record) -> None:
        """Take note of a durable record of this run."""

    def on_phase(self, phase: str) -> None:
        """Take note of the phase of the run."""

    def on_published(self, networks: Sequence[NetworkResult]) -> None:
        """Take note of the results of the run's networks."""

    def on_progress(self, progress: Progress) -> None:
        """Take note of a snapshot of the tuning."""
