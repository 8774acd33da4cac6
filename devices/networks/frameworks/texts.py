"""The decoding steps of a text: each continues from the caches that the step before returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEPS = 8
"""Steps after which a text begins again. Only the first step finds caches that were just copied."""


class Text:
    """The runs of a network as decoding steps, which begin again after some steps.

    Args:
        begin: restores the first caches.
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
        """Begin again if the text has ended. This is not part of a timed run."""
        if self._left <= 0:
            self._begin()
            self._left = self._steps

    def __call__(self) -> Any:
        """Run the next step."""
        self._left -= 1
        return self._step()
