"""The names of the operators in :mod:`bench.networks.operator_modules`."""

from __future__ import annotations

import re
from pathlib import Path

MODULES = Path(__file__).with_name("operator_modules.py")


def operator_names() -> tuple[str, ...]:
    """Return all names. They are read from the module's text, because importing the module would import torch."""
    return tuple(re.findall(r"^def (\w+)\(\) -> Example:", MODULES.read_text(), re.MULTILINE))
