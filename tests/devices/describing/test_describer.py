"""The sketches of many tasks: what a child that is lost costs, and what is kept for the next run."""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from devices.describing import cache as cache_module
from devices.describing import worker
from devices.describing.cache import DescriptionCache, TaskDescription
from devices.describing.describer import DescriberStartError, TaskDescriber, describe_tasks
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.domain import FewerRows
from fleet_tune.base.sketch import Choice, Sketch
from tests.helpers.describing_child import write_stand_in
from tests.helpers.dynamic_rows import over_rows, product
from tests.helpers.tasks import make_task
from tests.helpers.workloads import space, task

NOTHING_KEPT = DescriptionCache(None)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return write_stand_in(tmp_path)


def undescribed(of: TaskDescription) -> list[str]:
    return [sketch.undescribed for sketch in of.sketches]


def test_children_describe_as_this_process_does_and_the_next_run_needs_none(tmp_path: Path) -> None:
    tasks = [task("avx2", "tiny"), task("avx2", "squeeze")]
    described = describe_tasks(tasks, DescriptionCache(tmp_path), workers=1)
    assert described == [TaskDescription(space("avx2", name).sketches) for name in ("tiny", "squeeze")]
    assert describe_tasks(tasks, DescriptionCache(tmp_path), module="no_such_module") == described


def test_a_task_whose_generation_kills_its_child_is_left_out_alone(stand_in: str) -> None:
    tasks = [make_task(name) for name in ("good", "crash", "error", "fine")]
    good, crashed, refused, fine = describe_tasks(tasks, NOTHING_KEPT, workers=1, module=stand_in)
    assert crashed == TaskDescription((), (("", "its process ended: killed by SIGSEGV"),))
    assert refused == TaskDescription((), (("", "RuntimeError: in one line"),))
    for described in (good, fine):
        assert undescribed(described) == [""] * 3
        assert described.left_out == (("rule", "refused"),)


@pytest.mark.parametrize(
    ("how", "at", "reason"),
    [
        ("crash", 0, "its process ended: killed by SIGSEGV"),
        ("crash", 2, "its process ended: killed by SIGSEGV"),
        ("hang", 1, "its process gave no answer within 1 s"),
    ],
)
def test_a_description_that_kills_its_child_is_left_out_alone(stand_in: str, how: str, at: int, reason: str) -> None:
    (described,) = describe_tasks([make_task(f"{how} at {at}")], NOTHING_KEPT, answer_secs=1, module=stand_in)
    assert undescribed(described) == [reason if each == at else "" for each in range(3)]
    assert [bool(sketch.statements) for sketch in described.sketches] == [each != at for each in range(3)]


def test_what_a_child_was_at_that_was_killed_from_outside_is_described_by_another(
    stand_in: str, tmp_path: Path
) -> None:
    cache = DescriptionCache(tmp_path)
    (described,) = describe_tasks([make_task("kill once at 1")], cache, module=stand_in)
    assert undescribed(described) == [""] * 3
    assert cache.find(make_task("kill once at 1")) == described


def test_children_that_are_killed_again_and_again_cost_the_sketch(stand_in: str) -> None:
    (described,) = describe_tasks([make_task("kill at 1")], NOTHING_KEPT, workers=1, module=stand_in)
    assert undescribed(described) == ["", "its process ended: killed by SIGKILL", ""]


def test_what_a_lost_child_has_left_is_not_kept(stand_in: str, tmp_path: Path) -> None:
    tasks = [make_task("crash at 1"), make_task("good")]
    describe_tasks(tasks, DescriptionCache(tmp_path), module=stand_in)
    assert [DescriptionCache(tmp_path).find(each) is not None for each in tasks] == [False, True]


def test_sketches_that_lack_fewer_rows_for_want_of_time_are_not_kept(stand_in: str, tmp_path: Path) -> None:
    tasks = [make_task("late"), replace(make_task("late"), fewer_rows=(FewerRows("[]", 1.0),))]
    described = describe_tasks(tasks, DescriptionCache(tmp_path), module=stand_in)
    assert all(sketch.statements for each in described for sketch in each.sketches)
    assert [DescriptionCache(tmp_path).find(each) is not None for each in tasks] == [True, False]


