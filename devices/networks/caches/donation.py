"""Memory of static caches while a network runs: a copy of the caller's array or, if that is *donated*, the array
itself.

A donated array or tensor is overwritten, and returned as the cache's output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from devices.builds.tensors import ALIGNMENT_BYTES, shared
from devices.networks.input_shapes import NetworkInputError


@dataclass(frozen=True)
class StaticCache:
    """An input that the network overwrites and returns."""

    input: int
    """Its index among the inputs."""
    output: int
    """Its index among the outputs."""

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> tuple[StaticCache, ...]:
        """Return the static caches in the manifest of a network."""
        return tuple(cls(**entry) for entry in manifest.get("static_caches", ()))

    @property
    def entry(self) -> dict[str, int]:
        """Its fields, for the manifest."""
        return asdict(self)


class Donations:
    """The inputs of one network that may be donated.

    Args:
        manifest: the manifest of the network's folder.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.caches = StaticCache.of(manifest)
        self._inputs = [each["name"] for each in manifest["inputs"]]
        self._places = {self._inputs[each.input]: each.input for each in self.caches}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs that may be donated."""
        return tuple(self._places)

    def tensors(self, inputs: Sequence[Any], donate: Collection[str]) -> dict[int, Any]:
        """Return TVM's tensors in the memory of the donated inputs, by input index.

        Args:
            inputs: all inputs, of the right types and shapes.
            donate: names of inputs.

        Raises :class:`NetworkInputError` for a name that is not a static cache's, for memory that cannot be
        overwritten, and for memory that a donated input shares with another input.
        """
        names = (donate,) if isinstance(donate, str) else tuple(donate)
        wrong = next((each for each in names if isinstance(donate, str) or each not in self._places), None)
        if wrong is not None:
            raise NetworkInputError(
                f"input {wrong!r} cannot be donated: the network overwrites "
                + (f"{', '.join(self._places)} alone" if self._places else "none"),
                "name inputs of network.donatable, as a tuple" if self._places else "leave donate out",
            )
        found = {}
        for name in names:
            at = self._places[name]
            tensor = shared(inputs[at]) if _is_writable(inputs[at]) else None
            if tensor is None:
                raise NetworkInputError(
                    f"input {name!r} cannot be donated: {_problem(inputs[at])}",
                    "donate an output of the network, or what network.in_buffers returns; torch tensors of types that "
                    "numpy lacks",
                )
            found[at] = tensor
        self._refuse_overlaps(inputs, found)
        return found

    def _refuse_overlaps(self, inputs: Sequence[Any], donated: Mapping[int, Any]) -> None:
        # Inputs that are not contiguous are copied before the network runs.
        spans = []
        for at, value in enumerate(inputs):
            address, is_contiguous = (donated[at].data_ptr(), True) if at in donated else _memory(value)
            if is_contiguous and value.nbytes:
                spans.append((address, address + value.nbytes, at))
        last = last_donated = (0, 0)  # end of the memory of the inputs so far, and the input that ends there
        for start, end, at in sorted(spans):
            before = last if at in donated else last_donated
            if start < before[0]:
                one, other = (self._inputs[each] for each in sorted((before[1], at)))
                raise NetworkInputError(
                    f"inputs {one!r} and {other!r} share memory, which would be overwritten",
                    "donate an array or a tensor with memory of its own",
                )
            last = max(last, (end, at))
            if at in donated:
                last_donated = max(last_donated, (end, at))


def _is_writable(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    return bool(value.is_cpu and not value.requires_grad)


def _problem(value: Any) -> str:
    """Return why a network cannot write into the memory of an array or a tensor."""
    if not _is_writable(value):
        if isinstance(value, np.ndarray):
            return "it is read-only"
        return "it requires gradients" if value.is_cpu else f"it is on {value.device}"
    address, is_contiguous = _memory(value)
    if not is_contiguous:
        return "it is not contiguous"
    is_aligned = address % ALIGNMENT_BYTES == 0
    return "DLPack does not read it" if is_aligned else f"its memory is not aligned to {ALIGNMENT_BYTES} bytes"


def _memory(value: Any) -> tuple[int, bool]:
    """Return the address of an array or a tensor, and true if its elements follow each other in memory."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0]), value.flags.c_contiguous
    return int(value.data_ptr()), value.is_contiguous()
