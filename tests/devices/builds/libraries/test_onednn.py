"""oneDNN's package: how it is found, what is linked, what its calls compute. Where it is not installed, the calls are
not tested."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import te, topi

from devices.builds import libraries, linking
from devices.builds.builder import built_by
from devices.builds.libraries import onednn
from devices.builds.libraries.onednn import LICENCES, ONEDNN, SHARED_LIBRARY, LibraryMissingError, installed
from devices.builds.linking import link
from devices.targets import parse_target, resolve_target, with_library
from tests.helpers.plain_library import use_plain_library

PLAIN = resolve_target("native", 1)
TARGET = with_library(PLAIN, ONEDNN)
WHOLE = (SHARED_LIBRARY, "dnnl.h", "LICENSE", "THIRD-PARTY-PROGRAMS")
"""Files of the packages."""


def _is_installed() -> bool:
    try:
        installed()
    except LibraryMissingError:
        return False
    return True


needs_onednn = pytest.mark.skipif(not _is_installed(), reason="pip install 'fleet-tune[onednn]': oneDNN is not there")


@pytest.fixture(autouse=True)
def _nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remembering = (onednn.installed, onednn._compiled)
    for each in remembering:
        each.cache_clear()
    yield
    for each in remembering:
        each.cache_clear()


def test_who_has_no_package_is_told_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(LibraryMissingError, match="onednn-cpu-gomp is not installed") as told:
        installed()
    assert "pip install 'fleet-tune[onednn]'" in told.value.next_step
    assert libraries.libraries_of(PLAIN) == ()
    for asked in (libraries.libraries_of, built_by.__wrapped__):
        with pytest.raises(LibraryMissingError):
            asked(TARGET)


class _Packaged(importlib.metadata.PackagePath):
    """A file of a package in a folder."""

    def locate(self) -> Any:
        return Path(str(self.dist), str(self))


def _packages(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have the folder's files of these names be those of both packages."""
    found = []
    for name in names:
        (folder / name).write_text(name)
        path = _Packaged(name)
        path.dist = folder  # type: ignore[assignment]
        found.append(path)
    monkeypatch.setattr(importlib.metadata, "files", lambda _name: found)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "7.1")


def test_who_lacks_the_headers_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(tmp_path, monkeypatch, SHARED_LIBRARY)
    with pytest.raises(LibraryMissingError, match="onednn-devel-cpu-gomp"):
        installed()


def test_who_has_no_compiler_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(tmp_path, monkeypatch, SHARED_LIBRARY, "dnnl.h")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LibraryMissingError, match="no C compiler") as told:
        installed()
    assert "install gcc" in told.value.next_step


def test_calls_that_cannot_be_compiled_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(tmp_path, monkeypatch, *WHOLE)
    with pytest.raises(LibraryMissingError, match="cannot be compiled"):
        onednn.link_inputs(tmp_path)


def test_licences_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(tmp_path, monkeypatch, *WHOLE)
    found = installed()
    assert found.files() == {SHARED_LIBRARY: b"libdnnl.so.3", LICENCES: b"LICENSE\nTHIRD-PARTY-PROGRAMS"}
    assert found.description == {"name": "oneDNN", "package": "onednn-cpu-gomp 7.1", "licence": "Apache-2.0"}
    assert set(found.files()) == set(libraries.FILES)


def test_kernels_that_call_nothing_are_not_linked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_given: Any, **_options: Any) -> Any:
        raise AssertionError("nothing calls the library")

    monkeypatch.setattr(onednn, "link_inputs", refused)
    data = te.placeholder((8,), name="data")
    program = te.create_prim_func([data, topi.nn.relu(data)]).with_attr("global_symbol", "main")
    assert link(tvm.tirx.build(tvm.IRModule({"main": program}), target=parse_target(TARGET)), TARGET)


def test_what_cannot_be_loaded_is_told_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(tmp_path, monkeypatch, SHARED_LIBRARY)  # a device needs nothing else
    assert "oneDNN cannot be loaded: " in (told := libraries.load_installed(ONEDNN))
    assert told.endswith("; install GNU's OpenMP runtime (Debian: libgomp1)")
    assert "unknown library 'mkl'" in libraries.load_installed("mkl")
    monkeypatch.setattr(importlib.metadata, "files", lambda _name: [])
    assert "pip install 'fleet-tune[onednn]'" in libraries.load_installed(ONEDNN)


@pytest.mark.parametrize("linker", [None, ("gcc", *linking._COMPILER_OPTIONS)])
def test_a_kernel_looks_for_it_beside_itself_alone(
    linker: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_library(tmp_path / "package", monkeypatch)
    if linker is not None:
        monkeypatch.setattr(linking, "find_linker", lambda _target: linker)
    data = te.placeholder((8, 8), name="data")
    call = te.extern(
        (8, 8),
        [data],
        lambda ins, outs: tvm.tirx.call_extern(
            "int32", "fleet_tune_onednn_product", *(each.access_ptr("r") for each in (*ins, *ins, *outs)), 8, 8, 8
        ),
        dtype="float32",
    )
    program = te.create_prim_func([data, call]).with_attr("global_symbol", "main")
    content = link(tvm.tirx.build(tvm.IRModule({"main": program}), target=parse_target(TARGET)), TARGET)
    assert b"$ORIGIN\0" in content
    assert str(tmp_path).encode() not in content
    path = tmp_path / "kernel.so"
    path.write_bytes(content)
    ones, result = np.ones((8, 8), np.float32), tvm.runtime.empty((8, 8), "float32")
    tvm.runtime.load_module(str(path))["main"](tvm.runtime.tensor(ones), result)
    np.testing.assert_array_equal(result.numpy(), 8 * ones)


@pytest.fixture
def calls(tmp_path: Path) -> Any:
    """The functions that kernels call, as a library."""
    library = tmp_path / "calls.so"
    subprocess.run(["ld", "-shared", "-o", str(library), *onednn.link_inputs(tmp_path)], check=True)
    onednn.load_installed()
    return ctypes.CDLL(str(library))


def _at(array: Any) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)


