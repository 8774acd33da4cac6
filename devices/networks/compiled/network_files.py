"""The files of a compiled network that is sent to a device of another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devices.builds.executables import Array
from devices.networks.caches.cache_buffers import GrowingCache, filled, without_spare_rows
from devices.networks.compiled.manifest import LIBRARY, PARAMETERS, checked_file, read_manifest, read_parameters
from devices.networks.input_shapes import InputShapes


@dataclass(frozen=True)
class NetworkFiles:
    """A network's library and weights, with its growing caches and the inputs that it takes."""

    library: bytes
    parameters: Sequence[Array]
    caches: tuple[GrowingCache, ...]
    inputs: InputShapes

    @classmethod
    def read(cls, folder: Path) -> NetworkFiles:
        """Read the network in ``folder``. Raises :class:`fleet_tune.base.errors.OutputFolderError`."""
        manifest = read_manifest(folder)
        library, parameters = (checked_file(folder, name, manifest) for name in (LIBRARY, PARAMETERS))
        arrays = read_parameters(parameters, manifest)
        return cls(library.read_bytes(), arrays, GrowingCache.of(manifest), InputShapes(manifest))

    def arguments(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the arguments of ``main`` for these inputs."""
        return [*inputs, *filled(self.caches, inputs), *self.parameters]

    def outputs(self, inputs: Sequence[Array], returned: Sequence[Array]) -> tuple[Array, ...]:
        """Return the network's outputs, made from the values that ``main`` returned for these inputs."""
        return without_spare_rows(self.caches, inputs, returned, self.inputs.extents_of(inputs))
