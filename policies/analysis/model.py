"""The interface of the analytic models: one for each kind of device and of kernel."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policies.analysis.symbols import Symbols
from policies.arrays import Floats


class AnalyticModel(Protocol):
    """A model evaluated for ``n`` candidates of a sketch; every vector has the shape ``(n,)``."""

    latency_secs: Floats
    """Predicted seconds of a run, positive and finite."""
    feasible: NDArray[np.bool_]
    """True for candidates that are worth building."""

    @property
    def within_limits(self) -> NDArray[np.bool_]:
        """True for candidates that can be built. They may need too many registers or too much shared memory: the
        latency contains the penalties for that."""
        ...

    def symbols(self) -> tuple[Symbols, ...]:
        """S1 to S9 of the statements whose features the learned models read."""
        ...

    def statement_symbols(self) -> tuple[Symbols, ...]:
        """S1 to S9 of every statement, the main one first. Pruner's equation 1 sums over them."""
        ...

    def core(self) -> dict[str, Floats]:
        """The terms that every candidate for such a device has, by name, positive or zero."""
        ...

    def terms(self) -> dict[str, Floats]:
        """The core terms and the details of this kernel, by name, positive or zero."""
        ...
