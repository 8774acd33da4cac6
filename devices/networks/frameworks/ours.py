"""The compiled network as one of the frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devices.networks.compiled_network import CompiledNetwork
from devices.networks.frameworks.runners import Loaded
from devices.networks.frameworks.texts import STEPS, Text
from devices.networks.input_shapes import InputShapes, NetworkInputError
from devices.networks.network_folder import load


def ours(folder: str) -> Loaded:
    """Load the compiled network in ``folder``. Where it has growing caches, its runs are the steps of a text."""
    network = load(folder)
    if not network.caches:
        return lambda inputs: lambda: network(*inputs)
    return lambda inputs: _text(network, inputs)


def _text(network: CompiledNetwork, inputs: Sequence[Any]) -> Text:
    first, steps = _beginning(network, inputs)
    given: list[Any] = []

    def begin() -> None:
        given[:] = network.in_buffers(*first)

    def step() -> Any:
        outputs = network(*given)
        for cache in network.caches:
            given[cache.input] = outputs[cache.output]
        return outputs

    return Text(begin, step, lambda: network(*inputs), steps)


def _beginning(network: CompiledNetwork, inputs: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Return what a text begins with and its steps: the inputs, or the caches some steps earlier where it would come to
    the largest extent."""
    shapes = InputShapes(network.manifest)
    extents = shapes.extents_of(inputs)
    left = min(cache.steps_left(inputs[cache.input].shape, extents) for cache in network.caches)
    for back in range(STEPS - left, 0, -1):
        earlier = list(inputs)
        for cache in network.caches:
            rows = inputs[cache.input]
            count = rows.shape[cache.axis]
            added = cache.rows_after(rows.shape, extents) - count
            earlier[cache.input] = cache.rows(rows, max(0, count - back * added))
        try:
            shapes.check(earlier)
        except NetworkInputError:  # below the smallest extent
            continue
        return earlier, left + back
    return inputs, min(left, STEPS)
