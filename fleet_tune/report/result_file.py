"""The result of a command as a file in its output folder, for programs: the values that ``--json`` prints."""

from __future__ import annotations

import json
from pathlib import Path

from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.results import TuneResult
from fleet_tune.report.json_output import SCHEMA
from fleet_tune.report.run import to_json

RESULT_FILE = "result.json"


def write_result(result: TuneResult) -> Path:
    """Write ``result.json`` into the output folder, and return its absolute path. The file of an earlier command is
    replaced atomically. Raises OSError."""
    path = result.out.absolute() / RESULT_FILE
    text = json.dumps({"schema": SCHEMA, **to_json(result)}, allow_nan=False, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{text}\n".encode())
    return path
