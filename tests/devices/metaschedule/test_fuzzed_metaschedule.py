"""The lines of a MetaSchedule database that somebody else wrote: read, or told with their numbers and skipped.

Not the modules in it and the traces: TVM's own readers take these.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tvm.s_tir import meta_schedule as ms

from devices.metaschedule.files import ABOUT, RECORDS, WORKLOADS, DatabaseFiles, class_written
from devices.sketches.spaces import parse_module
from tests.helpers.fuzz import changed, damaged, json_values
from tests.helpers.properties import examples
from tests.helpers.workloads import task

TRACE = [[["GetSBlock", [], ["c", "main"], ["b0"]]], []]
LINE: list[Any] = [0, [TRACE, [1e-3], {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}, None]]


@cache
def workloads() -> bytes:
    """One workload, as TVM writes it."""
    with tempfile.TemporaryDirectory() as folder:
        database = ms.database.JSONDatabase(work_dir=folder)
        database.commit_workload(parse_module(task("avx2", "matmul").workload.module))
        return (Path(folder) / WORKLOADS).read_bytes()


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@given(st.one_of(damaged(dumped(LINE)), changed(LINE, json_values()).map(dumped), json_values().map(dumped)))
@example(dumped([True, LINE[1]]))
@example(dumped([0, [TRACE, [10**400], LINE[1][2], None]]))
@example(dumped([0, [TRACE, [1e-3], {"kind": "llvm", "num-cores": 10**400}, None]]))
@examples(200)
def test_any_line_of_records(line: bytes) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / WORKLOADS).write_bytes(workloads())
        (folder / RECORDS).write_bytes(dumped(LINE) + b"\n" + line + b"\n" + dumped(LINE) + b"\n")
        files = DatabaseFiles(folder)
        found = [read.number for read in files.records()]
        last = 2 + line.count(b"\n") + 1
        assert (found[0], found[-1]) == (1, last), "whatever is between"
        told = {int(each.split(" line ")[1].partition(":")[0]) for each in files.skipped}
        assert not told & set(found)
        assert told <= set(range(2, last))


@given(st.one_of(damaged(b'{"device_class": "here"}'), json_values().map(dumped)))
@examples(100)
def test_any_file_beside_a_database(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ABOUT).write_bytes(content)
        assert isinstance(class_written(Path(folder)), str)
