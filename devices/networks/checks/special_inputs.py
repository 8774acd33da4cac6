"""Special inputs: examples with NaN, infinities, both zeros and denormal numbers at random places. They show how a
network treats these.

NaN and infinities are in separate sets: a sum of both is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from devices.networks.network import SEED, Array, Network
from devices.timing.arguments import is_float
from fleet_tune.base.errors import UserError

_SHARE = 256
"""One element in this many has a special value."""
_DENORMAL = float(np.finfo(np.float32).tiny)
"""Differences below the smallest normal number count for nothing."""
_SMALL = (-0.0, 1e-40, -1e-40)
KINDS: dict[str, tuple[float, ...]] = {
    "NaN": (float("nan"), *_SMALL),
    "infinities": (float("inf"), float("-inf"), *_SMALL),
}
"""Values of each set of inputs, by its name in messages."""


def special_inputs(inputs: Sequence[Array], fixed: Sequence[bool]) -> dict[str, tuple[Array, ...]]:
    """Return ``inputs`` with special values, by the name of the set, the same in every process. Empty if no input can
    have special values.

    Args:
        inputs: the example inputs.
        fixed: true for each input that must not change, as its values are indices.
    """
    able = [
        is_float(each.dtype.name) and not stays and each.size > 0 for each, stays in zip(inputs, fixed, strict=True)
    ]
    if not any(able):
        return {}
    return {
        name: tuple(
            _with(each, values, (SEED, number, at)) if is_able else each
            for at, (each, is_able) in enumerate(zip(inputs, able, strict=True))
        )
        for number, (name, values) in enumerate(KINDS.items())
    }


def _with(array: Array, values: tuple[float, ...], seed: tuple[int, ...]) -> Array:
    """Return ``array`` with each of ``values`` at some places."""
    generator = np.random.default_rng(seed)
    each = max(1, array.size // _SHARE // len(values))
    places = generator.permutation(array.size)[: each * len(values)]
    result = np.array(array, order="C")
    result.reshape(-1)[places] = np.resize(np.asarray(values, np.float64), len(places)).astype(array.dtype)
    return result


def special_inputs_of(network: Network) -> dict[str, tuple[Array, ...]]:
    """Return :func:`special_inputs` of a network. Inputs that it uses as indices do not change."""
    from devices.networks.input_ranges import input_ranges

    indices = [each.index for each in input_ranges(network.fixed_module())]
    return special_inputs(network.example_inputs, indices)


def special_outputs_of(network: Network) -> dict[str, tuple[Array, ...] | None]:
    """Return the outputs of the network's framework on each set of special inputs. None if the framework refuses
    them."""
    found: dict[str, tuple[Array, ...] | None] = {}
    for name, inputs in special_inputs_of(network).items():
        try:
            found[name] = network.given(inputs, name).framework_outputs()
        except UserError:
            found[name] = None
    return found


def difference(kind: str, outputs: Sequence[Array], expected: Sequence[Array], tolerance: float) -> str:
    """Return in words how ``outputs`` differ from ``expected`` on the inputs of ``kind``. Empty if they do not.

    NaN and infinity are compared by place. If the inputs have infinities, NaN and infinity count as the same: the
    result of sums with infinities or overflows depends on the order of terms, which frameworks choose differently from
    element to element. Other numbers may differ by ``tolerance`` of the largest one, and booleans and integers by that
    share of them.
    """
    for at, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        if said := _difference(kind, ours, theirs, tolerance):
            return f"on inputs with {kind}, output {at}: {said}"
    return ""


def _difference(kind: str, ours: Array, theirs: Array, tolerance: float) -> str:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    if not ours.size:
        return ""
    if not is_float(ours.dtype.name):
        count = int((ours != theirs).sum())
        return f"{count} of {ours.size} values differ" if count > tolerance * ours.size else ""
    wide, right = ours.astype(np.float64), theirs.astype(np.float64)
    names = ("finite", "NaN", "infinite")
    classes = [np.where(np.isnan(each), 1, np.where(np.isinf(each), 2, 0)) for each in (wide, right)]
    for mine in range(3):
        for wanted in range(3):
            count = int(((classes[0] == mine) & (classes[1] == wanted)).sum())
            both_infinite = kind == "infinities" and mine > 0 and wanted > 0
            if mine != wanted and not both_infinite and count:
                return f"{count} of {ours.size} values are {names[mine]} where the framework's are {names[wanted]}"
    signs = (classes[0] == 2) & (classes[1] == 2) & (wide != right)
    if signs.any():
        return f"{int(signs.sum())} of {ours.size} infinities have another sign"
    finite = (classes[0] == 0) & (classes[1] == 0)
    if not finite.any():
        return ""
    error = float(np.abs(wide[finite] - right[finite]).max())
    scale = float(np.abs(right[finite]).max())
    if error > max(tolerance * scale, _DENORMAL):
        return f"relative error {error / scale if scale else error:.2g}"
    return ""
