"""The protocol of a companion: before, during and after a run."""

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
    """The tuning of a run, as its companions see it."""

    @property
    def session(self) -> TuningSession:
        """The session that tunes."""

    @property
    def hosts(self) -> RunHosts:
        """The builders and devices with which the tuning began."""

    @property
    def prepared(self) -> Prepared:
        """The network with all device classes that take part by now."""

    @property
    def is_interrupted(self) -> bool:
        """True once a signal came."""

    def add_classes(self, late: Prepared) -> None:
        """Take device classes whose tasks the session knows by now, and start these as they are described."""


class Companion:
    """Something that goes along with a run. Every method does nothing unless a companion overrides it."""

    failure: ClassVar[str]
    """Notice to people if :meth:`during` fails, as in "the fleet file is not followed any more"."""

    def before(self) -> None:
        """Open what is needed, before any process of the run starts. Raises UserError."""

    async def during(self, tuning: OngoingTuning) -> None:
        """Work beside the tuning. Cancelled when the tuning ends; an error is told and does not end the run."""

    async def after(self, tuned: Tuned) -> None:
        """Finish the work of a run that has tuned, once its networks are published."""

    def close(self) -> None:
        """Release what :meth:`before` opened, however the run ended."""

    def on_record(self, record: Record) -> None:
        """Take note of a record of this run, which is durable."""

    def on_phase(self, phase: str) -> None:
        """Take note of the phase of the run."""

    def on_published(self, networks: Sequence[NetworkResult]) -> None:
        """Take note of the networks that the run leaves."""

    def on_progress(self, progress: Progress) -> None:
        """Take note of a snapshot of the tuning."""
