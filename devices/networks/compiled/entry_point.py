"""An entry point of a compiled network: the network, for a part of the range of its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from devices.networks.input_shapes import InputShapes, NetworkInputError


class NetworkEntryPoint:
    """A part of a compiled network's range as a callable.

    Args:
        network: takes the inputs and returns the outputs.
        inputs: the inputs that the network takes.
        name: name of the entry point.

    Raises :class:`NetworkInputError` if the network has no entry point of this name.
    """

    def __init__(self, network: Callable[..., Any], inputs: InputShapes, name: str) -> None:
        if name not in inputs.entry_points:
            has = f"it has {', '.join(inputs.entry_points)}" if inputs.entry_points else "it has none"
            raise NetworkInputError(
                f"the network has no entry point {name!r}: {has}",
                'name one of these, or compile it with --shapes "...; NAME: DIMENSION=EXTENTS"',
            )
        self.name = name
        self._network = network
        self._inputs = inputs

    def __call__(self, *inputs: Any, donate: Collection[str] = ()) -> Any:
        """Return the outputs of the network; ``donate``: as for the network. Raises :class:`NetworkInputError` for
        inputs outside of the entry point's range."""
        self._inputs.check_entry_point(self.name, inputs)
        return self._network(*inputs, donate=donate)
