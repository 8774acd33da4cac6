"""Inputs of fuzzed readers: random bytes, damaged files, and values of any form."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_DIGITS = st.sampled_from([10**18, -(2**63), 2**64 - 1])
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | _DIGITS
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)


def values() -> st.SearchStrategy[Any]:
    """Values as msgpack has them, nested."""
    return st.recursive(
        _LEAVES,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
        max_leaves=20,
    )


def json_values() -> st.SearchStrategy[Any]:
    """Values as JSON has them, with numbers that other readers do not take."""
    leaves = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=20)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
        max_leaves=20,
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with some pieces replaced, cut out or put in; now and then nothing but bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(content)


@st.composite
def changed(draw: st.DrawFn, whole: Any, parts: st.SearchStrategy[Any]) -> Any:
    """``whole``, made of maps and lists, with another value somewhere in it."""
    if not draw(st.integers(0, 4)):
        return draw(parts)
    if isinstance(whole, dict) and whole:
        key = draw(st.sampled_from(sorted(whole)))
        if not draw(st.integers(0, 9)):
            return {name: value for name, value in whole.items() if name != key}
        return {**whole, key: draw(changed(whole[key], parts))}
    if isinstance(whole, list | tuple) and whole:
        at = draw(st.integers(0, len(whole) - 1))
        return [*whole[:at], draw(changed(whole[at], parts)), *whole[at + 1 :]]
    return draw(parts)
