"""Order for a process that runs a network in a framework."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "fleet-tune"
"""Name of the compiled network among the frameworks."""


@dataclass(frozen=True)
class FrameworkOrder:
    """Work of one process."""

    framework: str
    """A name of :mod:`devices.networks.frameworks.runners`, or :data:`OURS`."""
    spec: str
    """The network."""
    folder: str
    """The compiled network."""
    arrays: tuple[str, ...]
    """A file of :mod:`devices.networks.frameworks.array_file` for each set of inputs."""
    threads: int
    trusted: bool
    shapes: tuple[tuple[int | str, ...], ...] = ()
    """Shapes of its inputs, with names for dynamic extents. Empty for fixed shapes."""
    warm_secs: float = 1.0
    """Least seconds of runs on each set of inputs until the runner counts as warm."""
