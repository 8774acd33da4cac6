"""Phases of a run."""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """Phases of a run, in order. A run may skip some."""

    STARTING = enum.auto()  # until what earlier runs left is read
    TUNING = enum.auto()  # until a limit is reached, every task is finished, or somebody stops it
    LAST_BATCHES = enum.auto()  # what is being measured is stored, what is only built is dropped
    CATCHING_UP = enum.auto()  # until every record of them has come
    SHOOT_OUTS = enum.auto()  # see policies.runs.stages.final_round
    CLOSING = enum.auto()  # until every record and every change of a device is durable and has come
    FINISHED = enum.auto()

    @property
    def word(self) -> str:
        """Name for people; the phases at the end of a run have one name."""
        return self.name.lower() if self in (Phase.STARTING, Phase.TUNING, Phase.FINISHED) else "finishing"
