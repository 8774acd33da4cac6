"""Sketches and devices of the tests of policies, for the parts of the laboratory."""

from tests.policies.conftest import blocked, cpu, tiled

__all__ = ["blocked", "cpu", "tiled"]
