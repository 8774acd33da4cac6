"""The compiled network as one of the frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from devices.networks.compiled.network import CompiledNetwork
from devices.networks.compiled.network_folder import load
from devices.networks.frameworks.runners import Loaded
from devices.networks.frameworks.texts import STEPS, Text
from devices.networks.input_shapes import InputShapes


def ours(folder: str) -> Loaded:
    """Load the compiled network in ``folder``. If it has growing caches, its runs are the decoding steps of a text,
    unless other inputs would have to grow with the caches. Static caches are donated."""
    network = load(folder)
    shapes = InputShapes(network.manifest)
    if network.caches and not shapes.has_sums:
        return lambda inputs: _text(network, shapes, inputs)
    if network.donatable:
        return lambda inputs: partial(network, *network.in_buffers(*inputs), donate=network.donatable)
    return lambda inputs: lambda: network(*inputs)


def _text(network: CompiledNetwork, shapes: InputShapes, inputs: Sequence[Any]) -> Text:
    first, steps = _beginning(network, shapes, inputs)
    given: list[Any] = []

    def begin() -> None:
        given[:] = network.in_buffers(*first)

    def step() -> Any:
        outputs = network(*given)
        for cache in network.caches:
            given[cache.input] = outputs[cache.output]
        return outputs

    return Text(begin, step, lambda: network(*inputs), steps)


def _beginning(network: CompiledNetwork, shapes: InputShapes, inputs: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Return the inputs that a text begins with, and the number of its steps. If a text would reach the largest extent,
    it begins some steps earlier, with fewer rows in the caches."""
    extents = shapes.extents_of(inputs)
    after, before, added = [], [], {}
    for cache in network.caches:
        shape, bounds = inputs[cache.input].shape, shapes.bounds(cache.input, cache.axis)
        rows = shape[cache.axis]
        added[cache] = max(1, cache.rows_after(shape, extents) - rows)
        after.append((bounds.most - rows) // added[cache] + 1)
        before.append((rows - bounds.least) // added[cache])
    back = max(0, min(STEPS - min(after), *before))
    first = list(inputs)
    for cache in network.caches:
        rows = inputs[cache.input]
        first[cache.input] = cache.rows(rows, rows.shape[cache.axis] - back * added[cache])
    return first, min(STEPS, min(after) + back)
