from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from fleet_tune.base.results import (
    Fallback,
    FallbackKernel,
    FromStore,
    InNetwork,
    KernelTime,
    NetworkResult,
    NotTried,
    Plan,
    SkippedPart,
    TaskProgress,
    Transferred,
    TuneResult,
)
from fleet_tune.report.json_output import SCHEMA
from fleet_tune.report.run import (
    format_clock,
    format_outcomes,
    render_plan,
    render_summary,
    save_svg,
    task_table,
    to_json,
    to_json_line,
)
from fleet_tune.report.words import format_secs


def _task(name: str, weight: int, best_secs: float, device_class: str = "zen5") -> TaskProgress:
    return TaskProgress(f"{name}@{device_class}", name, device_class, weight, 2e9, 2, 8, best_secs, best_rule="rule")


TASKS = (_task("conv[bold]", 2, 1e-3), _task("dense", 1, 6e-3), _task("pool", 1, math.inf))
NETWORK = NetworkResult("zen5", Path("out"), 10e-3, 1.0, 25e-3, 1.5e-6, 2.5e-6, framework="PyTorch")
RESULT = TuneResult("net", Path("out"), TASKS, {"ok": 20, "run_error": 4}, 12, 3725.0, False, (NETWORK,))


def _text(renderable: RenderableType, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (None, "–"),
        (math.inf, "–"),
        (2.1, "2.100 s"),
        (1.0, "1.000 s"),
        (0.0123456, "12.35 ms"),
        (0.25, "250.0 ms"),
        (8.5e-5, "85.00 µs"),
        (3e-8, "30 ns"),
    ],
)
def test_seconds(secs: float | None, text: str) -> None:
    assert format_secs(secs) == text


@given(st.floats(min_value=1e-9, max_value=1e4))
def test_formatted_seconds_are_off_by_half_a_thousandth_of_the_value_at_most(secs: float) -> None:
    number, unit = format_secs(secs).split()
    shown = float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert shown == pytest.approx(secs, rel=0.5 if unit == "ns" else 5.1e-4)


@pytest.mark.parametrize(
    ("secs", "text"), [(0, "0:00"), (-3, "0:00"), (59.6, "1:00"), (247, "4:07"), (3725, "1:02:05")]
)
def test_clocks(secs: float, text: str) -> None:
    assert format_clock(secs) == text


def test_outcomes() -> None:
    assert format_outcomes({"run_error": 2, "ok": 10, "wrong_output": 0}) == "10 ok, 2 run error"
    assert format_outcomes({}) == "no trials"


def test_the_summary_says_what_was_asked_of_it() -> None:
    text = _text(render_summary(RESULT))
    assert "net on zen5: 10.00 ms, 2.50× as fast as PyTorch, 100× as fast as untuned" in text
    assert "conv[bold]" in text, "names are no markup"
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    # 2 ms of 8 ms known: calls, trials, best, GFLOP/s, share, rule
    assert lines["conv[bold]"][1:] == ["2", "8", "1.000", "ms", "2000.0", "25%", "rule"]
    assert lines["dense"][1:] == ["1", "8", "6.000", "ms", "333.3", "75%", "rule"]
    assert lines["pool"][1:] == ["1", "8", "–", "–", "–", "rule"]
    assert lines["untuned"][1:] == ["1.000", "s", "100×", "as", "fast"]
    assert lines["PyTorch"][1:] == ["25.00", "ms", "2.50×", "as", "fast"]
    assert lines["tuned"][1:] == ["10.00", "ms"]
    assert "24 (20 ok, 4 run error), 12 of them in this run of 1:02:05" in text
    assert "1.5e-06 absolute, 2.5e-06 relative, against PyTorch" in text
    assert "out/records.db" in text
    assert 'fleet_tune.load("out")' in text


def test_a_run_without_a_trial_says_so() -> None:
    nothing_new = dataclasses.replace(RESULT, new_trials=0)
    assert "24 (20 ok, 4 run error), none of them in this run of 1:02:05" in _text(render_summary(nothing_new))
    without = dataclasses.replace(nothing_new, outcomes={})
    assert ["trials", "none", "in", "this", "run", "of", "1:02:05"] in [
        line.split() for line in _text(render_summary(without)).splitlines()
    ]


def test_a_task_that_nobody_had_to_describe_says_what_it_has() -> None:
    known, missing = (dataclasses.replace(task, described=False) for task in (TASKS[0], TASKS[-1]))
    assert (math.isfinite(known.best_secs), math.isfinite(missing.best_secs)) == (True, False)
    lines = _text(task_table([known, missing])).splitlines()
    assert any("known before" in line and known.name in line for line in lines)
    assert any("not described yet" in line and missing.name in line for line in lines)


