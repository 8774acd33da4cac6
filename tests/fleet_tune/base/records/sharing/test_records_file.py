from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_tune.base.records.sharing import records_file


def test_a_line_beyond_all_measure_is_skipped_and_what_comes_behind_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in pieces: no file takes more memory than one of them."""
    monkeypatch.setattr(records_file, "_MOST_LINE_BYTES", 256)
    path = tmp_path / "records.jsonl"
    head = {"kind": "head", "format": records_file.FORMAT, "version": records_file.VERSION}
    unit = {"kind": "unit", "name": "device", "secs": 0.5}
    path.write_text("\n".join([json.dumps(head), json.dumps({"kind": "unit", "name": "x" * 300}), json.dumps(unit)]))
    source = records_file.RecordsFile(path)
    assert [line.partition(":")[0] for line in source.skipped] == ["line 2", "line 3"]
    assert source.unit_secs("device", "any") == 0.5
