"""The builder pool: carries out a run's builds, for its tuning and for its shoot-outs alike."""

from __future__ import annotations

from collections.abc import Mapping

from actors.clients.artifacts import Artifacts
from actors.clients.builder import BuilderClient
from actors.clients.calls import LOST, ActorLostError, error_line, first_line
from devices.builds.builder import BuilderStartError
from devices.host.quiet_windows.quiet_window import QuietTimeoutError
from devices.protocol import BuildRequest
from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.errors import UserError
from policies.runs.commands import Build
from policies.runs.events import BuilderLossCause, BuilderLost, Built


class BuilderPool:
    """Carries out builds. ``builders``: builders by number; builders that join are added to this mapping."""

    def __init__(self, builders: Mapping[int, BuilderClient], artifacts: Artifacts) -> None:
        self._builders = builders
        self._artifacts = artifacts
        self._lost: set[int] = set()  # builders whose process had ended at the last request
        self._has_built = False

    async def build(self, command: Build) -> Built | BuilderLost:
        """Build, and keep the artifact. A builder that was lost gets no job before its process runs again: on a machine
        that is gone, each retry would lose the job once more."""
        builder = self._builders[command.builder]
        if command.builder in self._lost:
            try:
                await builder.is_there()
            except LOST:
                return BuilderLost(
                    command.builder, "no process has taken the place of the lost one yet", BuilderLossCause.ABSENT
                )
            self._lost.discard(command.builder)
        request = BuildRequest(command.task, command.candidate, command.timeout_secs)
        try:
            built = await builder.build(request)
        except UserError as error:
            if not self._has_built:
                raise
            # The error concerns one machine: the others have what it lacks.
            return BuilderLost(command.builder, str(error), BuilderLossCause.NOT_BEGUN)
        except ActorLostError as error:  # it compiles nothing itself: its child process does
            self._lost.add(command.builder)
            return BuilderLost(command.builder, first_line(error), BuilderLossCause.OUTSIDE)
        except Exception as error:
            # With these errors the build has not begun. Any other error, also a late answer, may be the candidate's
            # fault.
            not_begun = isinstance(error, BuilderStartError | QuietTimeoutError)
            return BuilderLost(
                command.builder, error_line(error), BuilderLossCause.NOT_BEGUN if not_begun else BuilderLossCause.JOB
            )
        if isinstance(built, Measurement):
            if built.outcome is Outcome.KILLED:
                return BuilderLost(command.builder, built.detail, BuilderLossCause.OUTSIDE)
            return Built(command.builder, built)
        self._has_built = True
        self._artifacts.put(command.task.id if command.candidate is None else command.candidate.id, built)
        return Built(command.builder)
