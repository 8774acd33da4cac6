"""Phases of a run."""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """Phases of a run, in order. A run may skip some."""

    STARTING = enum.auto()  # until the records and states of earlier runs are read
    TUNING = enum.auto()  # until a limit is reached, every task is finished, or somebody stops it
    LAST_BATCHES = enum.auto()  # measurements under way are stored, candidates that are only built are dropped
    CATCHING_UP = enum.auto()  # until every record of these measurements has come
    SHOOT_OUTS = enum.auto()  # see policies.runs.stages.final_round
    CLOSING = enum.auto()  # until every record and every change of a device is durable and has come
    FINISHED = enum.auto()

    @property
    def word(self) -> str:
        """Name for people; the phases at the end of a run have one name."""
        return self.name.lower() if self in (Phase.STARTING, Phase.TUNING, Phase.FINISHED) else "finishing"
