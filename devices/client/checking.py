"""Whether the output of a candidate is right: it agrees with that of its task's oracle on the same device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from devices.client.workbench import Workbench
from devices.protocol import Artifact
from devices.timing.arguments import Array, is_float

# An unscheduled convolution takes a second on a server's core and a minute on a small board.
_TIMEOUT_SECS = 150.0

# Largest difference from the oracle, relative to the oracle's largest absolute value. Reordered sums of float32
# differ by about 1e-6 per term's rounding; Winograd's transforms by up to 1e-4; a wrong index by about 1.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


class Oracle:
    """The unscheduled program ``artifact`` of a task. Its outputs are right by definition; it runs once.

    ``positive``: on which kind of inputs (see :func:`devices.timing.arguments.make_inputs`) candidates are timed and
    checked: False until the oracle has run and its outputs are not finite on inputs of both signs.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.positive = False
        self._artifact = artifact
        self._outputs: list[Array] | None = None

    def outputs(self, bench: Workbench) -> list[Array]:
        """Its outputs, those of its first run. Raises SessionLostError, and what TVM raises where that run fails."""
        if self._outputs is None:
            with bench.session.deadline(_TIMEOUT_SECS):
                module = bench.load(self._artifact.library)
                for positive in (False, True):
                    arguments = bench.arguments(self._artifact, module, positive)
                    outputs = bench.outputs(self._artifact, module, arguments)
                    if all_finite(outputs):
                        break
            self.positive, self._outputs = positive, outputs
        return self._outputs


def disagreement(oracle: Sequence[Array], outputs: Sequence[Array]) -> str:
    """Why ``outputs`` are not the oracle's, in one line; empty if they agree.

    Floats agree if NaN and infinities stand in the same places, and elsewhere
    ``|output - oracle| <= tolerance * max |oracle|`` (a maximum below 1e-6 counts as that). Integers and booleans
    agree if they are equal.
    """
    for position, (expected, got) in enumerate(zip(oracle, outputs, strict=True)):
        prefix = f"output {position}: " if len(oracle) > 1 else ""
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return f"{prefix}{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
        name = str(expected.dtype)
        if not is_float(name):
            wrong = int(np.count_nonzero(expected != got))
            if wrong:
                return f"{prefix}{wrong} of {expected.size} values differ"
            continue
        wide, other = expected.astype(np.float64), got.astype(np.float64)
        finite = np.isfinite(wide)
        special = ~finite & ~((wide == other) | (np.isnan(wide) & np.isnan(other)))
        wrong = int(np.count_nonzero((finite & ~np.isfinite(other)) | special))
        if wrong:
            return f"{prefix}{wrong} of {expected.size} values are NaN or infinite in one output and not in the other"
        if not finite.any():
            continue
        scale = float(np.abs(wide[finite]).max())
        error = float(np.abs(other[finite] - wide[finite]).max())
        if error > TOLERANCES[name] * max(scale, 1e-6):
            return f"{prefix}largest difference {error:.3g}, largest oracle value {scale:.3g}"
    return ""


def all_finite(arrays: Sequence[Array]) -> bool:
    """Whether no float array holds NaN or an infinity."""
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in arrays if is_float(str(a.dtype)))
