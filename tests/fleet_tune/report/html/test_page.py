"""``fleet-tune report``: one HTML file of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tvm
from tvm import te

from fleet_tune.base.domain import Task
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import InNetwork, KernelTime, NetworkResult, TaskProgress, TuneResult
from fleet_tune.cli.main import main
from fleet_tune.report.html.page import write_report
from fleet_tune.report.result_file import write_result
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task


@pytest.fixture(scope="module")
def task() -> Task:
    x = te.placeholder((8,), name="x")
    function = te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1, name="increment")])
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return make_task("<increment> 8", weight=3, module=tvm.ir.save_json(module))


@pytest.fixture
def folder(task: Task, tmp_path: Path) -> Path:
    from tvm.s_tir import Schedule

    schedule = Schedule(tvm.ir.load_json(task.workload.module))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("increment"))[0])
    trace = json.dumps(schedule.trace.as_json(), default=str)
    with RecordStore(tmp_path / "records.db") as store:
        store.put_task(task)
        store.append(
            [
                make_record(make_candidate(task, 1), ok(2e-3), trace=trace),
                replace(make_record(make_candidate(task, 2), failed(detail="<b>no</b>")), unix_secs=60.0),
            ]
        )
    return tmp_path


class _Checker(HTMLParser):
    """Collects the text, and what the page would load from elsewhere; raises for tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.loaded: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attributes if name in ("src", "href") and value[:1] != "#"]  # type: ignore[index]
        if tag not in ("meta", "line"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """An element without a content."""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def read(file: Path) -> str:
    checker = _Checker()
    checker.feed(file.read_text())
    checker.close()
    assert checker.loaded == []
    return " ".join(checker.text.split())


def test_a_run_that_has_not_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    text = read(folder / "report.html")
    assert "The folder has no result.json." in text
    assert "2 (1 ok, 1 build error) in 1:00" in text
    assert "<increment> 8" in text  # escaped, and so are messages
    assert "First build error: <b>no</b>" in text
    assert "for i in T.parallel(8)" in text
    assert "parallel 8 increment: increment from x" in text
    assert "6.300 ms at the end" in text  # three calls of 2 ms and their error


def test_a_run_that_has_ended_tells_of_its_network(task: Task, folder: Path) -> None:
    kernels = (KernelTime(task.id, task.workload.name, 3, 2e-3, 2.5e-3),)
    network = NetworkResult(
        device_class="board",
        folder=folder,
        tuned_secs=8e-3,
        untuned_secs=16e-3,
        framework_secs=12e-3,
        framework="PyTorch",
        max_abs_error=1e-6,
        max_rel_error=2e-6,
        in_network=InNetwork(8e-3, kernels, 0.0),
    )
    progress = TaskProgress(task.id, "increment", "board", 3, 1e6, 1, 2, 2e-3, best_rule="loops")
    write_result(TuneResult("net", folder, (progress,), {"ok": 1}, 2, 60.0, interrupted=True, networks=(network,)))
    write_report(folder, folder / "deep" / "page.html")
    text = read(folder / "deep" / "page.html")
    for told in (
        "net Network on board",
        "tuned 8.000 ms",
        "2.00×",
        "1.50×",
        "in kernels 7.500 ms",
        "2.500 ms 100%",
        "loops",
    ):
        assert told in text
    assert "stopped before its budget was used" in text
    assert "no result.json" not in text


def test_a_result_of_an_older_version_is_shown_without_what_it_does_not_have(folder: Path) -> None:
    network = NetworkResult("board", folder, 8e-3, 16e-3, None, 1e-6, 2e-6, others_cores=0.5, estimate_secs=5e-3)
    file = write_result(TuneResult("net", folder, (), {}, 2, 60.0, interrupted=False, networks=(network,)))
    older = json.loads(file.read_text())
    for name in ("framework", "framework_secs", "speedup_over_framework"):
        del older["networks"][0][name]
    file.write_text(json.dumps(older))
    write_report(folder, folder / "page.html")
    text = read(folder / "page.html")
    assert "tuned 8.000 ms" in text
    assert "Timed on a busy host: other processes took 0.5 of its processor cores." in text
    assert "Timed in a slow moment: it took 1.60 times its estimate." in text


def test_the_quality_of_the_predictions_is_told(task: Task, folder: Path) -> None:
    with RecordStore(folder / "records.db") as store:
        for number in range(3, 11):
            candidate = replace(make_candidate(task, number), predicted_secs=float(number))
            store.append([make_record(candidate, ok(1e-3 * number))])
    write_report(folder, folder / "page.html")
    assert f"All tasks of {task.device_class.name}: 1.00." in read(folder / "page.html")


def test_a_schedule_that_fits_no_more_is_told(task: Task, folder: Path) -> None:
    with RecordStore(folder / "records.db") as store:
        store.append([make_record(make_candidate(task, 3), ok(1e-3), trace='[[["NoSuchKind",[],[],[]]],[]]')])
    write_report(folder, folder / "page.html")
    assert "The schedule does not fit the program any more" in read(folder / "page.html")


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no records\.db"):
        write_report(tmp_path, tmp_path / "page.html")


def test_a_file_that_cannot_be_written_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="cannot be written"):
        write_report(folder, folder / "records.db" / "page.html")
