"""``fleet-tune compare``: two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_tune.base.domain import Measurement, Task
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.cli.main import main
from fleet_tune.report.comparison import compare_runs
from fleet_tune.report.html.comparison_page import write_comparison
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

SMALL, LARGE, NEW, OLD = make_task("small"), make_task("large", weight=10), make_task("new"), make_task("old")


def run(folder: Path, results: dict[Task, Measurement]) -> Path:
    folder.mkdir()
    with RecordStore(folder / "records.db") as store:
        for task, measured in results.items():
            store.put_task(task)
            store.append([make_record(make_candidate(task, 1), measured)])
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    first = run(tmp_path / "first", {SMALL: ok(1.0), LARGE: ok(0.9), OLD: ok(1.0)})
    second = run(tmp_path / "second", {SMALL: ok(0.5), LARGE: ok(0.6), NEW: failed()})
    return first, second


def test_the_task_that_differs_most_comes_first(folders: tuple[Path, Path]) -> None:
    found = compare_runs(*folders)
    assert [(task.name, task.calls, task.ratio) for task in found.tasks] == [
        ("large", 10, pytest.approx(1.5)),
        ("small", 1, pytest.approx(2.0)),
    ]
    assert found.others == (1, 1)
    # One call of one and ten of the other, each with its error.
    error = ok(1.0).rank_secs
    assert found.totals == pytest.approx((10 * error, 6.5 * error))


def test_the_command_prints_a_table_and_json(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, folders)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1.50×" in out
    assert "1 task of A alone." in out
    assert "1.54× as fast" in out
    assert main(["compare", "--json", "--rows", "1", *map(str, folders)]) == 0
    captured = capsys.readouterr()
    body = json.loads(captured.out)
    assert [task["name"] for task in body["tasks"]] == ["large", "small"]
    assert "small" not in captured.err


def test_a_task_without_a_result_has_no_ratio(tmp_path: Path) -> None:
    found = compare_runs(run(tmp_path / "a", {SMALL: ok(1.0)}), run(tmp_path / "b", {SMALL: failed()}))
    assert [task.ratio for task in found.tasks] == [None]
    assert found.totals == (0, 0)
    assert main(["compare", "--json", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_runs_of_other_networks_and_folders_without_records_are_refused(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", {SMALL: ok(1.0)}), run(tmp_path / "b", {LARGE: ok(1.0)})
    with pytest.raises(RequestError, match="no task in common"):
        compare_runs(first, second)
    with pytest.raises(RequestError, match=r"has no records\.db"):
        compare_runs(first, tmp_path)


def test_the_page_has_both_curves_and_all_tasks(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "deep" / "page.html"
    assert main(["compare", *map(str, folders), "--rows", "1", "--html", str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    text = page.read_text()
    for told in ("<title>first and second: fleet-tune comparison</title>", "1.54× as fast", "1 task of B alone."):
        assert told in text
    assert "<td>large</td>" in text
    assert "<td>small</td>" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_a_page_that_cannot_be_written_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="name another file: --html"):
        write_comparison(compare_runs(*folders), tmp_path / "file" / "page.html")
