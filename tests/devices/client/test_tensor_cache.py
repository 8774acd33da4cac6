"""Tensors that stay on a device: those used last, within a size."""

from __future__ import annotations

from devices.client.tensor_cache import TensorCache


class Maker:
    """Makes a list of one object for each key, and counts how often."""

    def __init__(self, most_bytes: int) -> None:
        self.cache = TensorCache(most_bytes)
        self.made: list[str] = []

    def get(self, key: str, nbytes: int = 4) -> list[object]:
        def make() -> list[object]:
            self.made.append(key)
            return [key]

        return self.cache.get(key, nbytes, make)


def test_what_is_kept_is_not_made_again() -> None:
    maker = Maker(8)
    assert maker.get("a") is maker.get("a")
    assert maker.made == ["a"]


def test_what_was_used_longest_ago_makes_room() -> None:
    maker = Maker(8)
    for key in ("a", "b", "a", "c", "a", "b"):
        maker.get(key)
    assert maker.made == ["a", "b", "c", "b"]


def test_what_is_cleared_is_made_again() -> None:
    maker = Maker(8)
    maker.get("a")
    maker.cache.clear()
    maker.get("a")
    assert maker.made == ["a", "a"]


def test_room_is_made_before_new_tensors_are() -> None:
    maker = Maker(8)
    first = maker.get("a", 8)

    def make() -> list[object]:
        assert maker.cache.get("a", 8, lambda: ["again"]) == ["again"]
        return ["b"]

    maker.cache.get("b", 8, make)
    assert first == ["a"]


def test_a_list_that_is_larger_than_the_limit_is_kept_alone() -> None:
    maker = Maker(8)
    for key, nbytes in (("a", 4), ("huge", 100), ("huge", 100), ("a", 4)):
        maker.get(key, nbytes)
    assert maker.made == ["a", "huge", "a"]


def test_a_replaced_list_counts_as_before_and_a_dropped_one_is_made_again() -> None:
    maker = Maker(8)
    maker.get("a")
    maker.cache.replace("a", ["other"])
    assert maker.get("a") == ["other"]
    maker.cache.drop("a")
    maker.cache.drop("never there")
    assert maker.get("a") == ["a"]
