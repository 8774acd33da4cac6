"""Networks that write the new rows of a static cache into their argument, against torch."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
import tvm
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor, nn
from tvm import relax

from devices.builds.executables import flatten, kernel_calls
from devices.networks.caches.static_caches import overwrite_caches
from devices.networks.compiled.network import CompiledNetwork
from devices.networks.compiled.network_files import NetworkFiles
from devices.networks.compiled.network_folder import compile_network, load, update_manifest
from devices.networks.frameworks.ours import ours
from devices.networks.frontend import load_network
from devices.networks.input_shapes import NetworkInputError
from devices.networks.network import Network
from devices.networks.tasks.lowering import compare, import_network
from devices.rpc.remote_linking import linked
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import OutputFolderError
from tests.helpers.memory import rise_below
from tests.helpers.properties import examples

CPU = DeviceClass("cpu", resolve_target("native", 1))
HEADS, ROWS, SIZE, NEW = 2, 12, 8, 2
MOST_RISE = 2 << 20


class Form(NamedTuple):
    """A use of a cache (1, heads, rows, size)."""

    results: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    """Takes the new rows (1, heads, new, size), their places (new,) and the cache."""
    found: bool = True
    """True if the cache is written in place, to be the first of the results."""


def _read_later(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return cache.index_copy(2, at, x), cache.sum(2)


def _returned_under_a_view(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return (cache.reshape(HEADS, ROWS, SIZE).index_copy(1, at, x[0]).reshape(cache.shape),)


def _assigned(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    grown = cache.clone()
    grown[:, :, at] = x
    return (grown,)


def _assigned_apart(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    grown = cache.clone()
    grown[torch.tensor([0]), :, at[:1]] = x[:, :, 0]
    return (grown,)


def _changed(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    cache.copy_(cache.index_copy_(2, at, x))
    return (cache,)


def _slice_assigned(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    grown = cache.clone()
    grown[:, :, 3 : 3 + NEW] = x * at[0]
    return (grown,)


def _written_twice(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return (cache.index_copy(2, at, x).index_copy(2, at[:1], x[:, :, 1:]),)


def _returned_twice(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    grown = cache.index_copy(2, at, x)
    return grown, grown.reshape(HEADS * ROWS, SIZE)


def _read_in_between(x: Tensor, at: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    once = cache.index_copy(2, at, x)
    return once.index_copy(2, at[:1], x[:, :, 1:]), once.sum(2)


FORMS: dict[str, Form] = {
    "index_copy": Form(lambda x, at, cache: (cache.index_copy(2, at, x),)),
    "read afterwards": Form(lambda x, at, cache: ((grown := cache.index_copy(2, at, x)), grown.sum(2))),
    "index_put": Form(_assigned),
    "axes apart": Form(_assigned_apart),
    "changed": Form(_changed),
    "slice": Form(_slice_assigned),
    "read transposed": Form(lambda x, at, cache: ((grown := cache.index_copy(2, at, x)), x @ grown.transpose(2, 3))),
    "places of two axes": Form(
        lambda x, at, cache: (cache.index_put((torch.tensor([0]), torch.tensor([1]), at[:1]), x[0, :1, 0]),)
    ),
    "elements": Form(lambda x, at, cache: (cache.scatter(2, at[None, None, :, None].expand(x.shape), x),)),
    "first axis": Form(lambda x, at, cache: (cache.index_copy(0, at[:1] * 0, x[:, :, :1].expand(cache.shape)),)),
    "view": Form(_returned_under_a_view),
    "two writes": Form(_written_twice),
    "old value read": Form(_read_later, False),
    "read in between": Form(_read_in_between, False),
    "returned twice": Form(_returned_twice, False),
    "old value returned": Form(lambda x, at, cache: (cache.index_copy(2, at, x), cache), False),
    "another shape": Form(lambda x, at, cache: (cache.index_copy(2, at, x).reshape(-1),), False),
    "sums": Form(lambda x, at, cache: (cache.index_add(2, at, x),), False),
    "computed": Form(lambda x, at, cache: ((cache * 2).index_copy(2, at, x),), False),
}


class Forms(nn.Module):
    def forward(self, x: Tensor, at: Tensor, *caches: Tensor) -> list[Tensor]:
        forms = zip(FORMS.values(), caches, strict=True)
        return [result for form, cache in forms for result in form.results(x, at, cache)]


class Step(nn.Module):
    """Attention of new rows to two caches, whose rows they replace."""

    def forward(self, x: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = keys.index_copy(2, at, x), values.index_copy(2, at, x * 2)
        return torch.softmax(x @ keys.transpose(2, 3), -1) @ values, keys, values


def rows(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def inputs(seed: int, first: int, second: int) -> list[Any]:
    """Of :class:`Step`, with new rows at these places."""
    caches = [rows(seed + number, 1, HEADS, ROWS, SIZE) for number in (1, 2)]
    return [rows(seed, 1, HEADS, NEW, SIZE), np.array([first, second]), *caches]


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network((Step().eval(), tuple(map(torch.from_numpy, inputs(0, 3, 4)))))


@pytest.fixture(scope="module")
def folder(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_network(import_network(network, CPU), {}, tmp_path_factory.mktemp("network"))


@pytest.fixture
def compiled(folder: Path) -> CompiledNetwork:
    return load(folder)


def expected(values: list[Any]) -> tuple[Any, ...]:
    with torch.no_grad():
        return tuple(each.numpy() for each in Step()(*map(torch.as_tensor, values)))


def close(found: Any, right: Any) -> bool:
    return compare([np.asarray(each) for each in found], right)[1] < 1e-5


def test_caches_of_several_forms(tmp_path: Path) -> None:
    caches = [torch.from_numpy(rows(at, 1, HEADS, ROWS, SIZE)) for at in range(len(FORMS))]
    given_rows = torch.from_numpy(rows(99, 1, HEADS, NEW, SIZE)), torch.tensor([5, 2])
    network = load_network((Forms().eval(), (*given_rows, *caches)))
    lowered = import_network(network, CPU)
    assert not lowered.left_out
    run = load(compile_network(lowered, {}, tmp_path))
    outputs = []
    for name, form in FORMS.items():
        count = len(form.results(*given_rows, torch.zeros(1, HEADS, ROWS, SIZE)))
        outputs += [name, *[""] * (count - 1)]
    found = {(list(FORMS)[each["input"] - 2], outputs[each["output"]]) for each in run.manifest["static_caches"]}
    assert found == {(name, name) for name, form in FORMS.items() if form.found}
    arrays = network.example_inputs
    before = [each.copy() for each in arrays]
    right = network.framework_outputs()
    assert close(run(*arrays), right)
    assert all(map(np.array_equal, arrays, before))
    donated = run.in_buffers(*arrays)
    for _ in range(2):  # what was written once is written again
        assert close(run(*donated, donate=run.donatable), right)


def test_only_the_new_rows_are_written(network: Network) -> None:
    module, caches = overwrite_caches(import_network(network, CPU).module)
    assert [(each.input, each.output) for each in caches] == [(2, 1), (3, 2)]
    called = {call.args[0].name_hint: call for call in kernel_calls(module["main"])}
    assert {each.name_hint for each in module.get_global_vars()} == {*called, "main"}
    made = [name for name, call in called.items() if list(call.ty.shape.values) == [1, HEADS, ROWS, SIZE]]
    assert len(made) == 1, "one kernel makes values of a cache's shape"
    assert made[0].endswith("_overwriting")


@pytest.mark.parametrize("as_torch", [False, True])
def test_donated_inputs_are_returned(compiled: CompiledNetwork, as_torch: bool) -> None:
    assert compiled.donatable == ("keys", "values")
    values: Any = inputs(1, 0, 7)
    right = values[2:]
    values = compiled.in_buffers(*(map(torch.from_numpy, values) if as_torch else values))
    for at in range(5):
        x, places = rows(at, 1, HEADS, NEW, SIZE), np.array([at, at + 1])
        given_now = [x, places, *values[2:]]
        if as_torch:
            given_now[:2] = torch.from_numpy(x), torch.from_numpy(places)
        found = compiled(*given_now, donate=compiled.donatable)
        assert found[1] is values[2]
        assert found[2] is values[3]
        after = expected([x, places, *right])
        assert close(found, after)
        right = list(after[1:])


def test_one_of_two_is_donated(compiled: CompiledNetwork) -> None:
    values = compiled.in_buffers(*inputs(2, 3, 9))
    before = [each.copy() for each in values]
    found = compiled(*values, donate=["values"])
    assert close(found, expected(before))
    assert found[2] is values[3]
    np.testing.assert_array_equal(values[2], before[2])
    assert not np.shares_memory(found[1], values[2])


PLACES = st.permutations(range(ROWS)).map(lambda order: (order[0], order[1]))


@given(
    places=st.lists(PLACES, min_size=1, max_size=6),
    donate=st.sets(st.sampled_from(["keys", "values"])),
    as_torch=st.booleans(),
)
@examples(40)
def test_steps_are_those_of_torch(
    folder: Path, places: list[tuple[int, int]], donate: set[str], as_torch: bool
) -> None:
    compiled = load_once(folder)
    values = inputs(7, *places[0])
    right = values[2:]
    caches = compiled.in_buffers(*values)[2:]
    if as_torch:
        caches = [torch.from_numpy(each) for each in caches]
    for number, at in enumerate(places):
        step = [rows(number, 1, HEADS, NEW, SIZE), np.array(at)]
        before = [np.array(each) for each in caches]
        given_now = [*(map(torch.from_numpy, step) if as_torch else step), *caches]
        out, *after = compiled(*given_now, donate=donate)
        correct = expected([*step, *right])
        assert close((out, *after), correct)
        for name, cache, old, new in zip(["keys", "values"], caches, before, after, strict=True):
            assert (new is cache) == (name in donate)
            if name not in donate:
                np.testing.assert_array_equal(np.asarray(cache), old)
        caches, right = list(after), list(correct[1:])


_LOADED: dict[Path, CompiledNetwork] = {}


def load_once(folder: Path) -> CompiledNetwork:
    return _LOADED.setdefault(folder, load(folder))


def _read_only(values: list[Any]) -> None:
    values[2].flags.writeable = False


def _transposed(values: list[Any]) -> None:
    values[2] = np.asfortranarray(values[2])


def _not_aligned(values: list[Any]) -> None:
    memory = np.zeros(values[2].nbytes + 128, np.uint8)
    first = -memory.ctypes.data % 64 + 4
    values[2] = memory[first : first + values[2].nbytes].view(np.float32).reshape(values[2].shape)


def _with_gradients(values: list[Any]) -> None:
    values[:] = [torch.from_numpy(each) for each in values]
    values[2].requires_grad_()


def _the_same(values: list[Any]) -> None:
    values[3] = values[2]


def _a_part_of_it(values: list[Any]) -> None:
    values[0] = values[2].reshape(-1)[: values[0].size].reshape(values[0].shape)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_read_only, "input 'keys' cannot be donated: it is read-only"),
        (_transposed, "input 'keys' cannot be donated: it is not contiguous"),
        (_not_aligned, "input 'keys' cannot be donated: its memory is not aligned to 64 bytes"),
        (_with_gradients, "input 'keys' cannot be donated: it requires gradients"),
        (_the_same, "inputs 'keys' and 'values' share memory"),
        (_a_part_of_it, "inputs 'x' and 'keys' share memory"),
    ],
)
def test_what_cannot_be_overwritten_is_copied_or_refused(
    compiled: CompiledNetwork, change: Callable[[list[Any]], None], named: str
) -> None:
    values = compiled.in_buffers(*inputs(3, 1, 2))
    change(values)
    before = [np.array(each.detach().numpy() if isinstance(each, Tensor) else each) for each in values]
    assert close(compiled(*values), expected(before))
    with pytest.raises(NetworkInputError, match=named):
        compiled(*values, donate=compiled.donatable)
    for value, old in zip(values, before, strict=True):
        np.testing.assert_array_equal(value.detach() if isinstance(value, Tensor) else value, old)


@pytest.mark.parametrize("donate", [["at"], "keys", ["no input"]])
def test_other_names_are_refused(compiled: CompiledNetwork, donate: Any) -> None:
    with pytest.raises(NetworkInputError, match="cannot be donated: the network overwrites keys, values alone"):
        compiled(*inputs(3, 1, 2), donate=donate)


def test_inputs_that_are_not_donated_may_share_memory(compiled: CompiledNetwork) -> None:
    values = compiled.in_buffers(*inputs(3, 1, 2))
    values[3] = values[2]
    assert close(compiled(*values), expected(values))


def test_threads_have_their_own_caches(folder: Path) -> None:
    compiled = load(folder)
    right: dict[int, bool] = {}

    def generate(seed: int) -> None:
        values = compiled.in_buffers(*inputs(seed, 0, 1))
        correct = [each.copy() for each in values[2:]]
        for at in range(20):
            step = [rows(100 * seed + at, 1, HEADS, NEW, SIZE), np.array([at % ROWS, (at + 1) % ROWS])]
            found = compiled(*step, *values[2:], donate=compiled.donatable)
            after = expected([*step, *correct])
            right[seed] = right.get(seed, True) and close(found, after)
            correct = list(after[1:])

    threads = [threading.Thread(target=generate, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == {0: True, 1: True}


def test_benchmarks_donate_caches_of_their_own(folder: Path) -> None:
    values = inputs(4, 5, 6)
    before = [each.copy() for each in values]
    run = ours(str(folder))([torch.from_numpy(each) for each in values])
    first, again = run(), run()
    assert again[1] is first[1]
    assert close(again, expected(values))
    assert all(map(np.array_equal, values, before))


def test_times_leave_the_inputs_as_they_are(compiled: CompiledNetwork) -> None:
    values = compiled.in_buffers(*inputs(4, 5, 6))
    before = [each.copy() for each in values]
    assert compiled.measure_secs(values, repeats=2) > 0
    assert compiled.measure_within(values, 0.01) > 0
    calls = compiled.kernel_times(values, 0.01).calls
    assert sum(count for name, count in calls.items() if name.endswith("_overwriting")) == 2
    assert all(map(np.array_equal, values, before))


def test_another_machine_runs_it(folder: Path) -> None:
    files = NetworkFiles.read(folder)
    values = inputs(5, 8, 3)
    with linked(folder / "network.so") as library:
        module = tvm.runtime.load_module(str(library))
    main = relax.VirtualMachine(module, tvm.cpu())["main"]
    arguments = [tvm.runtime.tensor(each) for each in files.arguments(values)]
    for _ in range(2):
        assert close(files.outputs(values, flatten(main(*arguments))), expected(values))


def test_a_network_that_is_there_already_keeps_its_caches(network: Network, folder: Path) -> None:
    before = load(folder).manifest
    compile_network(import_network(network, CPU), {}, folder)
    assert load(folder).manifest == before


@pytest.mark.parametrize(
    "damaged", [[{"input": 2}], [{"input": 2, "output": -1}], [{"input": "keys", "output": 1}], {"input": 2}, [2]]
)
def test_damaged_caches_are_named(folder: Path, damaged: Any) -> None:
    before = load(folder).manifest["static_caches"]
    assert load(folder).manifest["schema"] == 2  # code that knows no donation must not run it
    update_manifest(folder, {"static_caches": damaged})
    try:
        with pytest.raises(OutputFolderError, match=r"manifest\.json is damaged \(static_caches\)"):
            load(folder)
        update_manifest(folder, {"static_caches": [{"input": 4, "output": 1}]})
        with pytest.raises(OutputFolderError, match="a cache is none of the inputs"):
            load(folder)
        update_manifest(folder, {"static_caches": [{"input": before[0]["input"], "output": 9}]})
        with pytest.raises(OutputFolderError, match="a cache is none of the outputs"):
            load(folder)
    finally:
        update_manifest(folder, {"static_caches": before})


def test_caches_of_onnx_files(tmp_path: Path) -> None:
    """Rows by the operator for caches, and by ScatterND between transposes, as exporters write it."""
    value, node = helper.make_tensor_value_info, helper.make_node
    cache, new = [2, HEADS, ROWS, SIZE], [2, HEADS, NEW, SIZE]
    nodes = [
        node("TensorScatter", ["keys", "x", "first"], ["keys_after"], axis=2, mode="circular"),
        node("Transpose", ["values"], ["moved"], perm=[2, 0, 1, 3]),
        node("Transpose", ["x"], ["rows"], perm=[2, 0, 1, 3]),
        node("ScatterND", ["moved", "at", "rows"], ["written"]),
        node("Transpose", ["written"], ["values_after"], perm=[1, 2, 0, 3]),
    ]
    given_values = [
        *(value(name, TensorProto.FLOAT, shape) for name, shape in [("x", new), ("keys", cache), ("values", cache)]),
        *(value(name, TensorProto.INT64, shape) for name, shape in [("first", [2]), ("at", [NEW, 1])]),
    ]
    after = [value(name, TensorProto.FLOAT, cache) for name in ("keys_after", "values_after")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", given_values, after), opset_imports=[helper.make_opsetid("", 24)], ir_version=11
    )
    onnx.save(model, str(tmp_path / "net.onnx"))
    run = load(compile_network(import_network(load_network(tmp_path / "net.onnx"), CPU), {}, tmp_path / "out"))
    assert run.donatable == ("keys", "values")
    arrays = [rows(0, *new), rows(1, *cache), rows(2, *cache), np.array([3, ROWS - 1]), np.array([[4], [7]])]
    right = [each.copy() for each in arrays[1:3]]
    for sequence, first in enumerate(arrays[3]):
        for row in range(NEW):
            right[0][sequence, :, (first + row) % ROWS] = arrays[0][sequence, :, row]
    right[1][:, :, arrays[4][:, 0]] = arrays[0]
    donated = run.in_buffers(*arrays)
    for found in (run(*arrays), run(*donated, donate=run.donatable)):
        for one, other in zip(found, right, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_memory_does_not_grow_over_ten_thousand_calls(compiled: CompiledNetwork) -> None:
    values: Any = inputs(6, 1, 2)

    def calls(count: int) -> None:
        given_now = compiled.in_buffers(*values)
        for at in range(count):
            given_now[1][:] = at % ROWS, (at + 1) % ROWS
            _, *given_now[2:] = compiled(*given_now, donate=compiled.donatable)
            _, *after = compiled(*given_now)
            if at % 100 == 0:
                given_now[2:] = after
        gc.collect()

    calls(10_000)  # the allocator's own
    with rise_below(MOST_RISE):
        calls(10_000)
