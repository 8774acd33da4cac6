"""A network at extents of its dynamic dimensions other than the typical ones, and its framework's outputs there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from devices.networks.network import Array, Network, WeightedInputs
from devices.networks.tasks.lowering import DisagreementError, LoweredNetwork, agreement
from fleet_tune.base.errors import NetworkError, UserError
from fleet_tune.base.shapes.dimensions import Extents, in_words


@dataclass(frozen=True)
class AtExtents:
    """A network at some extents."""

    extents: Extents
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    """Outputs of the framework. Empty if it refuses the inputs."""
    refused: str = ""
    """Reason why the framework refuses them."""

    @property
    def name(self) -> str:
        """The extents in words: ``n = 5``."""
        return in_words(self.extents)


@dataclass(frozen=True)
class OtherExtents:
    """A network at the other extents at which it is compared with its framework, the smallest first."""

    compared: tuple[AtExtents, ...] = ()
    """Extents that the framework takes."""
    refused: tuple[AtExtents, ...] = ()
    """Extents that it does not take."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """A message for each refusal."""
        return tuple(
            f"with {each.name} it is not compared: its framework refuses these inputs ({each.refused}); give bounds "
            "that it takes"
            for each in self.refused
        )


class DisagreementAtExtentsError(DisagreementError):
    """An imported network and its framework compute different outputs at some extents.

    Args:
        error: the disagreement.
        at: the extents.
    """

    def __init__(self, error: DisagreementError, at: AtExtents) -> None:
        super().__init__(f"with {at.name}: {error.problem}", error.next_step)
        self.extents = at.extents


def other_extents(network: Network) -> OtherExtents:
    """Return the network at the extents :attr:`fleet_tune.base.shapes.shapes.Shapes.others`. There are none if its
    shapes are fixed."""
    compared, refused = [], []
    for extents in network.shapes.others if network.shapes is not None else ():
        at = network.at(extents)
        try:
            compared.append(AtExtents(extents, at.example_inputs, at.framework_outputs()))
        except UserError as error:
            refused.append(AtExtents(extents, at.example_inputs, (), error.problem))
    return OtherExtents(tuple(compared), tuple(refused))


def frequent_inputs(network: Network) -> tuple[WeightedInputs, ...]:
    """Return inputs with the extents :attr:`fleet_tune.base.shapes.shapes.Shapes.frequent`, each after its weight.
    There are none if the network's shapes are fixed."""
    found = () if network.shapes is None else network.shapes.frequent
    return tuple((weight, network.at(extents).example_inputs) for extents, weight in found)


def compare_least(
    others: OtherExtents, lowered: LoweredNetwork, run: Callable[[Sequence[Array]], tuple[Array, ...]]
) -> None:
    """Compare a network without schedules with its framework at the smallest extents, which take the least time, and at
    the smallest without a 0, at which kernels compute something. (The tuned network is compared at all extents.)
    ``run`` runs the network. Raises :class:`DisagreementAtExtentsError`, and the errors of ``run``."""
    not_empty = (each for each in others.compared if 0 not in each.extents.values())
    smallest = {each.name: each for each in (*others.compared[:1], *itertools.islice(not_empty, 1))}
    for at in smallest.values():
        try:
            agreement(lowered, run(at.inputs), at.expected)
        except DisagreementError as error:
            raise DisagreementAtExtentsError(error, at) from error
        except NetworkError as error:
            raise NetworkError(f"with {at.name}: {error.problem}", error.next_step) from error
