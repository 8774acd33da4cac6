"""JSON that commands print with ``--json`` and keep in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SCHEMA = 1
"""Version of all JSON outputs, their field ``schema``. It grows when a field changes its meaning or goes away, not with
a new one."""


def json_line(body: Mapping[str, Any]) -> str:
    """Return an output as one line. Raises ValueError for numbers that JSON does not have."""
    return json.dumps({"schema": SCHEMA, **body}, ensure_ascii=False, allow_nan=False)
