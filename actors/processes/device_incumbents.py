"""The incumbents of the tasks that a device measures."""

from __future__ import annotations

from actors.clients.artifacts import unpacked
from actors.clients.device import TaskArtifacts
from devices.protocol import Artifact
from fleet_tune.base.domain import Incumbent, Measurement

KnownIncumbents = tuple[dict[str, Incumbent], dict[str, Artifact]]
"""Incumbents and their artifacts, by task."""


class DeviceIncumbents:
    """The best candidate of each task, with its artifact if that is available. Other candidates meet it in duels."""

    def __init__(self) -> None:
        self._incumbents: dict[str, Incumbent] = {}
        self._rivals: dict[str, Artifact] = {}
        self._limits: dict[str, float | None] = {}

    def knows(self, task_id: str) -> bool:
        """Return true if :meth:`take` was called for a task since :meth:`clear`."""
        return task_id in self._incumbents

    def take(self, task_id: str, of_task: TaskArtifacts) -> None:
        """Take in the incumbent and the limit of a task. The incumbent may differ from the last one of this device:
        then its artifact is fetched, if it is built."""
        self._incumbents[task_id] = of_task.incumbent
        self._limits[task_id] = of_task.limit_secs
        rival = self._rivals.get(task_id)
        if rival is None or rival.candidate is None or rival.candidate.id != of_task.incumbent.candidate_id:
            self._rivals.pop(task_id, None)
            for reference in of_task.rival:
                self._rivals[task_id] = unpacked(reference)

    def of(self, task_id: str) -> Incumbent:
        return self._incumbents[task_id]

    def rival(self, task_id: str) -> Artifact | None:
        """Return the artifact of a task's incumbent; None if it is not available."""
        return self._rivals.get(task_id)

    def rivals(self) -> list[Artifact]:
        """Return the artifacts of all incumbents that are available."""
        return list(self._rivals.values())

    def limit_secs(self, task_id: str) -> float | None:
        """Return the longest measurement of a candidate; None for the rule's timeout."""
        return self._limits.get(task_id)

    def consider(self, artifact: Artifact, measured: Measurement) -> None:
        """Make this candidate the incumbent of its task if it is verified and ranks before the present incumbent."""
        assert artifact.candidate is not None
        if measured.verified and measured.rank_secs < self._incumbents[artifact.task_id].rank_secs:
            incumbent = Incumbent(artifact.candidate.id, measured.cost_secs, measured.rank_secs)
            self._incumbents[artifact.task_id], self._rivals[artifact.task_id] = incumbent, artifact

    def known(self) -> KnownIncumbents:
        """Return the present incumbents, for :meth:`go_back`."""
        return dict(self._incumbents), dict(self._rivals)

    def go_back(self, known: KnownIncumbents) -> None:
        """Restore the incumbents that :meth:`known` has returned."""
        incumbents, rivals = known
        self._incumbents, self._rivals = dict(incumbents), dict(rivals)

    def clear(self) -> None:
        self._incumbents.clear()
        self._rivals.clear()
        self._limits.clear()