def test_tasks_that_matter_most_come_first_and_unmeasured_ones_before_all() -> None:
    text = _text(task_table(TASKS))
    assert text.index("pool") < text.index("dense") < text.index("conv")


def test_a_table_too_long_says_what_it_leaves_out() -> None:
    tasks = [_task(f"task{i}", 1, 1e-3 * (20 - i)) for i in range(20)]
    text = _text(task_table(tasks, limit=5))
    assert [name for name in ("task0", "task3", "task4", "and 16 more") if name in text] == [
        "task0",
        "task3",
        "and 16 more",
    ]
    assert "more" not in _text(task_table(tasks, limit=20))


def _untried(name: str) -> TaskProgress:
    return dataclasses.replace(_task(name, 1, math.inf), trials=0)


def test_tasks_of_which_nothing_was_tried_are_counted_in_one_row() -> None:
    tasks = [*TASKS, *(_untried(f"later{i}") for i in range(7))]
    text = _text(task_table(tasks))
    assert "and 7 without a trial" in text
    assert "later" not in text
    assert all(name in text for name in ("pool", "dense", "conv"))
    assert "and 8 more" in _text(task_table(tasks, limit=3))
    timed = {"zen5": InNetwork(1e-3, (KernelTime("later3@zen5", "later3", 1, None, 5e-4),), 0.0)}
    text = _text(task_table(tasks, in_network=timed))
    assert "later3" in text, "in a network a kernel that was not tuned has its time too"
    assert "and 6 without a trial" in text


def test_a_run_that_was_interrupted_before_its_first_trial_has_no_empty_table() -> None:
    early = dataclasses.replace(
        RESULT, interrupted=True, networks=(), outcomes={}, new_trials=0, tasks=tuple(map(_untried, "abc"))
    )
    text = " ".join(_text(render_summary(early)).split())
    assert "tasks 3, none of them tried yet" in text
    assert "GFLOP/s" not in text


def test_a_network_without_a_reference_time_shows_none() -> None:
    network = dataclasses.replace(NETWORK, framework_secs=None, untuned_secs=None)
    text = _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))
    assert "as fast as" not in text
    assert "against PyTorch" in text


def test_where_the_time_of_a_network_goes_is_told_by_tasks_and_in_sum() -> None:
    kernels = (
        KernelTime("conv[bold]@zen5", "conv[bold]", 2, 1e-3, 1.25e-3),
        KernelTime("dense@zen5", "dense", 1, 6e-3, 6.5e-3),
    )
    network = dataclasses.replace(NETWORK, in_network=InNetwork(10e-3, kernels, 0.25e-3))
    result = dataclasses.replace(RESULT, networks=(network,))
    text = _text(render_summary(result))
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["conv[bold]"][1:8] == ["2", "8", "1.000", "ms", "1.250", "ms", "2000.0"]
    assert lines["pool"][1:5] == ["1", "8", "–", "–"]
    # 2 * 1.25 + 6.5 + 0.25 ms, of 10.
    assert (lines["conv[bold]"][8], lines["dense"][8]) == ("27%", "70%")
    told = "10.00 ms: 9.250 ms in kernels (8.000 ms alone), 750.0 µs left over (calls, allocation)"
    assert told in " ".join(text.split())
    plain = to_json(result)["networks"][0]["in_network"]
    assert plain["kernels_secs"] == pytest.approx(9.25e-3)
    assert plain["alone_secs"] == pytest.approx(8e-3)
    assert plain["left_over_secs"] == pytest.approx(0.75e-3)
    assert plain["kernels"][0]["secs"] == 1.25e-3
    slow = KernelTime("pool@zen5", "pool", 1, None, 27.75e-3)  # as it was imported: 27.75 of 37 ms
    network = dataclasses.replace(NETWORK, in_network=InNetwork(40e-3, (*kernels, slow), 0.25e-3))
    text = _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["pool"][1:8] == ["1", "8", "–", "27.75", "ms", "–", "75%"]
    assert rows["dense"][8] == "18%"
    assert text.index("pool") < text.index("dense") < text.index("conv[bold]")

    quick = dataclasses.replace(kernels[0], secs=9e-7, clock_secs=1e-6)
    network = dataclasses.replace(NETWORK, in_network=InNetwork(10e-3, (quick,), 0.0))
    text = _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))
    [line] = [line.split() for line in text.splitlines() if line.strip().startswith("conv[bold]")]
    assert line[1:7] == ["2", "8", "1.000", "ms", "–", "2000.0"]
    unknown = dataclasses.replace(kernels[0], alone_secs=None)
    network = dataclasses.replace(NETWORK, in_network=InNetwork(10e-3, (unknown,), 0.0))
    assert "alone" not in _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))
    assert to_json(RESULT)["networks"][0]["in_network"] is None


