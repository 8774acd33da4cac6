"""Small networks, whose kernels take longer to optimise than to run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from devices.builds import executables
from devices.targets import canonical


@pytest.fixture(scope="module", autouse=True)
def networks_are_checked_unoptimised() -> Iterator[None]:
    """LLVM optimises nothing where only numbers are looked at. What is published is built as always.

    A second library of this kind in one process prints TVM's warning that a symbol is replaced, which nothing reads.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executables, "without_late_optimisations", _unoptimised)
        yield


def _unoptimised(target: str) -> str:
    return canonical({**json.loads(target), "opt-level": 0})
