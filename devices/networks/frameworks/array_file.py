"""File of one set of inputs and the outputs that are expected for it: an ``.npz`` with ``input-0`` ... and ``output-0``
..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from devices.networks.network import Array


def write_arrays(file: Path, inputs: Sequence[Array], expected: Sequence[Array]) -> str:
    """Write a set and return its path as text."""
    np.savez(file, **_named("input", inputs), **_named("output", expected))
    return str(file)


def read_arrays(file: str) -> tuple[list[Array], list[Array]]:
    """Return the inputs and the expected outputs in a file."""
    with np.load(file) as stored:
        inputs, expected = (
            [stored[f"{kind}-{at}"] for at in range(sum(name.startswith(f"{kind}-") for name in stored.files))]
            for kind in ("input", "output")
        )
    return inputs, expected


def _named(kind: str, arrays: Sequence[Array]) -> dict[str, Any]:
    return {f"{kind}-{at}": array for at, array in enumerate(arrays)}
