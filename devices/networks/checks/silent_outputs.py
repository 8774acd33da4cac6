"""Silent outputs, whose comparison tells nothing: no finite number, one number everywhere, or the same for all inputs.

Such an output agrees whatever the kernels before it compute. So other inputs are tried, on which its comparison may
tell something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from devices.networks.input_ranges import example_inputs
from devices.networks.network import Array, Network
from fleet_tune.base.errors import UserError

_DRAWS = ((1, False), (2, True))
"""Number of each further draw of inputs, and true if its floats are positive."""


@dataclass(frozen=True)
class SilentOutput:
    """An output whose comparison on the example inputs tells nothing."""

    at: int
    """Position of the output."""
    reason: str
    """Reason in words."""
    others: tuple[Network, tuple[Array, ...]] | None
    """The network on other inputs, on which the comparison tells something, with the outputs of its framework. None if
    no such inputs were found."""


def silent_outputs(network: Network, expected: Sequence[Array]) -> list[SilentOutput]:
    """Return the silent outputs of ``network``. ``expected``: the framework's outputs on the example inputs. Runs the
    framework on other inputs."""
    reasons = {at: said for at, output in enumerate(expected) if (said := _uniform(output))}
    drawn: list[tuple[Network, tuple[Array, ...]]] = []
    for draw, positive in _DRAWS:
        if drawn and not reasons:
            break
        other = network.given(example_inputs(network.fixed_module(), positive, draw), "other inputs")
        try:
            outputs = other.framework_outputs()
        except UserError:  # the inputs are not in the domain of the network
            continue
        if not drawn:
            for at, output in enumerate(outputs):
                if _are_same(output, expected[at]):
                    reasons.setdefault(at, "does not depend on the inputs")
        drawn.append((other, outputs))
    return [
        SilentOutput(at, reason, next((each for each in drawn if _says_something(each[1][at], expected[at])), None))
        for at, reason in sorted(reasons.items())
    ]


def _says_something(output: Array, before: Array) -> bool:
    return not _uniform(output) and not _are_same(output, before)


def _uniform(output: Array) -> str:
    """Return in words that an output has no finite number, or one number everywhere. Empty if it has several numbers,
    or is a single finite number."""
    if not output.size:
        return ""
    wide = output.astype(np.float64) if output.dtype.kind not in "iub" else output
    if output.dtype.kind not in "iub" and not np.isfinite(wide).any():
        return "has no finite number"
    first = wide.reshape(-1)[0]
    if output.size == 1 or not (wide == first).all():
        return ""
    return f"is {first:g} everywhere"


def _are_same(output: Array, other: Array) -> bool:
    if output.dtype.kind in "iub":
        return bool(np.array_equal(output, other))
    return bool(np.array_equal(output.astype(np.float64), other.astype(np.float64), equal_nan=True))
