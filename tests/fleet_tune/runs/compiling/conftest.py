"""The network that is compiled here."""

from __future__ import annotations

import pytest

from devices.networks.frontend import load_network
from examples.networks import mlp
from tests.helpers.compiling import Example


@pytest.fixture(scope="session")
def example() -> Example:
    return Example.of(load_network(mlp()))