@needs_onednn
@pytest.mark.parametrize(("m", "n", "k"), [(1, 10, 16), (7, 64, 3), (37, 40, 96), (197, 192, 192)])
def test_products_are_right(m: int, n: int, k: int, calls: Any) -> None:
    rng = np.random.default_rng(3)
    data, weights = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    result = np.full((m, n), np.nan, np.float32)
    assert calls.fleet_tune_onednn_product(_at(data), _at(weights), _at(result), m, n, k) == 0
    np.testing.assert_allclose(result, data.astype(float) @ weights.astype(float), rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize(
    ("size", "window", "steps", "zeros"),
    [
        ((13, 11, 16, 24), (3, 3), (1, 1), (1, 1, 1, 1)),
        ((13, 11, 16, 24), (3, 3), (2, 2), (1, 1, 0, 0)),
        ((14, 12, 3, 16), (5, 4), (2, 1), (2, 2, 1, 1)),
        ((9, 9, 8, 8), (1, 1), (2, 2), (0, 0, 0, 0)),
        ((16, 16, 3, 96), (4, 4), (4, 4), (0, 0, 0, 0)),
    ],
)
def test_parts_of_convolutions_are_right(
    size: tuple[int, ...], window: tuple[int, int], steps: tuple[int, int], zeros: tuple[int, ...], calls: Any
) -> None:
    height, width, k, n = size
    top, left, bottom, right = zeros
    rng = np.random.default_rng(4)
    data, weights = rng.standard_normal(size[:3], np.float32), rng.standard_normal((*window, k, n), np.float32)
    image = torch.nn.functional.pad(torch.from_numpy(data).permute(2, 0, 1)[None], (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(
        image.double(), torch.from_numpy(weights).permute(3, 2, 0, 1).double(), stride=steps
    )[0].permute(1, 2, 0)
    rows, columns = expected.shape[:2]
    for part in {1, 3, rows}:
        for first in range(rows - part + 1):
            result = np.full((part, columns, n), np.nan, np.float32)
            numbers = (first, part, columns, n, height, width, k, *window, *steps, top, left)
            assert calls.fleet_tune_onednn_convolution(_at(data), _at(weights), _at(result), *numbers) == 0
            np.testing.assert_allclose(result, expected[first : first + part], rtol=1e-4, atol=1e-4)


@needs_onednn
def test_special_values_of_an_image_reach_all_that_is_made_of_them(calls: Any) -> None:
    data, weights = np.ones((8, 8, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    data[0, 0, 3], data[5, 5, 7] = np.nan, np.inf
    result = np.zeros((8, 8, 16), np.float32)
    numbers = (0, 8, 8, 16, 8, 8, 16, 3, 3, 1, 1, 1, 1)
    assert calls.fleet_tune_onednn_convolution(_at(data), _at(weights), _at(result), *numbers) == 0
    reached = np.zeros((8, 8), bool)
    reached[:2, :2] = True
    assert np.array_equal(np.isnan(result), np.broadcast_to(reached[..., None], result.shape))
    assert np.isposinf(result[4:7, 4:7]).all()


@needs_onednn
def test_a_call_that_fails_leaves_no_number(calls: Any) -> None:
    """Nothing is computed of a shape that oneDNN refuses."""
    result = np.zeros((2, 2), np.float32)
    assert calls.fleet_tune_onednn_product(_at(result), _at(result), _at(result), 2, 2, -1) == 1
    assert np.isnan(result).all()


@needs_onednn
def test_threads_call_side_by_side_and_start_no_others(calls: Any) -> None:
    rng = np.random.default_rng(5)
    data, weights = rng.standard_normal((64, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    results = np.zeros((4, 64, 64), np.float32)
    running: list[int] = []

    def work(at: int) -> None:
        for _ in range(50):
            calls.fleet_tune_onednn_product(_at(data), _at(weights), _at(results[at]), 64, 64, 64)
        running.append(len(os.listdir("/proc/self/task")))

    before = len(os.listdir("/proc/self/task"))
    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert max(running) <= before + 4
    for result in results:
        np.testing.assert_allclose(result, data @ weights, rtol=1e-3, atol=1e-4)


@needs_onednn
def test_the_calls_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = onednn.link_inputs(tmp_path)
    content = Path(first[0]).read_bytes()
    onednn._compiled.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_given, **_options: pytest.fail("it is compiled again"))
    assert Path(onednn.link_inputs(tmp_path)[0]).read_bytes() == content
