"""Effects of rfactor, blockize and decompose_reduction on a block's state, and copies in a layout made by decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from devices.sketches.description.accesses import Rebinding
from devices.sketches.description.loopnest import BlockState, Factor, LoopState, distinct
from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import Axis


def decompose(block: BlockState, loop: LoopState, reductions: set[int]) -> BlockState:
    """Return the block that initialises, before ``loop``; ``block`` becomes the block that updates."""
    at = block.loops.index(loop)
    if at == 0:
        raise UndescribedError(f"block {block.name}_init at the root")
    fresh = [LoopState(each.factors) for each in distinct(block.loops)[at:] if not _reduces(each, reductions)]
    initial = BlockState(f"{block.name}_init", block.iters, fresh, at=(block, block.loops[at - 1]))
    block.name = f"{block.name}_update"
    return initial


def blockize(body: BlockState, loop: LoopState, axes: tuple[Axis, ...]) -> BlockState:
    """Return the new block around ``loop`` and the loops inside it; ``body`` keeps these loops. ``axes``: axes of the
    frame."""
    if body.within is not None:
        raise UndescribedError(f"blockize of block {body.name} again")
    at = body.loops.index(loop)
    outer = BlockState(f"{body.name}_o", body.iters, body.loops[:at], at=body.at, column=body.column)
    if body.iters[0].axes:
        inner = [1] * len(axes)
        for each in body.loops[at:]:
            for factor in each.factors or (Factor((), rest=True),):
                if len(factor.axes) != 1 or factor.column is not None or factor.rest:
                    raise UndescribedError(f"blockize of block {body.name} with loops of no fixed extent")
                inner[factor.axes[0]] *= factor.extent
        outside = [-(-axis.extent // size) for axis, size in zip(axes, inner, strict=True)]
        outer.iters = tuple(Factor((i,), extent=extent, whole=True) for i, extent in enumerate(outside))
        values = [(i, inner[i], outside[i]) for i in range(len(axes))]
        values += [(i, 1, inner[i]) for i in range(len(axes)) if inner[i] > 1]
        body.rebinding = Rebinding(axes, tuple(values))
    outer.rebinding = body.rebinding
    body.loops, body.within, body.at, body.column = body.loops[at:], outer, None, None
    return outer


def rfactor(
    block: BlockState, loop: LoopState, axes: tuple[Axis, ...], decisions: Sequence[int]
) -> tuple[BlockState, int]:
    """Return the new block that computes the partial sums, and the largest possible number of partial sums. ``block``
    becomes the block that sums them up over ``loop``.

    ``axes``: axes of the frame; ``decisions``: decision vector of this replay.
    """
    nest = distinct(block.loops)
    if block.at is not None or block.rebinding is not None or any(len(each.factors or ()) != 1 for each in nest):
        raise UndescribedError(f"rfactor of block {block.name} after it was changed")
    factors = [factor for each in nest for factor in each.factors or ()]
    reductions = {i for i, axis in enumerate(axes) if axis.reduction}
    reduced = [factor for factor in factors if reductions & set(factor.axes)]
    groups = {factor.axes for factor in reduced}
    long = {i for i in reductions if axes[i].extent > 1}
    if len(groups) != 1 or not long <= set(reduced[0].axes):
        raise UndescribedError(f"rfactor of block {block.name} over some of its reductions")
    (group,) = groups
    bound = prod(axes[i].extent for i in group)
    spatial = [i for i in range(len(axes)) if i not in reductions]
    summed = Axis("_".join(axes[i].name for i in group), bound, True)
    partial = Axis(f"{summed.name}_partial", bound, False)
    frame = (*(axes[i] for i in spatial), summed, partial)
    at = len(spatial)
    sizes = [factor.extent if factor.column is None else decisions[factor.column] for factor in reduced]
    divisors = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    position = next(i for i, factor in enumerate(reduced) if loop.factors == (factor,))

    def in_frame(factor: Factor) -> Factor:
        axis = at if factor.axes == group else spatial.index(factor.axes[0])
        return replace(factor, axes=(axis,), partial=factor is reduced[position])

    # Iteration variables in TVM's order: the partial sums, the spatial ones, the remaining reductions. Reductions of
    # one iteration (a 1x1 kernel's) are not part of the fused loops: their variables stay, and are always 0.
    left = [i for i in range(len(reduced)) if i != position]
    wholes = [Factor((i,), extent=axis.extent, whole=True) for i, axis in enumerate(frame[:at])]
    values = [(at, divisors[position], sizes[position]), *((i, 1, axis.extent) for i, axis in enumerate(frame[:at]))]
    first = min(group)
    before = sum(i < first for i in reductions - set(group))
    after = len(reductions - set(group)) - before
    unit = (at, 1, 1)
    values += [*([unit] * before), *((at, divisors[i], sizes[i]) for i in left), *([unit] * after)]
    # A remaining reduction that is slower than the partial sums stays slower, although a move of the block puts its
    # loop inside of theirs.
    remaining = [in_frame(reduced[i]) for i in left]
    if position == len(reduced) - 1 and len(left) == 1:
        remaining = [Factor((at,), rest=True)]
    single = Factor((at,), extent=1)
    iters = (in_frame(reduced[position]), *wholes, *([single] * before), *remaining, *([single] * after))
    partial_block = BlockState(f"{block.name}_rf", iters, nest, rebinding=Rebinding(frame, tuple(values), (0, at + 1)))
    final = (replace(partial, reduction=True), *frame[:at])
    summing = replace(reduced[position], axes=(0,))
    outer = [Factor((i + 1,), extent=axis.extent, whole=True) for i, axis in enumerate(final[1:])]
    block.iters = (summing, *outer)
    block.rebinding = Rebinding(final, tuple((i, 1, axis.extent) for i, axis in enumerate(final)))
    block.loops = []
    for each, factor in zip(nest, factors, strict=True):
        if factor is reduced[position]:
            block.loops.append(LoopState((summing,)))
        elif factor not in reduced:
            block.loops.append(LoopState((outer[spatial.index(factor.axes[0])],)))
        each.factors = (in_frame(factor),)
    return partial_block, bound


def stage(old: tuple[int, ...], shape: Sequence[int]) -> Rebinding:
    """Return the iteration variables of a copy between buffers as digits of the buffers' original dimensions.

    ``shape``: the current shape, (..., m0, n0, m1, n1, m2, n2); ``old``: the original one, (..., m, n).
    """
    higher = len(old) - 2
    axes = tuple(Axis(f"v{i}", extent, False) for i, extent in enumerate(old))
    cut = shape[higher:]
    values = [(i, 1, extent) for i, extent in enumerate(old[:higher])]
    for part in range(3):
        for side in range(2):
            inner = prod(cut[2 * later + side] for later in range(part + 1, 3))
            values.append((higher + side, inner, cut[2 * part + side]))
    return Rebinding(axes, tuple(values))


def _reduces(loop: LoopState, reductions: set[int]) -> bool:
    return any(axis in reductions and not factor.partial for factor in loop.factors or () for axis in factor.axes)
