"""Search for the operator at which an imported network and its framework begin to differ.

Both compute values between the inputs and the outputs, up to :data:`_AT_ONCE` at a time as outputs of the network. The
search goes on between the last value that agrees and the first that differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devices.networks.network import Intermediate, Network

_AT_ONCE = 64
"""Values that are compared at a time. Each is kept in memory, and prevents the fusion of operators."""

Compare = Callable[["Network"], Sequence[float]]
"""Returns the relative error of each output of a network; 0 if rounding alone may explain the difference."""


def first_difference(network: Network, errors_of: Compare) -> tuple[Intermediate, float] | None:
    """Return the first value that differs from the framework's, in the order of computation, and its relative error.
    None if all values agree.

    Raises :class:`fleet_tune.base.errors.NetworkError` if the network that returns these values cannot be imported, and
    the errors of ``errors_of``.
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
