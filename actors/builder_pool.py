"""The builder pool: carries out a run's builds, for its tuning and for its shoot-outs alike."""

from __future__ import annotations

from collections.abc import Sequence

from actors.artifacts import Artifacts
from actors.calls import first_line
from actors.clients import LOST, BuilderClient
from devices.protocol import BuildRequest
from policies.runs.commands import Build
from policies.runs.events import BuilderLost, Built


class BuilderPool:
    """``builders`` by their numbers."""

    def __init__(self, builders: Sequence[BuilderClient], artifacts: Artifacts) -> None:
        self._builders = builders
        self._artifacts = artifacts

    async def build(self, command: Build) -> Built | BuilderLost:
        """Build, and keep the artifact."""
        request = BuildRequest(command.task, command.candidate, command.timeout_secs)
        try:
            failure, artifact = await self._builders[command.builder].build(request)
        except LOST as error:
            return BuilderLost(command.builder, first_line(error))
        if failure is not None:
            return Built(command.builder, failure.measurement, failure.trace)
        self._artifacts.put(command.task.id if command.candidate is None else command.candidate.id, artifact)
        return Built(command.builder)
