"""The choice of a precision for each product of a network: it saves the most time within a largest error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from devices.networks.checks.comparison import errors_of
from devices.networks.network import Array, Network
from devices.networks.processes.lowering_process import LoweringProcess
from devices.networks.tasks.lowering import LoweredNetwork, tolerance
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError, UncheckedError
from fleet_tune.base.precision import ConvertibleProduct, Precision
from fleet_tune.base.results import SkippedPart

MOST_RUNS = 24
"""Maximum of runs of the untuned network in a choice. Products without a choice by then stay in float32."""

Choice = Mapping[int, Precision]
"""Precisions of products, by their places in the network."""


@dataclass(frozen=True)
class PrecisionChoice:
    """A network with the precisions that were chosen for its products."""

    lowered: LoweredNetwork
    left_out: tuple[SkippedPart, ...] = ()
    """Products that stay in float32 although another precision makes them faster."""


def choose_precisions(
    network: Network, device_class: DeviceClass, lowering: LoweringProcess, expected: tuple[Array, ...]
) -> PrecisionChoice:
    """Lower a network whose conversion is ``AUTO`` with the precisions that are chosen for it.

    The untuned network is run with candidates for the choice, on the example inputs and this machine's CPU.
    ``expected``: the outputs of its framework on these inputs.

    Raises :class:`NetworkError` if it cannot be run here, and the errors of :meth:`LoweringProcess.lowered`.
    """
    asked = network.conversion
    assert asked is not None
    limit = asked.max_error
    assert limit is not None
    products = lowering.lowered(network, device_class).convertible

    def lowered_as(choice: Choice) -> LoweredNetwork:
        conversion = replace(asked, products=tuple(sorted(choice.items())))
        return lowering.lowered(replace(network, conversion=conversion), device_class)

    def error_of(choice: Choice) -> float:
        lowered = lowered_as(choice)
        error = errors_of(lowering.outputs(lowered, network.example_inputs), expected).relative
        return error if error <= tolerance(lowered) else float("inf")

    try:
        choice = most_saved(products, lambda choice: error_of(choice) <= limit, MOST_RUNS)
    except UncheckedError as error:
        raise NetworkError(
            f"the error of other precisions cannot be measured: the untuned network does not run here: {error}",
            "name one precision with --precision",
        ) from error
    counts = replace(asked, products=tuple(choice.items())).counts
    told = ", ".join(f"{count} in {name}" for name, count in counts.items()) or "none in another"
    reason = f"in float32, as the error may be {limit:g} ({told})"
    stay = [each for each in products if each.at not in choice]
    left = tuple(SkippedPart("product", each.name, device_class.name, "", reason) for each in stay)
    # Lower it once more: the process runs the network that it has lowered last.
    return PrecisionChoice(lowered_as(choice), left)


def most_saved(products: Sequence[ConvertibleProduct], fits: Callable[[Choice], bool], most_runs: int) -> Choice:
    """Return precisions of products that fit together. Products that save the most time are tried first.

    All are tried together. If they do not fit, their halves are tried, then the halves of a half that does not fit, and
    so on: a few delicate products are found in a few runs. A product that does not fit in its best precision is tried
    in its next one.

    Args:
        products: the products, each with the precisions that save time.
        fits: returns true if the error of a choice is small enough.
        most_runs: maximum of calls of ``fits``.
    """
    runs = 0

    def extended(choice: dict[int, Precision], added: Sequence[tuple[int, Precision]]) -> dict[int, Precision]:
        nonlocal runs
        if not added or runs == most_runs:
            return choice
        runs += 1
        both = choice | dict(added)
        if fits(both):
            return both
        if len(added) == 1:
            return choice
        half = len(added) // 2
        return extended(extended(choice, added[:half]), added[half:])

    choice: dict[int, Precision] = {}
    for rank in range(max((len(each.savings) for each in products), default=0)):
        left = [each for each in products if each.at not in choice and len(each.savings) > rank]
        left.sort(key=lambda each: -each.savings[rank][1])
        choice = extended(choice, [(each.at, each.savings[rank][0]) for each in left])
    return choice
