"""A network at other extents of its dynamic dimension than the typical one, as its framework computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from devices.networks.lowering import DisagreementError, LoweredNetwork, agreement
from devices.networks.network import Array, Network
from fleet_tune.base.errors import NetworkError, UserError


@dataclass(frozen=True)
class AtExtent:
    """A network at one extent."""

    name: str
    """The extent in words: ``n = 5``."""
    extent: int
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    """Outputs of the framework. Empty where it refuses the inputs."""
    refused: str = ""
    """Reason why the framework refuses them."""


@dataclass(frozen=True)
class OtherExtents:
    """A network at the other extents at which it is compared with its framework, ascending."""

    compared: tuple[AtExtent, ...] = ()
    """Extents that the framework takes."""
    refused: tuple[AtExtent, ...] = ()
    """Extents that it does not take."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """Texts that tell each refusal."""
        return tuple(
            f"with {each.name} it is not compared: its framework refuses that extent ({each.refused}); give bounds "
            "that it takes"
            for each in self.refused
        )


class DisagreementAtExtentError(DisagreementError):
    """An imported network and its framework compute different outputs at one extent.

    Args:
        error: the disagreement.
        at: the extent.
    """

    def __init__(self, error: DisagreementError, at: AtExtent) -> None:
        super().__init__(f"with {at.name}: {error.problem}", error.next_step)
        self.extent = at.extent


def other_extents(network: Network) -> OtherExtents:
    """Return the network at :attr:`fleet_tune.base.shapes.Shapes.others`; at none, if its shapes are fixed."""
    dynamic = None if network.shapes is None else network.shapes.dynamic
    if network.shapes is None or dynamic is None:
        return OtherExtents()
    compared, refused = [], []
    for extent in network.shapes.others:
        at, name = network.at(extent), f"{dynamic.name} = {extent}"
        try:
            compared.append(AtExtent(name, extent, at.example_inputs, at.framework_outputs()))
        except UserError as error:
            refused.append(AtExtent(name, extent, at.example_inputs, (), error.problem))
    return OtherExtents(tuple(compared), tuple(refused))


def compare_least(
    others: OtherExtents, lowered: LoweredNetwork, run: Callable[[Sequence[Array]], tuple[Array, ...]]
) -> None:
    """Compare a network without schedules at its smallest extent, which takes the least time; the tuned one is compared
    at all of them. ``run`` runs it. Raises :class:`DisagreementAtExtentError`, and what ``run`` raises."""
    for at in others.compared[:1]:
        try:
            agreement(lowered, run(at.inputs), at.expected)
        except DisagreementError as error:
            raise DisagreementAtExtentError(error, at) from error
        except NetworkError as error:
            raise NetworkError(f"with {at.name}: {error.problem}", error.next_step) from error
