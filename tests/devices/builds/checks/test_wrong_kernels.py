"""Wrong kernels of a family of mistakes are all found, and right ones are all verified:
:mod:`tests.helpers.wrong_kernels`.

The short form takes some programs; the long one takes all: over 500 wrong kernels and over 500 right ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from devices.sketches.spaces import DesignSpace, ScheduleError
from fleet_tune.base.domain import Candidate
from policies.space.sampling import sample
from tests.helpers.checked_programs import PROGRAMS, CheckedProgram, build, build_scheduled
from tests.helpers.kernels import native_target
from tests.helpers.programs import program_task
from tests.helpers.wrong_kernels import Mutant, mutants

# One for each way in which inputs are drawn; their kernels compile fast.
FEW = ("cast int8 int32", "subtract float32", "gather from the end", "row max", "matmul float16", "any")
WRONG_OF_EACH, LEAST_OF_EACH, RIGHT_OF_EACH = 10, 5, 5  # wrong ones at least, without those that are the same function
# Block of a layer norm in which one factor of (x - mean)^2 may be x + mean: the sum is the same
# (test_a_variance_is_also_a_difference_of_squares).
SAME_SUM = ("other sign", "data_var_sum: data")


def unnoticed(program: CheckedProgram, wrong: list[Mutant]) -> tuple[list[str], int]:
    """The mistakes that are not found, and the number of mutants that are the same function: all their outputs are the
    program's to the last bit on a hundred other sets of inputs, or the same by an identity that is proved here."""
    found: list[str] = []
    same = 0
    for mutant, kernel in zip(wrong, build([each.function for each in wrong]), strict=True):
        if program.disagreement(kernel):
            continue
        if mutant.mistake == SAME_SUM[0] and mutant.place.startswith(SAME_SUM[1]):
            same += 1
            continue
        if program.differs(kernel):
            found.append(f"{mutant.mistake} at {mutant.place}")
        else:
            same += 1
    return found, same


def right_kernels(name: str, program: CheckedProgram, count: int) -> Iterator[str]:
    """The disagreements of random candidates of the program's design spaces, one after the other; empty for none."""
    task = program_task(PROGRAMS[name](), native_target(), name=name)
    space, rng = DesignSpace(task), np.random.default_rng(0)
    sketches = itertools.cycle(space.undescribed)
    for sketch in itertools.islice(sketches, 4 * count):
        decisions = tuple(int(value) for value in sample(sketch, 1, rng)[0])
        try:
            scheduled = space.schedule(Candidate(task.id, sketch.index, sketch.id, decisions))
        except ScheduleError:
            continue
        text = program.disagreement(build_scheduled(scheduled))
        yield f"{sketch.rule} {decisions}: {text}" if text else ""


def test_inputs_of_a_check_find_mistakes_in_a_few_programs() -> None:
    kinds = set()
    for name in FEW:
        program = CheckedProgram(PROGRAMS[name]())
        wrong = list(mutants(program.function))
        kinds |= {mutant.mistake.split(" of ")[0] for mutant in wrong}
        assert unnoticed(program, wrong)[0] == [], name
        assert set(itertools.islice(right_kernels(name, program, 2), 2)) == {""}, name
    assert len(kinds) > 15


def test_all_programs_have_over_500_wrong_kernels_and_over_500_right_ones() -> None:
    assert len(PROGRAMS) * min(LEAST_OF_EACH, RIGHT_OF_EACH) > 500


def test_a_variance_is_also_a_difference_of_squares() -> None:
    x = np.random.default_rng(0).normal(1.0, 2.0, (100, 64))
    mean = x.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(((x + mean) * (x - mean)).sum(axis=1), ((x - mean) ** 2).sum(axis=1), rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_wrong_kernel_is_verified_and_no_right_one_is_refused(name: str) -> None:
    program = CheckedProgram(PROGRAMS[name]())
    wrong = list(mutants(program.function))
    chosen = np.random.default_rng(0).permutation(len(wrong))[:WRONG_OF_EACH]
    verified, same = unnoticed(program, [wrong[at] for at in chosen])
    right = list(itertools.islice(right_kernels(name, program, RIGHT_OF_EACH), RIGHT_OF_EACH))
    print(
        f"{name}: {len(chosen) - same} wrong kernels, {len(verified)} verified; {same} mutants were the same function"
    )
    assert verified == []
    assert len(chosen) - same >= LEAST_OF_EACH
    assert right == [""] * RIGHT_OF_EACH