def test_a_latency_of_a_busy_host_is_marked_where_it_stands() -> None:
    network = dataclasses.replace(NETWORK, others_cores=1.5)
    first = next(
        line for line in _text(render_summary(dataclasses.replace(RESULT, networks=(network,)))).splitlines() if line
    )
    assert " on a busy host, " in first
    assert " on a busy host" not in _text(render_summary(RESULT))


def test_a_latency_far_beyond_its_estimate_is_marked_where_it_stands() -> None:
    network = dataclasses.replace(NETWORK, tuned_secs=15e-3, estimate_secs=10e-3)
    text = _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))
    assert " in a slow moment, " in next(line for line in text.splitlines() if line)
    assert "it took 1.50 times its estimate" in text
    network = dataclasses.replace(network, estimate_secs=14e-3)
    assert "slow moment" not in _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))


def test_parts_of_a_latency_are_never_more_than_it() -> None:
    whole = InNetwork(1e-3, (KernelTime("conv@zen5", "conv", 1, 1e-3, 1e-3),), 1e-12)
    assert whole.left_over_secs == 0.0


def test_a_network_slower_than_pytorch_is_told_as_it_is() -> None:
    network = dataclasses.replace(NETWORK, framework_secs=5e-3)
    assert "0.50× as fast as PyTorch" in _text(render_summary(dataclasses.replace(RESULT, networks=(network,))))


def test_what_was_wrong_and_what_was_done_is_told() -> None:
    wrong, late = "wrong in the network (relative error 0.3)", "no verified record"
    fallbacks = (
        Fallback("conv", wrong, FallbackKernel.RECORD),
        *(Fallback(f"pool{at}", late, FallbackKernel.FIRST_CHOICE) for at in range(5)),
        Fallback("mask", late, FallbackKernel.UNSCHEDULED),
    )
    network = dataclasses.replace(NETWORK, fallbacks=fallbacks, checked_on="board", framework_secs=None)
    text = " ".join(_text(render_summary(dataclasses.replace(RESULT, networks=(network,))), 200).split())
    assert f"fallback conv: {wrong}: the next best of its records is used" in text
    assert f"fallback pool0, pool1, pool2 and 2 more: {late}: the analyzer's first choice is used" in text
    assert f"fallback mask: {late}: left without a schedule" in text
    assert "2.5e-06 relative, against PyTorch, on device board" in text
    plain = to_json(dataclasses.replace(RESULT, networks=(network,)))["networks"][0]
    assert plain["fallbacks"][0] == {"task": "conv", "reason": wrong, "used": "record"}


def test_what_is_not_published_or_not_checked_is_told() -> None:
    nothing = dataclasses.replace(NETWORK, tuned_secs=None, published="nothing", problem="it is wrong")
    text = _text(render_summary(dataclasses.replace(RESULT, networks=(nothing,))))
    assert "net on zen5: not published" in text
    assert "it is wrong" in text
    assert "load it" not in text
    unchecked = dataclasses.replace(NETWORK, max_abs_error=None, max_rel_error=None, unchecked="device a: no answer")
    text = " ".join(_text(render_summary(dataclasses.replace(RESULT, networks=(unchecked,)))).split())
    assert "not checked the network was not compared with its framework: device a: no answer" in text


def test_an_untuned_network_that_is_faster_is_told_with_both_times() -> None:
    untuned = dataclasses.replace(NETWORK, untuned_secs=8e-3, published="untuned")
    result = dataclasses.replace(RESULT, networks=(untuned,))
    text = " ".join(_text(render_summary(result)).split())
    assert "net on zen5: 8.000 ms" in text
    assert "published the untuned network, which is faster here: 8.000 ms, the tuned one 10.00 ms" in text
    assert to_json(result)["networks"][0]["speedup_over_untuned"] == 1.0


def test_a_run_that_measured_nothing_names_no_records() -> None:
    early = dataclasses.replace(RESULT, interrupted=True, networks=(), outcomes={}, new_trials=0)
    text = _text(render_summary(early))
    assert "before anything was measured" in text
    assert "records.db" not in text


