"""The views that all tasks share: against hand-computed numbers, for CPUs and GPUs, and always finite."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Axis, Choice, Location, Loop, Sketch, Statement, Tile
from policies.features import statements as statement_features
from policies.features.invariant import NAMES
from policies.features.loop_tree import PARENT
from policies.features.loops import BUFFERS, COLUMNS, THRESHOLDS, relation
from policies.features.views import VIEW_SHAPES, describe, table
from policies.space.sampling import sample

MADE = ("statements", "analyzed_statements", "dataflow", "context", "loop_tree", "relation", "primitives", "invariant")


def log(x: float) -> float:
    return float(np.log2(1 + x))


@pytest.fixture
def gpu_matmul() -> Sketch:
    """A 64^3 product on a GPU: blocks, threads, a staged operand in shared memory, an outer and an inner reduction."""
    loops = (
        Loop(0, 0, kind="blockIdx.x"), Loop(1, 2, kind="blockIdx.y"), Loop(0, 1, kind="threadIdx.x"),
        Loop(2, 4), Loop(2, 5), Loop(1, 3),
    )  # fmt: skip
    row, column, inner = (1, 0, 0), (0, 1, 0), (0, 0, 1)
    b = Access("B", (64, 64), 4, (inner, column))
    c = Access("C", (64, 64), 4, (row, column), write=True)
    staged = Access("As", (64, 64), 4, (row, inner), scope="shared")
    axes = (Axis("i", 64, False), Axis("j", 64, False), Axis("k", 64, True))
    main = Statement("matmul", axes, loops, (staged, b, c), 2.0)
    stage = Statement(
        "As",
        (Axis("i", 64, False), Axis("k", 64, False)),
        (Loop(0, None, 64), Loop(1, None, 64)),
        (
            Access("A", (64, 64), 4, ((1, 0), (0, 1))),
            Access("As", (64, 64), 4, ((1, 0), (0, 1)), write=True, scope="shared"),
        ),
        0.0,
        fixed_depth=4,
    )
    return Sketch(0, "tiled", "gpu", (Tile(64, 2, 64), Tile(64, 2, 64), Tile(64, 2, 64)), (main, stage))


def test_relation_is_the_papers_equation() -> None:
    # Three loops: values 3, 7, 5 over counts 100, 10, 40. Below 8 nothing; below 32 the second; below 64 the second and
    # third; below 128 all. R_t = max {Z_ki : Z_kj < beta_t}.
    values, over = np.array([[3.0], [7.0], [5.0]]), np.array([[100.0], [10.0], [40.0]])
    assert relation(values, over, (8.0, 32.0, 64.0, 128.0))[:, 0].tolist() == [0.0, 7.0, 7.0, 7.0]
    values = np.array([[9.0], [1.0], [5.0]])
    assert relation(values, over, (8.0, 32.0, 64.0, 128.0))[:, 0].tolist() == [0.0, 1.0, 5.0, 9.0]
    assert relation(values, over, (10.0, 10.1))[:, 0].tolist() == [0.0, 1.0]  # strictly below
    assert relation(np.empty((0, 2)), np.empty((0, 2)), (4.0,)).tolist() == [[0.0, 0.0]]


def test_context_of_a_matrix_product(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    # Loops i0 parallel, j0, i1, k0, k1, i2 unroll, j1 unroll, j2 vectorize; i = 16*4*4, j = 8*2*16, k = 64*4.
    matrix = np.array([[16, 4, 4, 8, 2, 16, 64, 4]])
    context = describe(blocked, matrix, cpu, ["context"])["context"][0]
    assert context.shape == (24, COLUMNS) == (24, 23)
    assert context[:, 0].tolist() == [1.0] * 8 + [0.0] * 16
    assert context[8:].any() == np.False_
    lengths = [16, 8, 4, 64, 4, 4, 2, 16]
    assert context[:8, 1].tolist() == pytest.approx([log(x) for x in lengths])
    assert context[:8, 2:8].argmax(axis=1).tolist() == [1, 0, 0, 0, 0, 3, 3, 2]
    assert context[:8, 8].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    # k1: outside 16*8*4*64 iterations, one run of it is 4*4*2*16 = 512.
    k1 = context[4]
    assert k1[9] == pytest.approx(log(16 * 8 * 4 * 64))
    assert k1[10] == pytest.approx(log(512))
    # C first (it is written): 4 rows x 32 columns = 128 elements, each used 4 times; k moves nothing of it.
    assert k1[11:14].tolist() == pytest.approx([log(128), log(4), 0.0])
    # A and B are of one size, A first: 4 x 4 = 16 elements used 32 times; k is its innermost dimension.
    assert k1[14:17].tolist() == pytest.approx([log(16), log(32), log(1)])
    # B is packed in the order of the loops: 4 x 32 = 128 elements, 4 uses, a step of k is the 32 inside.
    assert k1[17:20].tolist() == pytest.approx([log(128), log(4), log(32)])
    assert k1[20:].tolist() == [0.0] * 3
    # i0 moves rows of C, 16 of them at a time, each of 256 elements.
    assert context[0, 13] == pytest.approx(log(16 * 256))


def test_the_loop_tree_of_a_matrix_product(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([[16, 4, 4, 8, 2, 16, 64, 4]])
    views = describe(blocked, matrix, cpu, ["context", "loop_tree"])
    tree = views["loop_tree"][0]
    # The product's eight loops are a chain, with the contexts that they have alone.
    assert np.array_equal(tree[:8, :COLUMNS], views["context"][0, :8])
    assert tree[:8, PARENT].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    # The ReLU stands inside of i0, j0 and i1 (row 3): of 4 rows and 32 columns, 16 * 8 * 4 times.
    assert tree[8:10, PARENT].tolist() == [3, 9]
    assert tree[8:10, 1].tolist() == pytest.approx([log(4), log(32)])
    assert tree[8:10, 9].tolist() == pytest.approx([log(512), log(512 * 4)])
    assert tree[8:10, 10].tolist() == pytest.approx([log(128), log(32)])
    assert not tree[10:].any()


def test_a_loop_tree_follows_where_a_block_stands(cpu: DeviceAbstraction) -> None:
    """A padding in a nest of its own, inside of the first loop of what reads it, or inlined."""
    copied = Access("P", (64,), 4, ((1,),))
    main = Statement(
        "sum", (Axis("i", 64, False),), (Loop(0, 0), Loop(0, 1)),
        (copied, Access("B", (64,), 4, ((1,),), write=True)), 1.0,
    )  # fmt: skip
    pad = Statement(
        "pad", (Axis("i", 64, False),), (Loop(0, None, 64),),
        (Access("A", (64,), 4, ((1,),)), Access("P", (64,), 4, ((1,),), write=True)), 0.0, location_column=2,
    )  # fmt: skip
    sketch = Sketch(0, "loops", "pad", (Tile(64, 2, 64), Location("pad", (-2, -1, 0))), (main, pad))
    inlined, alone, inside = describe(sketch, np.array([[8, 8, at] for at in range(3)]), cpu, ["loop_tree"])[
        "loop_tree"
    ]
    assert inlined[:, 0].sum() == 2
    assert alone[:3, PARENT].tolist() == [0, 1, 0]
    assert alone[2, [1, 9]].tolist() == pytest.approx([log(64), log(1)])
    assert inside[:3, PARENT].tolist() == [0, 1, 1]
    assert inside[2, [1, 9]].tolist() == pytest.approx([log(8), log(8)])


def test_annotations_that_follow_from_limits(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    # i = 8*2*4*4, j = 4*4*1*16, k = 64*4, unroll up to 16 (index 1); at most 32 iterations fused in parallel.
    matrix = np.array([[8, 2, 4, 4, 4, 4, 1, 16, 64, 4, 1]])
    context = describe(tiled, matrix, cpu, ["context"])["context"][0]
    kinds = context[:10, 2:8].argmax(axis=1).tolist()
    assert kinds[0] == kinds[1] == 1  # 8 * 4 = 32, and the loop that exceeds the limit is taken in too
    assert kinds[-1] == 2  # 16 iterations innermost, spatial
    assert kinds[4] == 0  # the reduction


def test_relation_features_of_a_matrix_product(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([[16, 4, 4, 8, 2, 16, 64, 4]])
    features = describe(blocked, matrix, cpu, ["relation"])["relation"][0]
    count = len(THRESHOLDS)
    assert features.shape == (BUFFERS * 2 * count,) == (96,)
    # C: touched bytes and reuse by loop, from the outside: i0 256 KiB and 256; j0 16 KiB and 256; i1 2 KiB and 256;
    # k0 512 B and 256; k1 512 B and 4; i2 512 B and 1; j1 128 B and 1; j2 64 B and 1. Thresholds: 64, 256, 1024, ...
    reuse = features[:count]
    assert reuse.tolist() == pytest.approx([0.0, log(1), *[log(256)] * 10])
    # Top-down (iterations outside): below 256 B the loops j1 and j2, outside of j2 16*8*4*64*4*4*2.
    down = features[count : 2 * count]
    assert down.tolist() == pytest.approx([0.0, *[log(16 * 8 * 4 * 64 * 4 * 4 * 2)] * 11])
    assert not features[6 * count :].any()  # no fourth buffer


def test_dataflow_of_a_cpu_program(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([[16, 4, 4, 8, 2, 16, 64, 4]])
    steps = describe(blocked, matrix, cpu, ["dataflow"])["dataflow"][0]
    assert steps.shape == (10, 23)
    assert not steps[7:9].any()  # no fragments of tensor cores
    steps = np.delete(steps, (7, 8), axis=0)
    assert steps[:, 1:4].argmax(axis=1).tolist() == [2, 0, 1, 0, 1, 1, 1, 2]  # memory
    assert steps[:, 4:7].argmax(axis=1).tolist() == [1, 0, 1, 0, 1, 0, 0, 2]  # read, write or both
    assert (steps[:, 1:4].sum(axis=1) == 1).all()
    assert (steps[:, 11:14].sum(axis=1) == 1).all()
    flop = log(2 * 256**3)
    assert steps[:, 0].tolist() == pytest.approx([0, 0, 0, 0, 0, flop, flop, flop])
    # The accumulators: 4 x 32 = 128 sums in registers, 256^2 in all; updated 256^3 times, each of them 256 times.
    assert steps[0, 7:9].tolist() == pytest.approx([log(4 * 256**2), log(4 * 128)])
    assert steps[0, 22] == pytest.approx(log(4 * 128))
    assert steps[7, 7:9].tolist() == pytest.approx([log(4 * 256**3), log(4 * 256**2)])
    assert steps[7, 16] == pytest.approx(log(256))
    assert steps[7, 17] == pytest.approx(log(4 * 256**2))  # bytes by the count of their uses
    # What an operand moves is at least the whole of it, and the whole is 256 KiB.
    assert steps[[1, 3], 8].tolist() == pytest.approx([log(4 * 256**2)] * 2)
    assert (steps[[1, 3], 7] >= steps[[1, 3], 8]).all()
    assert steps[[1, 3], 22].tolist() == pytest.approx([log(4 * 256**2)] * 2)


def test_dataflow_of_a_gpu_program(gpu_matmul: Sketch, gpu: DeviceAbstraction) -> None:
    # i = 4 blocks * 16 threads, j = 8 blocks * 8, k = 4 * 16. A is staged inside of the outer k: 16 rows of 16.
    matrix = np.array([[4, 16, 8, 8, 4, 16]])
    steps = describe(gpu_matmul, matrix, gpu, ["dataflow"])["dataflow"][0]
    # Buffers of one size keep their order, As before B: 256 elements staged, 4 times in each of 32 blocks.
    assert steps[1, 7:9].tolist() == pytest.approx([log(4 * 256 * 4 * 32), log(4 * 64 * 64)])
    assert steps[1, 16] == pytest.approx(log(256 * 4 * 32 / 64**2))
    assert steps[2, 22] == pytest.approx(log(4 * 256))
    # A thread sums up 8 columns of one row.
    assert steps[0, 22] == pytest.approx(log(4 * 8))
    assert steps[9, 0] == pytest.approx(log(2 * 64**3))
    assert not steps[7:9].any()


def test_a_program_without_a_reduction_has_no_dataflow(cpu: DeviceAbstraction) -> None:
    relu = Statement(
        "relu",
        (Axis("i", 64, False),),
        (Loop(0, 0, kind="parallel"), Loop(0, 1)),
        (Access("A", (64,), 4, ((1,),)), Access("B", (64,), 4, ((1,),), write=True)),
        1.0,
    )
    sketch = Sketch(0, "loops", "relu", (Tile(64, 2, 64),), (relu,))
    views = describe(sketch, np.array([[8, 8]]), cpu, MADE)
    assert not views["dataflow"].any()
    assert views["statements"][0, 0, 0] == 1.0
    assert views["context"][0, :2, 0].tolist() == [1.0, 1.0]


def test_statements_of_a_matrix_product(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([[16, 4, 4, 8, 2, 16, 64, 4]])
    rows = describe(blocked, matrix, cpu, ["statements"])["statements"][0]
    assert rows.shape == statement_features.SHAPE == (8, 53)
    analyzed = describe(blocked, matrix, cpu, ["analyzed_statements"])["analyzed_statements"][0]
    assert analyzed.shape == statement_features.ANALYZED_SHAPE == (8, 102)
    assert analyzed[:, :53].tolist() == rows.tolist()
    assert not analyzed[1:, 53:].any()
    column = {name: at for at, name in enumerate(statement_features.NAMES)}
    main, relu = rows[0], rows[1]
    assert not rows[2:].any()
    assert main[column["flop"]] == pytest.approx(log(2 * 256**3))
    assert main[column["parallel"]] == pytest.approx(log(16))
    assert main[column["vector"]] == pytest.approx(log(16))
    assert main[column["step_points"]] == pytest.approx(log(4 * 32))
    assert main[column["step_reduced"]] == pytest.approx(log(256))
    assert main[column["main"]] == 1.0
    assert relu[column["main"]] == 0.0
    assert relu[column["inside"]] == 1.0
    assert relu[column["flop"]] == pytest.approx(log(256 * 256))
    # C, A, B: B is packed.
    assert [main[column[f"buffer{at}.packed"]] for at in range(3)] == [0.0, 0.0, 1.0]
    assert analyzed[0, column["s8"]] == pytest.approx(log(2 * 256**3), rel=1e-5)


def test_invariant_starts_with_the_analyzers_seconds(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    from policies.analysis.analyzer import latency_secs

    matrix = sample(blocked, 20, np.random.default_rng(0))
    view = describe(blocked, matrix, cpu, ["invariant"])["invariant"]
    seconds = latency_secs(blocked, matrix, cpu)
    assert view[:, 0] == pytest.approx(np.log(seconds), rel=1e-5)
    assert (view[:, 1] == 1.0).all()
    floor = (2 * 256**3 + 256**2) / cpu.peak_flops
    assert view[:, 2] == pytest.approx(np.log(floor / seconds), abs=1e-4)
    assert view[0, NAMES.index("device.cores")] == pytest.approx(log(2))
    assert not view[:, [at for at, name in enumerate(NAMES) if name.startswith("cuda.")]].any()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_all_views_are_finite_and_of_their_shapes(
    kind: str,
    tiled: Sketch,
    blocked: Sketch,
    undescribed: Sketch,
    gpu_matmul: Sketch,
    cpu: DeviceAbstraction,
    gpu: DeviceAbstraction,
) -> None:
    for sketch in (tiled, blocked, undescribed) if kind == "cpu" else (gpu_matmul, undescribed):
        matrix = sample(sketch, 64, np.random.default_rng(1))
        device = cpu if kind == "cpu" else gpu
        views = describe(sketch, matrix, device, MADE)
        for name in MADE:
            assert views[name].shape == (64, *VIEW_SHAPES[name])
            assert views[name].dtype == np.float32
            assert np.isfinite(views[name]).all()
            assert views[name].any() == (bool(sketch.statements) or name == "primitives")
        # A candidate's numbers do not depend on its neighbours.
        alone = describe(sketch, matrix[5:6], device, MADE)
        for name in MADE:
            assert alone[name][0] == pytest.approx(views[name][5], abs=1e-5)
        assert describe(sketch, matrix[:0], device, MADE)["context"].shape == (0, 24, 23)


def test_tensor_cores_share_their_operands(gpu_matmul: Sketch, gpu: DeviceAbstraction) -> None:
    main, stage = gpu_matmul.statements
    warp = dataclasses.replace(gpu_matmul, statements=(dataclasses.replace(main, warp=32), stage))
    matrix = np.array([[4, 16, 8, 8, 4, 16]])
    plain, shared = (describe(each, matrix, gpu, MADE) for each in (gpu_matmul, warp))
    # The lanes of a warp read one operand together: a 32nd of the bytes to compute, and compute on it in a fragment.
    assert [plain["dataflow"][0, at].any() for at in (7, 8)] == [False, False]
    assert [shared["dataflow"][0, at, 0] for at in (5, 6, 7, 8)] == pytest.approx([0.0, 0.0, *[log(2 * 64**3)] * 2])
    assert 2 ** plain["dataflow"][0, 5, 7] - 1 == pytest.approx(32 * (2 ** shared["dataflow"][0, 5, 7] - 1), rel=1e-3)
    column = statement_features.NAMES.index("warp")
    assert (plain["statements"][0, 0, column], shared["statements"][0, 0, column]) == (0.0, 5.0)


def test_fragments_are_filled_from_what_is_staged(gpu_matmul: Sketch, gpu: DeviceAbstraction) -> None:
    """Section 6.4: the dataflow between shared memory and fragments."""
    main, stage = gpu_matmul.statements
    plain = ((1, 0), (0, 1))
    fill = dataclasses.replace(
        stage,
        name="Af",
        accesses=(
            Access("As", (64, 64), 2, plain, scope="shared"),
            Access("Af", (64, 64), 2, plain, write=True, scope="local"),
        ),
        fixed_depth=5,
    )
    operand = Access("Af", (64, 64), 2, ((1, 0, 0), (0, 0, 1)), scope="local")
    computing = dataclasses.replace(main, warp=32, accesses=(operand, *main.accesses[1:]))
    sketch = dataclasses.replace(gpu_matmul, statements=(computing, stage, fill))
    # i = 4 blocks * 16 warps, j = 8 blocks * 8, k = 4 * 16. In each of 4 steps of the outer k A is staged, 16 rows of
    # 16 for a block; inside of the inner k a warp fills its fragment, one value of its one row.
    steps = describe(sketch, np.array([[4, 16, 8, 8, 4, 16]]), gpu, ["dataflow"])["dataflow"][0]
    a = 0  # buffers of one size keep their order
    assert steps[5 + a, 8] == pytest.approx(log(2 * 256 * 4 * 32))
    assert steps[2 + 2 * a, 22] == pytest.approx(log(2 * 256))  # staged where the statement of shared memory stands
    filled = 32 * 16 * 64  # 32 blocks of 16 warps, 64 steps
    assert steps[5 + a, 7] == steps[7 + a, 7] == pytest.approx(log(2 * filled))
    assert steps[7 + a, 8] == steps[7 + a, 22] == pytest.approx(log(2))
    assert steps[7 + a, 16] == pytest.approx(log(filled))
    assert steps[7 + a, 1:7].tolist() == [0, 0, 1, 0, 0, 1]  # registers, read and written
    assert [steps[at + a, 0] for at in (5, 7)] == pytest.approx([0.0, log(2 * 64**3)])


def test_unroll_is_a_chosen_value(cpu: DeviceAbstraction) -> None:
    loops = (Loop(0, 0), Loop(0, 1))
    statement = Statement(
        "copy", (Axis("i", 64, False),), loops, (Access("B", (64,), 4, ((1,),), write=True),), 1.0, unroll_column=2
    )
    sketch = Sketch(0, "loops", "copy", (Tile(64, 2, 64), Choice("unroll", (0, 16))), (statement,))
    context = describe(sketch, np.array([[8, 8, 0], [8, 8, 1]]), cpu, ["context"])["context"]
    assert context[:, 1, 2:8].argmax(axis=1).tolist() == [0, 3]


def test_table_joins_the_symbolic_view(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = sample(blocked, 5, np.random.default_rng(0))
    joined = table(np.ones((5, 3), dtype=np.float32), blocked, matrix, cpu, ("symbolic", "dataflow"))
    assert set(joined.views) == {"symbolic", "dataflow"}
    with pytest.raises(ValueError, match="does not follow from decisions"):
        describe(blocked, matrix, cpu, ["symbolic"])
