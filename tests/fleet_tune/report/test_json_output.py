"""JSON of commands."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import fleet_tune
from fleet_tune.report.json_output import SCHEMA, json_line


def test_every_output_has_the_version() -> None:
    assert json.loads(json_line({"a": [1, "ö"]})) == {"schema": SCHEMA, "a": [1, "ö"]}
    assert "ö" in json_line({"a": "ö"})
    with pytest.raises(ValueError, match="JSON compliant"):
        json_line({"a": math.inf})


def test_no_command_prints_json_of_its_own() -> None:
    """Outside of the module that adds the version, only the file of a result is written."""
    package = Path(fleet_tune.__file__).parent
    own = [
        path.name
        for folder in ("cli", "report")
        for path in (package / folder).rglob("*.py")
        if re.search(r"json\.dumps", path.read_text())
    ]
    assert sorted(own) == ["json_output.py", "result_file.py"]