def test_what_bounded_a_run_is_told() -> None:
    bound = dataclasses.replace(RESULT, device_time={"zen5": {"measure": 0.3, "window": 0.2, "build": 0.5}})
    assert "limited by builds on zen5 (devices measure 30% of the time)" in " ".join(
        _text(render_summary(bound)).split()
    )
    plain = to_json(bound)
    assert plain["bounds"] == {"zen5": "build"}
    assert plain["device_time"] == {"zen5": {"measure": 0.3, "window": 0.2, "build": 0.5}}
    assert to_json(RESULT)["bounds"] == {}


def test_an_interrupted_run_tells_how_to_go_on() -> None:
    text = _text(render_summary(dataclasses.replace(RESULT, interrupted=True, networks=())))
    assert "no network was compiled" in text
    assert "Stopped early. Everything measured is stored." in text


def test_several_device_classes_are_told_apart() -> None:
    tasks = (_task("conv", 1, 1e-3), _task("conv", 1, 3e-3, "orin"))
    networks = (NETWORK, dataclasses.replace(NETWORK, device_class="orin", folder=Path("out/orin")))
    text = _text(render_summary(dataclasses.replace(RESULT, tasks=tasks, networks=networks)))
    assert text.count("100%") == 2, "shares are of each class' own network"
    assert 'fleet_tune.load("out/orin")' in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_numbers_stay_whole_in_any_width(width: int) -> None:
    text = _text(render_summary(RESULT), width)
    assert all(len(line) <= width for line in text.splitlines())
    if width >= 80:
        assert "2000.0" in text
        assert "1.000 ms" in text


def test_the_plan_shows_tasks_devices_and_limits() -> None:
    plan = Plan("net", "fleet", {"local": "zen5, 2 threads"}, TASKS, 64, 300.0)
    text = _text(render_plan(plan))
    assert "net: 3 tasks. Nothing was measured." in text
    assert "5:00 of tuning or 64 trials, whichever ends first" in text
    assert "local: zen5, 2 threads" in text
    assert "learns from  nothing" in text
    dense = next(line for line in text.splitlines() if "dense" in line)
    assert dense.split() == ["dense", "zen5", "1", "2.0000", "25%", "2"]
    one = _text(render_plan(dataclasses.replace(plan, trial_limit=1, time_budget_secs=None)))
    assert "budget       1 trial " in one


@pytest.mark.parametrize(
    ("transferred", "text"),
    [
        (Transferred("pretrained", 0, 0, 0, 3), "the cost model that comes with fleet-tune, for 3 tasks"),
        (Transferred("mine.safetensors", 0, 0, 0, 1), "mine.safetensors, for 1 task"),
        (
            Transferred("last", 340, 2, 1, 2),
            "last: 340 candidates; 1 task by their own workload's, 2 tasks by all of them",
        ),
        (Transferred("last", 340, 0, 3, 0), "last: 340 candidates; 3 tasks by their own workload's"),
    ],
)
def test_what_is_learned_from_is_told_before_and_after(transferred: Transferred, text: str) -> None:
    plan = Plan("net", "fleet", {}, TASKS, 64, None, transferred)
    assert f"learns from  {text}" in _text(render_plan(plan))
    result = dataclasses.replace(RESULT, transferred=transferred)
    assert f"learned from   {text}" in _text(render_summary(result))
    assert to_json(plan)["transferred"] == to_json(result)["transferred"] == dataclasses.asdict(transferred)


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (FromStore("s.db", 0, 0, 0), "nothing of these tasks yet: s.db"),
        (FromStore("s.db", 1, 1, 0), "1 of 3 tasks known (1 record): s.db"),
        (FromStore("s.db", 24, 2, 1), "2 of 3 tasks known (24 records), 1 of them needs no trial: s.db"),
        (FromStore("s.db", 24, 3, 3), "3 of 3 tasks known (24 records), 3 of them need no trial: s.db"),
        (
            FromStore("s.db", 2, 1, 1, 1, 1),
            "1 of 3 tasks known (2 records), 1 of them needs no trial; 1 known to other versions, "
            "of which a few trials are enough; 1 with schedules of similar ones: s.db",
        ),
        (
            FromStore("s.db", 0, 0, 0, seeded=3, taught=2, learned=310),
            "3 with schedules of similar ones; 2 learn from 310 candidates of similar ones: s.db",
        ),
        (
            FromStore("s.db", 0, 0, 0, shipped=3, shipped_confirmed=2),
            "3 with records that come with fleet-tune, 2 of this processor, of which a few trials are enough: s.db",
        ),
    ],
)
def test_what_the_store_had_is_told_before_and_after(store: FromStore, text: str) -> None:
    plan = Plan("net", "fleet", {}, TASKS, 64, None, store=store)
    result = dataclasses.replace(RESULT, store=store)
    for shown in (_text(render_plan(plan)), _text(render_summary(result))):
        assert f"store {text} " in " ".join(shown.split()) + " "
    assert to_json(plan)["store"] == to_json(result)["store"] == dataclasses.asdict(store)


