"""XGBoost, loaded when it is first needed; in processes of our own it is loaded without scikit-learn.

XGBoost loads scikit-learn if that is installed, for classes that we do not use. This takes one and a half of the two
seconds of its import. In a process that belongs to somebody else, these classes must work.
"""

from __future__ import annotations

import sys
from typing import Any

_SCIKIT_LEARN = "sklearn"
_spared = False


def spare_scikit_learn() -> None:
    """Load XGBoost without scikit-learn from now on. Only for processes of our own; code that needs scikit-learn itself
    can still load it."""
    global _spared
    _spared = True


def load_xgboost() -> Any:
    """The module ``xgboost``."""
    spared = _spared and _SCIKIT_LEARN not in sys.modules and "xgboost" not in sys.modules
    if spared:
        sys.modules[_SCIKIT_LEARN] = None  # type: ignore[assignment]
    try:
        import xgboost
    finally:
        if spared:
            del sys.modules[_SCIKIT_LEARN]
    return xgboost
