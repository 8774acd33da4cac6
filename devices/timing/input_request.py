"""A request for the inputs of a kernel. Inputs are the same wherever they are made. If they are made in the process
that runs the kernel, nothing is sent."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from devices.host.file_cache import source_digest
from devices.protocol import Artifact, CheckPlan, TensorSpec, decode_check_plan, decode_specs
from devices.timing.arguments import Array, each_input
from devices.timing.checked_inputs import each_checked_input


@dataclass(frozen=True)
class InputRequest:
    """The inputs of a timed run, or of one whose outputs are compared."""

    task_id: str
    args: tuple[TensorSpec, ...]
    outputs: tuple[int, ...]
    positive: bool
    plan: CheckPlan | None = None
    """Plan of a run whose outputs are compared; ``None`` for a timed run."""
    special: bool = False
    """True for inputs with special values."""

    @classmethod
    def timed(cls, artifact: Artifact, positive: bool) -> InputRequest:
        """Return the request for a timed run; see :func:`devices.timing.arguments.each_input`."""
        return cls(artifact.task_id, artifact.original_args, artifact.outputs, positive)

    def arrays(self) -> Iterator[Array]:
        """Make the arrays of all arguments, one after the other: each may be large."""
        if self.plan is None:
            return each_input(self.task_id, self.args, self.outputs, self.positive)
        return each_checked_input(self.task_id, self.args, self.outputs, self.positive, self.plan, self.special)

    def to_json(self) -> str:
        """Return the request as text."""
        return json.dumps([made_by(), asdict(self)])

    @classmethod
    def from_json(cls, text: str) -> InputRequest | None:
        """Return the request that :meth:`to_json` wrote; ``None`` if another version of our code or of numpy wrote it:
        it may draw other numbers."""
        theirs, fields = json.loads(text)
        if theirs != made_by():
            return None
        fields["args"], fields["outputs"] = decode_specs(fields["args"]), tuple(fields["outputs"])
        fields["plan"] = fields["plan"] and decode_check_plan(fields["plan"])
        return cls(**fields)


@functools.cache
def made_by() -> list[str]:
    """Return the versions of numpy and of our code, on which the drawn numbers depend. The first call must come before
    the code on disk may change."""
    return [np.__version__, source_digest()]
