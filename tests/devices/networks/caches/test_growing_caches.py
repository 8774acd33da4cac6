"""Networks that grow their caches in place, against torch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor, nn
from torch.export import Dim
from tvm import relax

from devices.builds.executables import flatten
from devices.networks.caches.cache_buffers import CacheBuffers, GrowingCache
from devices.networks.compiled.network import CompiledNetwork
from devices.networks.compiled.network_files import NetworkFiles
from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.network import Network
from devices.networks.tasks.lowering import compare, import_network
from devices.rpc.remote_linking import linked
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))
HEADS, SIZE, MOST = 2, 8, 40
WIDTH = HEADS * SIZE


class Attention(nn.Module):
    """Attention of the newest tokens (1, tokens, width) to all of (1, heads, past, size), with the keys' sum."""

    def __init__(self, reads_before: bool) -> None:
        super().__init__()
        self.reads_before = reads_before
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = x.shape[1]

        def heads(layer: nn.Module) -> Tensor:
            return layer(x).view(1, tokens, HEADS, SIZE).transpose(1, 2)

        before = keys.sum() if self.reads_before else 0
        keys, values = torch.cat([keys, heads(self.key)], 2), torch.cat([values, heads(self.value)], 2)
        scores = torch.softmax(heads(self.query) @ keys.transpose(2, 3), -1)
        return (scores @ values).transpose(1, 2).reshape(1, tokens, WIDTH) + before, keys, values


def attention(reads_before: bool = False) -> Network:
    torch.manual_seed(5)
    past, tokens = Dim("past", min=1, max=MOST - 4), Dim("tokens", min=1, max=4)
    caches = [torch.randn(1, HEADS, 9, SIZE) for _ in range(2)]
    inputs = (torch.randn(1, 3, WIDTH), *caches)
    module = Attention(reads_before).eval()
    return load_network((module, inputs, ({1: tokens}, {2: past}, {2: past})))


@pytest.fixture(scope="module")
def network() -> Network:
    return attention()


@pytest.fixture(scope="module")
def folder(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_network(import_network(network, CPU), {}, tmp_path_factory.mktemp("network"))


@pytest.fixture
def compiled(folder: Path) -> CompiledNetwork:
    return load(folder)


def tokens(count: int, seed: int) -> Tensor:
    return torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(seed))


def torch_outputs(network: Network, *inputs: Any) -> tuple[Any, ...]:
    return network.given(tuple(np.ascontiguousarray(each) for each in inputs), "").framework_outputs()


@pytest.mark.parametrize("as_torch", [False, True])
def test_a_text_grows_in_its_buffers(network: Network, compiled: CompiledNetwork, as_torch: bool) -> None:
    caches: list[Any] = [torch.randn(1, HEADS, 1, SIZE) for _ in range(2)]
    expected = [each.numpy() for each in caches]
    if not as_torch:
        caches = expected
    addresses = set()
    for at, count in enumerate([4, 1, 1, 3, 1, 1, 1, 2]):
        x: Any = tokens(count, at)
        out, *caches = compiled(x if as_torch else x.numpy(), *caches)
        right, *expected = torch_outputs(network, x, *expected)
        assert compare([np.asarray(each) for each in (out, *caches)], (right, *expected))[1] < 1e-5
        addresses.add(tuple(np.asarray(each).ctypes.data for each in caches))
        assert isinstance(out, Tensor) == as_torch
    assert len(addresses) == 1


def test_two_texts_go_on_from_one(network: Network, compiled: CompiledNetwork) -> None:
    start = [np.random.default_rng(1).standard_normal((1, HEADS, 5, SIZE)).astype("float32") for _ in range(2)]
    given = [each.copy() for each in start]
    _, *common = compiled(tokens(1, 0).numpy(), *start)
    first = compiled(tokens(1, 1).numpy(), *common)
    kept = [each.copy() for each in first]
    second = compiled(tokens(2, 2).numpy(), *common)
    np.testing.assert_array_equal(start, given)
    for found, copied in zip(first, kept, strict=True):
        np.testing.assert_array_equal(found, copied)
    assert compare(first, torch_outputs(network, tokens(1, 1), *common))[1] < 1e-5
    assert compare(second, torch_outputs(network, tokens(2, 2), *common))[1] < 1e-5


def test_the_last_token_fills_the_buffer(network: Network, compiled: CompiledNetwork) -> None:
    full = [np.ones((1, HEADS, MOST - 4, SIZE), "float32") for _ in range(2)]
    x = tokens(4, 0).numpy()
    found = compiled(x, *full)
    assert found[1].shape == (1, HEADS, MOST, SIZE)
    assert compare(found, torch_outputs(network, x, *full))[1] < 1e-5
    with pytest.raises(ValueError, match=f"past = {MOST}, and the network was compiled for past=1..{MOST - 4}"):
        compiled(x, *found[1:])