def test_sketches_compete_over_fewer_rows_if_all_can() -> None:
    described, other = product(64), over_rows(0.5)
    undescribed = replace(described, statements=())
    assert TaskDescription.of([other, undescribed, other], ()).sketches == (other, undescribed, other)
    found = TaskDescription.of([other, described], (("rule", "reason"),))
    assert found == TaskDescription((replace(other, fewer_rows=()), described), (("rule", "reason"),))


def test_a_child_that_cannot_start_is_told() -> None:
    with pytest.raises(DescriberStartError, match="No module named no_such_module"):
        describe_tasks([make_task()], NOTHING_KEPT, module="no_such_module")


def test_a_sketch_for_which_no_time_is_left_says_so() -> None:
    sketch = Sketch(0, "loops", "", (Choice("unroll", (0, 16)),), ())
    assert worker.left_undescribed(sketch).undescribed == "the descriptions of its task take more than 30 s"
    described = space("avx2", "tiny").sketches[0]
    assert worker.left_undescribed(described) == described


@pytest.mark.parametrize("damage", [lambda body: body[:-3], lambda _: zlib.compress(msgpack.packb({"sketches": 1}))])
def test_what_cannot_be_read_counts_as_absent(tmp_path: Path, damage: object) -> None:
    cache = DescriptionCache(tmp_path)
    of = TaskDescription(space("avx2", "tiny").sketches, (("rule", "reason"),))
    cache.store(make_task(), of)
    assert cache.find(make_task()) == of
    (path,) = tmp_path.glob("??/*.sketches")
    files = cache_module.FileCache(tmp_path, ".sketches", "")
    body = files.find(path.stem)
    assert body is not None
    files.store(path.stem, damage(body))  # type: ignore[operator]
    assert cache.find(make_task()) is None


def test_the_program_the_target_and_the_code_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [make_task(), make_task(module="[]"), make_task(target='{"kind":"cuda"}'), make_task("other")]
    keys = {cache_module._key(each) for each in [*tasks, make_task(device_class="elsewhere", weight=3)]}
    assert len(keys) == 4
    monkeypatch.setattr(cache_module, "_code", lambda: "changed")
    assert cache_module._key(tasks[0]) not in keys


def test_tasks_come_as_they_are_ready_those_that_are_kept_first(stand_in: str, tmp_path: Path) -> None:
    tasks = [make_task(name) for name in ("first", "second", "kept")]
    cache = DescriptionCache(tmp_path)
    (expected,) = describe_tasks(tasks[2:], cache, module=stand_in)
    coming = TaskDescriber(tasks, cache, workers=1, module=stand_in)
    assert next(coming) == (2, expected)
    assert [at for at, _ in coming] == [0, 1]
    assert list(coming) == []


def test_a_task_is_ready_while_others_are_still_being_described_and_closing_ends_these(stand_in: str) -> None:
    tasks = [make_task("hang at 1", module="the largest program"), make_task("good")]
    coming = TaskDescriber(tasks, NOTHING_KEPT, workers=2, answer_secs=600, module=stand_in)
    at, described = next(coming)
    assert (at, undescribed(described)) == (1, [""] * 3)
    threading.Timer(0.1, coming.close).start()
    assert list(coming) == []  # who waits is told, although a child hangs
    wait_for(lambda: not any(each.name.startswith("describer") for each in threading.enumerate()))


def test_the_children_stand_still_while_a_device_measures(stand_in: str, tmp_path: Path) -> None:
    window = QuietWindow(tmp_path / "window")
    coming = TaskDescriber([make_task("good")], NOTHING_KEPT, window=window, module=stand_in)
    found: queue.SimpleQueue[tuple[int, TaskDescription]] = queue.SimpleQueue()
    with window.quiet():
        reader = threading.Thread(target=lambda: found.put(next(coming)), daemon=True)
        reader.start()
        wait_for(lambda: any(each.name == "quiet-window" for each in threading.enumerate()))
        assert found.empty()
    assert found.get(timeout=120)[0] == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