def test_what_is_left_out_is_told_before_and_after() -> None:
    left_out = (
        SkippedPart("description", "mask", "zen5", "loops", "no block with affine accesses"),
        SkippedPart("sketch", "conv", "zen5", "rfactor", "refused"),
        *(SkippedPart("task", f"sort{i}", "zen5", "", "no sketch rule applies to it") for i in range(5)),
        SkippedPart("description", "cast", "zen5", "loops", "no block with affine accesses"),
        SkippedPart("rewrite", "", "zen5", "", "without fusion: TVM fails at it"),
        SkippedPart("product", "matmul 12x64x64", "zen5", "", "both computed (9 of 11 in integers)"),
        SkippedPart("product", "matmul 64x12x64", "zen5", "", "both computed (9 of 11 in integers)"),
        SkippedPart("check", "", "zen5", "", "its process ended: killed by SIGKILL"),
    )
    told = [
        "skipped  the untuned network was not compared with its framework: its process ended: killed by SIGKILL",
        "skipped  the network may be slower than it could be: without fusion: TVM fails at it",
        "skipped  2 products stay in floats: matmul 12x64x64, matmul 64x12x64: both computed (9 of 11 in integers)",
        "skipped  5 tasks stay untuned: sort0, sort1, sort2 and 2 more: no sketch rule applies to it",
        "skipped  1 sketch (rfactor) of conv: refused",
        "skipped  2 sketches (loops) of mask, cast, searched by decisions alone: no block with affine accesses",
    ]
    plan = Plan("net", "fleet", {}, TASKS, 64, None, left_out=left_out)
    result = dataclasses.replace(RESULT, left_out=left_out)
    for shown in (render_plan(plan), render_summary(result)):
        lines = [" ".join(line.split()) for line in _text(shown).splitlines() if "skipped" in line]
        assert lines == [" ".join(line.split()) for line in told]
    assert to_json(plan)["left_out"] == to_json(result)["left_out"] == [dataclasses.asdict(each) for each in left_out]
    many = tuple(SkippedPart("task", f"task{i}", "zen5", "", f"reason {i}") for i in range(20))
    lines = _text(render_plan(dataclasses.replace(plan, left_out=many))).splitlines()
    assert sum("skipped" in line for line in lines) == 8
    assert "and 13 more lines (--json)" in lines[-1]


def test_json_has_the_figures_and_no_infinity() -> None:
    result = json.loads(to_json_line(RESULT))
    assert result == {"schema": SCHEMA, **to_json(RESULT)}
    assert result["out"] == "out"
    assert result["outcomes"] == {"ok": 20, "run_error": 4}
    assert [task["best_secs"] for task in result["tasks"]] == [1e-3, 6e-3, None]
    assert [task["gflops"] for task in result["tasks"]] == [pytest.approx(2000), pytest.approx(1000 / 3), 0]
    assert result["networks"][0]["speedup_over_framework"] == pytest.approx(2.5)
    assert result["networks"][0]["speedup_over_untuned"] == pytest.approx(100)
    assert "\n" not in to_json_line(RESULT)
    plan = to_json(Plan("net", "fleet", {}, TASKS, None, 300.0))
    assert plan["trial_limit"] is None
    assert plan["tasks"][0]["name"] == "conv[bold]"


def test_a_picture_of_the_summary(tmp_path: Path) -> None:
    save_svg(render_summary(RESULT), tmp_path / "picture.svg", "a title")
    svg = (tmp_path / "picture.svg").read_text()
    assert svg.startswith("<svg")
    assert "a&#160;title" in svg or "a title" in svg
    assert "PyTorch" in svg


def test_the_summary_accounts_for_what_was_not_tried_and_for_lost_processes() -> None:
    told = _text(render_summary(RESULT))
    assert "not tried" not in told
    assert "restarted" not in told
    result = dataclasses.replace(
        RESULT, not_tried=(NotTried(2, "lost"), NotTried(1, "done")), restarts={"recorder": 2, "device": 1}
    )
    told = " ".join(_text(render_summary(result)).split())
    assert "not tried 2 trials: lost not tried 1 trial: done restarted recorder 2 times, device once" in told
    plain = to_json(result)
    assert plain["not_tried"] == [{"trials": 2, "reason": "lost"}, {"trials": 1, "reason": "done"}]
    assert plain["restarts"] == {"recorder": 2, "device": 1}