def test_threads_have_their_own_texts(network: Network, folder: Path) -> None:
    compiled = load(folder)
    right: dict[int, bool] = {}

    def generate(seed: int) -> None:
        caches: Any = [np.full((1, HEADS, 1, SIZE), seed, "float32") for _ in range(2)]
        expected: Any = caches
        for at in range(10):
            x = tokens(1, 100 * seed + at).numpy()
            out, *caches = compiled(x, *caches)
            after, *expected = torch_outputs(network, x, *expected)
            right[seed] = right.get(seed, True) and compare((out, *caches), (after, *expected))[1] < 1e-5

    threads = [threading.Thread(target=generate, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == {0: True, 1: True, 2: True}


def test_times_are_those_of_a_step_in_place(compiled: CompiledNetwork, network: Network) -> None:
    inputs = network.at({"past": 30, "tokens": 1}).example_inputs
    assert compiled.measure_secs(inputs, repeats=2) > 0
    assert compiled.measure_within(inputs, 0.01) > 0
    calls = compiled.kernel_times(inputs, 0.01).calls
    assert sum(count for name, count in calls.items() if name.endswith("_append")) == 2


def test_another_machine_gets_the_buffers_too(network: Network, folder: Path) -> None:
    files = NetworkFiles.read(folder)
    inputs = network.at({"past": 7, "tokens": 2}).example_inputs
    with linked(folder / "network.so") as library:
        module = tvm.runtime.load_module(str(library))
    main = relax.VirtualMachine(module, tvm.cpu())["main"]
    arguments = [tvm.runtime.tensor(each) for each in files.arguments(inputs)]
    for _ in range(2):
        found = files.outputs(inputs, flatten(main(*arguments)))
        assert compare(found, torch_outputs(network, *inputs))[1] < 1e-5


def test_a_cache_that_is_read_before_it_grows_is_copied(tmp_path: Path) -> None:
    network = attention(reads_before=True)
    compiled = load(compile_network(import_network(network, CPU), {}, tmp_path))
    assert [each["input"] for each in compiled.manifest["caches"]] == [2]
    inputs = network.at({"past": 11, "tokens": 1}).example_inputs
    found = compiled(*inputs)
    assert compare(found, torch_outputs(network, *inputs))[1] < 1e-5
    again = compiled(inputs[0], *found[1:])
    assert compare(again, torch_outputs(network, inputs[0], *found[1:]))[1] < 1e-5


class Rows(nn.Module):
    """Keeps rows (1, 2, past, 4) of two caches, and returns sums of them in a ``form``."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, row: Tensor, one: Tensor, other: Tensor) -> Any:
        grown = torch.cat([one, row], 2)
        if self.form == "alone":
            return grown
        if self.form == "with the old one":
            return grown.sum(2) * 2, grown, one, other * 2
        return grown.sum(2) * 2, grown, torch.cat([other, row], 2)


def rows_network(form: str, least: int = 1) -> Network:
    one, other = Dim("one", min=least, max=20), Dim("other", min=1, max=50)
    inputs = (torch.rand(1, 2, 1, 4), torch.rand(1, 2, 5, 4), torch.rand(1, 2, 7, 4))
    return load_network((Rows(form), inputs, ({}, {2: one}, {2: other})))


@pytest.mark.parametrize(
    ("form", "caches"), [("alone", [(1, 0, 21)]), ("with the old one", []), ("two", [(1, 1, 21), (2, 2, 51)])]
)
def test_caches_of_several_forms(form: str, caches: list[Any], tmp_path: Path) -> None:
    network = rows_network(form)
    compiled = load(compile_network(import_network(network, CPU), {}, tmp_path))
    assert [(each.input, each.output, each.most) for each in compiled.caches] == caches
    row, *given = (np.random.default_rng(0).random(shape, "float32") for shape in ((1, 2, 1, 4),) + ((1, 2, 5, 4),) * 2)
    expected = list(given)
    for _ in range(4):
        found: Any = compiled(row, *given)
        right = torch_outputs(network, row, *expected)
        found = [found] if form == "alone" else list(found)
        for ours, theirs in zip(found, right, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        given[0], expected[0] = (found[0], right[0]) if form == "alone" else (found[1], right[1])
        if form == "two":
            given[1], expected[1] = found[2], right[2]


def test_what_has_no_elements_does_not_tell_which_outputs_share_memory(tmp_path: Path) -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 2, x.reshape(-1, 2, 4)

    example = (Views(), (torch.rand(3, 8),), ({0: Dim("b", min=0, max=4)},))
    compiled = load(compile_network(import_network(load_network(example), CPU), {}, tmp_path))
    compiled(torch.rand(0, 8))
    x = torch.ones(3, 8)
    compiled(x)[1].zero_()
    assert torch.equal(x, torch.ones(3, 8))


def test_bfloat16_caches_are_not_copied() -> None:
    buffers = CacheBuffers((GrowingCache(0, 0, 1, 12, 1),))
    grown = buffers.returned(buffers.step([torch.rand(2, 3, 3).bfloat16()], {}), 0, as_torch=True)
    assert buffers.step([grown], {}).kept[0].data_ptr() == grown.data_ptr()
