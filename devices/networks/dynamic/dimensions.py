"""Dynamic dimensions of a network: their bounds, given by the user or by the network itself.

Importing this module does not load TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devices.networks.network import Array, Network, extents_of, fingerprint
from fleet_tune.base.errors import NetworkError
from fleet_tune.base.shapes.dimensions import MOST_EXTENT, Dimension
from fleet_tune.base.shapes.extent_sums import ExtentSum
from fleet_tune.base.shapes.shapes import Shapes


@dataclass(frozen=True)
class DynamicDimension:
    """A dynamic dimension that was found in a network."""

    name: str
    input: str
    """The first input that has it."""
    axis: int
    """Its axis in that input."""
    least: int = 0
    """Smallest extent that the network takes."""
    most: int | None = None
    """Largest extent that the network takes. None if it has no limit."""

    @property
    def bounds(self) -> Dimension | None:
        """Its bounds, if the network has them."""
        if self.most is None or self.most > MOST_EXTENT:
            return None
        return Dimension(self.name, self.least, self.most)

    @property
    def takes(self) -> str:
        """The extents that the network takes, in words."""
        return f"from {self.least} up" if self.most is None else f"from {self.least} to {self.most}"

    def __str__(self) -> str:
        return f"{self.name} (dimension {self.axis} of the input {self.input!r}, {self.takes})"


def bounded(found: Sequence[DynamicDimension], asked: Shapes | None, where: str) -> Shapes | None:
    """Return the shapes of a network with these dynamic dimensions. None if it has none.

    Args:
        found: the network's dynamic dimensions, by name.
        asked: the user's bounds and weights.
        where: the network, for messages.

    Raises :class:`NetworkError` for a dimension without bounds, for bounds of a dimension that the network does not
    have, and for bounds wider than the network's own.
    """
    given = {each.name: each for each in asked.dimensions} if asked is not None else {}
    unknown = sorted(given.keys() - {each.name for each in found})
    if unknown:
        has = f"its dynamic dimensions are {', '.join(map(str, found))}" if found else "it has none"
        raise NetworkError(
            f"{where} has no dynamic dimension {unknown[0]!r}: {has}",
            "give bounds of these alone" if found else "leave --shapes out, or export it with dynamic dimensions",
        )
    dimensions = []
    for each in found:
        bounds = given.get(each.name, each.bounds)
        if bounds is None:
            others = f"; all of them are {', '.join(map(str, found))}" if len(found) > 1 else f", {each.takes}"
            raise NetworkError(
                f"{where}: the input {each.input!r} has the dynamic dimension {each.axis}, {each.name!r}{others}",
                f'give its bounds with --shapes "{_suggestion(found, given)}"',
            )
        if bounds.least < each.least or (each.most is not None and bounds.most > each.most):
            raise NetworkError(
                f"{where} takes {each.name} {each.takes}, and {bounds} is asked for",
                "give bounds within these, or export it with wider ones (torch.export.Dim has min and max)",
            )
        dimensions.append(bounds)
    entry_points = asked.entry_points if asked is not None else ()
    if entry_points and not dimensions:
        raise NetworkError(
            f"{where} has no dynamic dimensions, and the entry point {entry_points[0].name} needs some",
            "leave --shapes out, or export it with dynamic dimensions",
        )
    if not dimensions:
        return None
    if entry_points and all(each.is_fixed for each in dimensions):
        raise NetworkError(
            f"{where}: --shapes fixes all dimensions, and the entry point {entry_points[0].name} is a part of a range",
            "leave the entry points out, or give a dimension several extents",
        )
    named = {each.name: each for each in dimensions}
    return Shapes(tuple(dimensions), tuple(each.among(named) for each in entry_points))


def _suggestion(found: Sequence[DynamicDimension], given: Mapping[str, Dimension]) -> str:
    """Return bounds that the user could ask for."""
    told = []
    for each in found:
        most = max(32 if each.most is None else min(each.most, MOST_EXTENT), each.least)
        told.append(str(given.get(each.name, Dimension(each.name, max(each.least, 1), most))))
    return ", ".join(told)


def with_dimensions(network: Network, shapes: Shapes | None, symbols: Mapping[str, str]) -> Network:
    """Return an imported network with its dynamic dimensions named and bounded, except those that ``shapes`` fixes.

    Args:
        network: a network whose symbolic variables are in its Relax module. Its example inputs are its own, unless
            ``inputs_from`` is empty.
        shapes: as :func:`bounded` returns them.
        symbols: the name of the dimension of each symbolic variable, by the variable's name.
    """
    if shapes is None:
        return network
    from devices.networks.symbolic_variables import named_shapes, with_bounds, with_variables

    fixed = {each.name: each.least for each in shapes.dimensions if each.is_fixed}
    module = with_variables(network.relax_module, {old: fixed.get(name, name) for old, name in symbols.items()})
    dynamic = shapes.dynamic
    module = with_bounds(module, dynamic)
    kept = replace(network, relax_module=module, fingerprint=fingerprint(module), bounds=shapes)
    declared = named_shapes(module)
    own = bool(network.inputs_from) and _are_of(declared, network.example_inputs, dynamic)
    if not dynamic:
        return kept if own else replace(kept, inputs_from="")
    return replace(
        kept,
        shapes=Shapes(dynamic, shapes.entry_points),
        input_shapes=declared,
        own_inputs=network.example_inputs if own else (),
        own_inputs_from=network.inputs_from if own else "",
        inputs_from=network.inputs_from if own else "",
        fingerprint=f"{kept.fingerprint}-{','.join(f'{each},{each.typical}' for each in dynamic)}",
    )


def _are_of(shapes: Sequence[Sequence[int | str]], arrays: Sequence[Array], dynamic: Sequence[Dimension]) -> bool:
    """Return true if ``arrays`` have these shapes, with one extent in range for each dynamic dimension."""
    extents = extents_of(shapes, arrays)
    if any(len(extents[each.name]) != 1 or min(extents[each.name]) not in each for each in dynamic):
        return False
    known = {each.name: min(extents[each.name]) for each in dynamic}
    if any(found != {ExtentSum.parse(text).at(known)} for text, found in extents.items()):
        return False
    return all(
        isinstance(wanted, str) or wanted == extent
        for shape, array in zip(shapes, arrays, strict=True)
        for wanted, extent in zip(shape, array.shape, strict=True)
    )
