"""The folder of a compiled network: ``network.so``, ``params.safetensors``, ``manifest.json``, and, if the network
calls a library, that library and its licences.

The manifest is written last and holds the content hashes of the other files, so that a folder left incomplete by a
power failure is recognised. Nothing in the folder is a pickle. Loading needs TVM's runtime, not torch.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from devices.builds import libraries
from devices.builds.executables import Array, Executable, build
from devices.builds.linking import link
from devices.cuda import compiler as cuda_compiler
from devices.host.file_cache import source_digest
from devices.networks.caches.growing_caches import grow_in_place
from devices.networks.caches.static_caches import overwrite_caches
from devices.networks.compiled.manifest import (
    CACHES,
    LIBRARIES,
    LIBRARY,
    MANIFEST,
    OVERWRITING_SCHEMA,
    PARAMETERS,
    PUBLISHING,
    SCHEMA,
    STAGE,
    STATIC_CACHES,
)
from devices.networks.compiled.network import CompiledNetwork
from devices.networks.compiled.tensor_file import contents, digest, file_digest
from devices.networks.dynamic.kernels import with_dynamic_kernels
from devices.networks.tasks.lowering import LoweredNetwork
from devices.sketches.contiguous_loops import in_contiguous_order
from devices.sketches.intrinsics import load_intrinsics
from devices.sketches.spaces import ScheduleError, apply_trace, parse_module
from devices.targets import device_kind
from fleet_tune.base.domain import Task
from fleet_tune.base.errors import DiskFullError, OutputFolderError, RecordStoreError
from fleet_tune.base.records.files.atomic_file import sync_folder, write_atomically

__all__ = ["CompiledNetwork", "compile_network", "load", "publish", "schedule_kernels", "staging", "update_manifest"]


def compile_network(
    lowered: LoweredNetwork, best: Mapping[str, str | None], out: Path, manifest_extra: Mapping[str, Any] | None = None
) -> Path:
    """Compile ``lowered`` and write the folder ``out``. Returns ``out``.

    If ``out`` already holds the same network, compiled from the same traces by the same versions, its library and
    weights stay unchanged.

    Args:
        lowered: the network.
        best: trace of each task as JSON text, by task id; tasks without one stay unscheduled.
        out: the folder.
        manifest_extra: further fields of the manifest (``threads``, ``device_fingerprint``, measured latencies,
            errors). Its ``tasks``, a mapping from task id to fields such as ``best_secs`` and ``rule``, is merged into
            the tasks' entries.

    Raises :class:`RecordStoreError` if a trace does not fit its task, :class:`DiskFullError`, and
    :class:`OutputFolderError` if ``out`` cannot be written.
    """
    content = made_of(lowered, best)
    present = _present(out, content)
    written: dict[str, list[bytes | memoryview]] = {}
    if present is None:
        module, caches = grow_in_place(schedule_kernels(lowered, best), lowered.shapes)
        on_cpu = device_kind(lowered.device_class.target) == "cpu"
        module, static_caches = overwrite_caches(module) if on_cpu else (module, ())
        executable = build(module, lowered.device_class.target)
        keys, unique = _deduplicated(executable.parameters)
        written = {LIBRARY: [_link(executable, lowered.device_class.target)], PARAMETERS: contents(unique)}
        called = libraries.called_by(lowered.device_class.target, best.values())
        written |= {name: [content] for each in called for name, content in each.files().items()}
        present = {
            "parameters": keys,
            "files": {name: digest(parts) for name, parts in written.items()},
            LIBRARIES: [each.description for each in called],
            CACHES: [each.entry for each in caches],
            STATIC_CACHES: [each.entry for each in static_caches],
        }
    extra = dict(manifest_extra or {})
    manifest = {
        "schema": OVERWRITING_SCHEMA if present.get(STATIC_CACHES) else SCHEMA,
        "model": lowered.name,  # stored words: older folders have them
        "model_fingerprint": lowered.fingerprint,
        "device_class": lowered.device_class.name,
        "target": json.loads(lowered.device_class.target),
        "versions": {"fleet_tune": _version(), "tvm": tvm.__version__},
        "inputs": [{"name": n, "shape": list(s.shape), "dtype": s.dtype} for n, s in lowered.inputs],
        "outputs": [{"shape": list(s.shape), "dtype": s.dtype} for s in lowered.outputs],
        **({} if lowered.shapes is None else {"shapes": str(lowered.shapes)}),
        "made_of": content,
        "parameters": present["parameters"],
        "files": present["files"],
        LIBRARIES: present.get(LIBRARIES, []),
        **{name: present[name] for name in (CACHES, STATIC_CACHES) if present.get(name)},
        "tasks": [_task_entry(task, best.get(task.id), extra.get("tasks", {})) for task in lowered.tasks],
        **{key: value for key, value in extra.items() if key != "tasks"},
    }
    _make_folder(out)
    for name, parts in written.items():
        _write(out / name, parts)
    _write(out / MANIFEST, _json(manifest))
    return out


def update_manifest(folder: Path, extra: Mapping[str, Any]) -> None:
    """Add measurements that were made after compiling (latencies, errors) to the manifest of ``folder``."""
    manifest = json.loads((folder / MANIFEST).read_text())
    _write(folder / MANIFEST, _json({**manifest, **extra}))


def libraries_in(folder: Path) -> tuple[str, ...]:
    """Return the libraries that the network in ``folder`` calls, each as its name, package and licence."""
    described = json.loads((folder / MANIFEST).read_text()).get(LIBRARIES, [])
    return tuple(f"{each['name']} ({each['package']}), {each['licence']}" for each in described)


def load(folder: Path | str) -> CompiledNetwork:
    """Return the network in ``folder`` as a callable on numpy arrays and torch tensors (see :class:`CompiledNetwork`).

    Raises :class:`OutputFolderError` if the folder is missing, incomplete, damaged, or for another machine.
    """
    return CompiledNetwork.read(Path(folder))


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """Provide a folder within ``out`` for networks that users must not load yet; see :func:`publish`. It starts with
    the published network's files, so that the same network need not be compiled again. A network whose publication was
    interrupted is published first."""
    stage = out / STAGE
    with contextlib.suppress(OSError, ValueError, KeyError):
        _move(stage / (stage / PUBLISHING).read_text(), out)
    shutil.rmtree(stage, ignore_errors=True)  # left by a run that was killed
    published = stage / "network"
    _make_folder(published)
    try:
        # If nothing is published, or hard links are impossible, the network is compiled again.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            for name in _files_in(out):
                os.link(out / name, published / name)
        yield published
    finally:
        if not (stage / PUBLISHING).exists():
            shutil.rmtree(stage, ignore_errors=True)


def publish(folder: Path, out: Path) -> None:
    """Move a compiled network from its staging folder to the folder from which users load it. The manifest is moved
    last: until then, the folder is recognised as incomplete. If the process is killed meanwhile, the next
    :func:`staging` finishes the work."""
    marker = folder.parent / PUBLISHING
    try:
        try:
            marker.write_text(folder.name)
            sync_folder(folder.parent)
        except OSError:
            marker.unlink(missing_ok=True)
            raise
        _move(folder, out)
        marker.unlink()
    except OSError as error:
        raise _unwritable(out, error) from error


def _move(folder: Path, out: Path) -> None:
    """Move the files of the network in ``folder`` that are not moved yet, its manifest last."""
    if not (folder / MANIFEST).exists():  # everything is moved
        return
    names = _files_in(folder)
    for name in names:
        if (folder / name).exists():
            os.replace(folder / name, out / name)
    for name in set(libraries.FILES) - set(names):
        (out / name).unlink(missing_ok=True)
    sync_folder(out)


def schedule_kernels(lowered: LoweredNetwork, best: Mapping[str, str | None]) -> Any:
    """Return the network's module with every kernel scheduled by the trace of its task. On a CPU, kernels without a
    trace get a contiguous loop order.

    The trace is applied to the workload's own module, not to the kernel in the network: workloads are equal up to
    names, and traces name blocks.
    """
    if any("Tensorize" in (best.get(task.id) or "") for task in lowered.tasks):
        load_intrinsics(lowered.device_class.target)
    scheduled: dict[str, Any] = {}
    for task in lowered.tasks:
        trace = best.get(task.id)
        if trace is None:
            continue
        try:
            module = apply_trace(parse_module(task.workload.module), trace)
        except ScheduleError as error:
            raise RecordStoreError(
                f"a recorded schedule does not fit the task {task.workload.name} ({error})",
                "tune the network again with this version",
            ) from error
        scheduled[task.workload.hash] = module["main"]
    functions: dict[Any, Any] = {}
    for variable, function in lowered.module.functions.items():
        replacement = scheduled.get(lowered.workloads.get(variable.name_hint, ""))
        if replacement is not None:
            # Private again, as fused kernels are: the VM calls them by their global variable.
            function = replacement.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
        functions[variable] = function
    module = tvm.IRModule(functions, lowered.module.attrs)
    if lowered.shapes is not None:
        module = with_dynamic_kernels(module, lowered, best)
    return in_contiguous_order(module) if device_kind(lowered.device_class.target) == "cpu" else module


def _task_entry(task: Task, trace: str | None, extra: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": task.id,
        "name": task.workload.name,
        "hash": task.workload.hash,
        "weight": task.weight,
        "flop": task.workload.flop,
        "rule": "unscheduled" if trace is None else "",
        "best_secs": None,
        "gflops": None,
        "trace": None if trace is None else json.loads(trace),
    }
    entry.update(extra.get(task.id, {}))
    if entry["best_secs"]:
        entry["gflops"] = task.workload.flop / entry["best_secs"] / 1e9
    return entry


def _deduplicated(parameters: tuple[Array, ...]) -> tuple[list[str], dict[str, Array]]:
    """Return a key for each parameter, and the arrays by key: equal arrays (tied weights) are stored once."""
    keys: list[str] = []
    unique: dict[str, Array] = {}
    for array in parameters:
        contiguous = np.asarray(array, order="C")
        key = digest([f"{array.dtype}{array.shape}".encode(), contiguous.reshape(-1).view(np.uint8).data])
        unique.setdefault(key, contiguous)
        keys.append(key)
    return keys, unique


def made_of(lowered: LoweredNetwork, best: Mapping[str, str | None]) -> str:
    """Return a hash of everything that the library and the weights depend on."""
    target = lowered.device_class.target
    gpu = cuda_compiler.describe() if device_kind(target) == "cuda" else ""
    parts = [SCHEMA, lowered.fingerprint, target, tvm.__version__, source_digest(), gpu, *_choices(lowered)]
    parts += [each.description for each in libraries.called_by(target, best.values())]
    traces = [[task.workload.hash, best.get(task.id)] for task in lowered.tasks]
    return digest([json.dumps([*parts, traces], sort_keys=True).encode()])


def _choices(lowered: LoweredNetwork) -> list[Any]:
    """Return the choices that the lowered network depends on besides its fingerprint: the weights of its extents (they
    decide the tiles of rows), the products with another precision, and the steps that were left out."""
    products = [] if lowered.conversion is None else lowered.conversion.products
    return [str(lowered.shapes), products, [step for step, _ in lowered.left_out]]


def _files_in(folder: Path) -> list[str]:
    """Return the names of the files of the network in ``folder``, its manifest last."""
    manifest = json.loads((folder / MANIFEST).read_text())
    known = (LIBRARY, PARAMETERS, *libraries.FILES)
    return [*(name for name in known if name in manifest["files"]), MANIFEST]


def _present(out: Path, content: str) -> dict[str, Any] | None:
    """Return the manifest in ``out`` if it describes ``content`` and its files are whole, else None."""
    try:
        manifest: dict[str, Any] = json.loads((out / MANIFEST).read_text())
        if manifest.get("made_of") != content:
            return None
        names = {LIBRARY, PARAMETERS, *manifest["files"]}
        whole = all(file_digest(out / name) == manifest["files"][name] for name in names)
        return manifest if whole else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _link(executable: Executable, target: str) -> bytes:
    try:
        return link(executable.module, target)
    except (RuntimeError, OSError) as error:
        if "No space left" in str(error):
            raise _disk_full(Path(tempfile.gettempdir())) from error
        raise


def _version() -> str:
    try:
        return importlib.metadata.version("fleet-tune")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _json(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error) from error


def _write(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> OutputFolderError | DiskFullError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(path)
    return OutputFolderError(f"{path} cannot be written ({error.strerror})", "choose another output folder")


def _disk_full(path: Path) -> DiskFullError:
    return DiskFullError(f"no space left on the disk of {path}", "free some space and compile again from the records")
