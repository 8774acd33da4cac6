"""The watch over memory sees memory that is taken and given back in between."""

from __future__ import annotations

import pytest

from tests.helpers.memory import rise_below


def test_memory_that_is_given_back_is_seen() -> None:
    with pytest.raises(AssertionError, match="memory rose by"), rise_below(2**25):
        assert len(b"x" * 2**26) == 2**26
    with rise_below(2**25):
        assert len(b"x" * 2**20) == 2**20
