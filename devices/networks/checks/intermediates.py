"""Search for the operator at which an imported network and its framework begin to differ.

Both compute the values between the inputs and the outputs, and the first that differ are found: with up to
:data:`_AT_ONCE` values as the network's outputs at a time, then with those between the last equal and the first other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devices.networks.network import Intermediate, Network

_AT_ONCE = 64
"""Values that are computed and compared at a time: each is kept in memory, and keeps operators from being fused."""

Compare = Callable[["Network"], Sequence[float]]
"""Returns of each output of a network the relative error; 0 where rounding alone may explain it."""


def first_difference(network: Network, errors_of: Compare) -> tuple[Intermediate, float] | None:
    """Return the first value that differs from the framework's, in the order of computation, and its relative error.
    None where all values agree.

    Raises :class:`fleet_tune.base.errors.NetworkError` where a network that returns its values cannot be imported, and
    what ``errors_of`` raises.
    """
    framework = network.framework
    values = framework.intermediates()
    first, end = 0, len(values)
    with tempfile.TemporaryDirectory(prefix="fleet-tune-values-") as folder:
        while first < end:
            step = -(-(end - first) // _AT_ONCE)
            chosen = sorted({*range(first + step - 1, end, step), end - 1})
            opened = framework.returning([values[at] for at in chosen], Path(folder))
            errors = errors_of(opened.given(network.example_inputs, network.inputs_from))
            differ = [at for at, error in enumerate(errors) if error]
            if not differ:
                return None
            if step == 1:
                return values[chosen[differ[0]]], errors[differ[0]]
            first = chosen[differ[0] - 1] + 1 if differ[0] else first
            end = chosen[differ[0]] + 1
    return None
