"""Kernels and servers that the tests of the devices share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import kernels


@pytest.fixture(scope="session")
def native_target() -> str:
    return kernels.native_target()


@pytest.fixture(scope="session")
def make_artifact() -> kernels.MakeArtifact:
    """See :func:`tests.helpers.kernels.make_artifact`."""
    return kernels.make_artifact


@pytest.fixture(scope="module")
def server() -> Iterator[object]:
    """A device server of two threads, whose measurements stop at the rule's maximum."""
    from devices.server.server import DeviceServer

    with DeviceServer(threads=2) as running:
        yield running
