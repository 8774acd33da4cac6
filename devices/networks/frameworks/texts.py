"""Steps of decoding as they follow each other in a text: each goes on from the caches that the one before returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEPS = 8
"""Steps after which a text begins again. The first one finds caches that were just copied, the others do not."""


class Text:
    """A run of a network that begins again after some steps.

    Args:
        begin: goes back to the first caches.
        step: runs the network, keeps the caches that it returns, and returns its outputs.
        once: runs the network on the inputs, and returns its outputs.
        steps: steps from one beginning to the next.
    """

    def __init__(
        self, begin: Callable[[], None], step: Callable[[], Any], once: Callable[[], Any], steps: int = STEPS
    ) -> None:
        self.once = once
        self._begin, self._step, self._steps = begin, step, steps
        self._left = 0

    def prepare(self) -> None:
        """Begin again where the text has ended. Not part of a run."""
        if self._left <= 0:
            self._begin()
            self._left = self._steps

    def __call__(self) -> Any:
        """Run the next step."""
        self._left -= 1
        return self._step()
