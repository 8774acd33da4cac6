"""Settings of property tests: the same examples everywhere, or, in ``make fuzz``, many new ones.

``FUZZ_EXAMPLES`` in the environment: random examples, that many for each property. Without it the examples of a
property follow from its source alone.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Of one example in "make fuzz": what takes longer hangs, or is made to take long by what it reads.
_LONGEST_SECS = 30
FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def load_profile() -> None:
    """Tell hypothesis, before any property is defined, which of the two runs this is."""
    settings.register_profile("test", derandomize=True, database=None, deadline=None)
    settings.register_profile(
        "fuzz",
        derandomize=False,
        database=None,
        deadline=timedelta(seconds=_LONGEST_SECS),
        max_examples=FUZZ_EXAMPLES or 100,
        print_blob=True,
    )
    settings.load_profile("fuzz" if FUZZ_EXAMPLES else "test")
    if not FUZZ_EXAMPLES:
        # hypothesis tries the constants of those of our modules that are loaded by then: which ones these are follows
        # from the tests that this process happened to run before. There is no setting for it.
        assert callable(providers._get_local_constants)
        providers._get_local_constants = providers.Constants


def examples(count: int, **others: Any) -> settings:
    """Settings of a property that ``make test`` tries on ``count`` examples; ``others``: as hypothesis has them."""
    return settings(max_examples=FUZZ_EXAMPLES or count, **others)
