"""What cannot be described or scheduled is left out by itself: the other sketches of the task are as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from devices.sketches import generation, spaces
from devices.sketches.description import deadline
from devices.sketches.description.instructions import TraceStep
from devices.sketches.description.interpreter import Interpreter
from devices.sketches.rules.register_blocked import REGISTER_BLOCKED
from devices.sketches.spaces import GENERATED, DesignSpace
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Sketch
from policies.space.sampling import sample
from tests.helpers.workloads import space, task

TARGET = "avx2"


@pytest.fixture
def squeeze() -> Task:
    return task(TARGET, "squeeze")


def assert_searchable(of: Task, designs: DesignSpace, sketch: Sketch) -> None:
    """A sketch without a description can be sampled and scheduled."""
    vector = sample(sketch, 1, np.random.default_rng(0))[0]
    candidate = Candidate(of.id, sketch.index, sketch.id, tuple(int(value) for value in vector))
    assert "main" in [variable.name_hint for variable in designs.schedule(candidate).module.functions]


def test_an_error_of_a_description_costs_the_description_alone(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_was = {sketch.id: sketch for sketch in space(TARGET, "squeeze").sketches}
    step = Interpreter._step

    def failing(self: Interpreter, of: TraceStep) -> None:
        if of.kind == "RFactor":
            raise tvm.error.InternalError("Check failed: (x) is false:\n a program of many lines")
        step(self, of)

    monkeypatch.setattr(Interpreter, "_step", failing)
    designs = DesignSpace(squeeze)
    assert {sketch.id for sketch in designs.sketches} == set(as_it_was)
    assert not designs.left_out
    for sketch in designs.sketches:
        assert sketch.decisions == as_it_was[sketch.id].decisions
        if sketch.rule != "rfactor":
            assert sketch == as_it_was[sketch.id]
            continue
        assert not sketch.statements
        assert not sketch.variants
        assert sketch.undescribed == "InternalError: Check failed: (x) is false:"
        assert_searchable(squeeze, designs, sketch)


def test_an_error_among_the_places_costs_the_description_alone(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("zip() argument 2 is shorter than argument 1")

    monkeypatch.setattr("devices.sketches.description.location_combinations._signature", failing)
    designs = DesignSpace(squeeze)
    (first, second) = [sketch for sketch in designs.sketches if sketch.undescribed]
    assert first.rule == second.rule == "rfactor"
    assert first.undescribed == "ValueError: zip() argument 2 is shorter than argument 1"
    assert_searchable(squeeze, designs, first)


def test_a_description_past_its_time_is_given_up(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "DESCRIPTION_SECS", -1.0)
    designs = DesignSpace(squeeze)
    assert [sketch.id for sketch in designs.sketches] == [sketch.id for sketch in space(TARGET, "squeeze").sketches]
    for sketch in designs.sketches:
        assert not sketch.statements
        assert "takes more than" in sketch.undescribed
        assert_searchable(squeeze, designs, sketch)


def test_a_sketch_that_cannot_be_replayed_is_left_out(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = spaces.describe

    def refusing(fresh: Any, trace: Any) -> Any:
        if generation.rule_name(trace) == "rfactor":
            raise RuntimeError("ScheduleError: rfactor\nError message: The loop is no reduction")
        return describe(fresh, trace)

    monkeypatch.setattr(spaces, "describe", refusing)
    designs = DesignSpace(squeeze)
    assert {sketch.rule for sketch in designs.sketches} == {"register-blocked", "multi-level-tiling"}
    assert [sketch.index for sketch in designs.sketches] == list(range(len(designs.sketches)))
    assert designs.left_out == (("rfactor", "RuntimeError: The loop is no reduction"),) * 2
    for sketch in designs.sketches:
        assert_searchable(squeeze, designs, sketch)


def test_a_program_that_all_rules_refuse_has_the_others(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generation._spaces_by

    def refusing(rules: Any, module: Any, target: Any) -> Any:
        if rules:
            raise RuntimeError("ScheduleError: no")
        return made(rules, module, target)

    monkeypatch.setattr(generation, "_spaces_by", refusing)
    designs = DesignSpace(squeeze)
    assert [sketch.rule for sketch in designs.sketches] == ["register-blocked"]
    assert designs.left_out == ((GENERATED, "RuntimeError: ScheduleError: no"),)
    assert_searchable(squeeze, designs, designs.sketches[0])


def test_a_rule_with_a_mistake_costs_no_other(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: Any) -> Any:
        raise AttributeError("'Add' object has no attribute 'value'")

    monkeypatch.setitem(spaces.OWN_RULES, REGISTER_BLOCKED, mistaken)
    designs = DesignSpace(squeeze)
    as_it_was = space(TARGET, "squeeze").sketches
    assert [each.id for each in designs.sketches] == [each.id for each in as_it_was if each.rule != REGISTER_BLOCKED]
    assert designs.left_out == ((REGISTER_BLOCKED, "AttributeError: 'Add' object has no attribute 'value'"),)


def test_what_tvm_says_is_told_in_one_line() -> None:
    assert generation.first_line(RuntimeError("")) == "RuntimeError"
    assert generation.first_line(ValueError(" one\ntwo")) == "ValueError: one"
    text = "ScheduleError: in 'compute-at'.\nThe IR is\n  x = 1\nError message: The block is no leaf\n"
    assert generation.first_line(RuntimeError(text)) == "RuntimeError: The block is no leaf"


def test_who_schedules_a_candidate_makes_the_sketches_up_to_its_own(
    squeeze: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = space(TARGET, "squeeze").sketches
    assert first.rule == REGISTER_BLOCKED
    asked: list[Any] = []
    monkeypatch.setattr(spaces, "generated", lambda *given: asked.append(given) or generation.generated(*given))
    designs = DesignSpace(squeeze)
    (row,) = sample(first, 1, np.random.default_rng(0))
    designs.schedule(Candidate(squeeze.id, first.index, first.id, tuple(map(int, row))))
    assert not asked
    assert [each.id for each in designs.sketches] == [each.id for each in (first, *others)]
    assert len(asked) == 1


def test_a_space_that_fails_once_fails_again(squeeze: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not pass for a smaller one."""

    def failing(*_: Any) -> Any:
        raise KeyError("no such target")

    monkeypatch.setattr(spaces, "generated", failing)
    designs = DesignSpace(squeeze)
    for _ in range(2):
        with pytest.raises(KeyError, match="no such target"):
            assert designs.left_out
