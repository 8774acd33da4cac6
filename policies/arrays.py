"""Array types of the policies. Their users document the shapes; ``n`` is the number of candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Real numbers: costs, scores, terms of the analyzer."""
Matrix = NDArray[np.int64]
"""Decision vectors as rows, ``(n, d)``."""
Features = NDArray[np.float32]
"""Input of a model, ``(n, f)``, NaN where a feature is missing."""
Groups = NDArray[np.int64]
"""The task of each record, ``(n,)``: ranking happens within a task."""
