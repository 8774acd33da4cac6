from __future__ import annotations

import gc

import pytest

from devices.host.garbage_collection import garbage_collection_paused


def test_the_collector_rests_and_is_afterwards_as_it_was() -> None:
    assert gc.isenabled()
    with garbage_collection_paused():
        with garbage_collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled(), "it rested before"
    assert gc.isenabled()


def test_what_goes_wrong_meanwhile_lets_it_go_on() -> None:
    with pytest.raises(KeyError), garbage_collection_paused():
        raise KeyError
    assert gc.isenabled()
