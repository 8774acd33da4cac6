"""The networks of all device classes, compiled from the best records of a store and published.

No wrong network is published: a network is compiled beside the folder from which users load it, run on its device,
compared with its framework, and only then moved into that folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from devices.error_text import brief
from devices.networks.checks.special_inputs import special_outputs_of
from devices.networks.processes.compile_process import CompileProcess
from devices.networks.tasks.lowering import LoweredNetwork
from fleet_tune.base.domain import Record
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.precision import Conversion
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import BOUND, PRECISION
from fleet_tune.base.results import NetworkResult
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.preparing.present_network import published_class
from fleet_tune.runs.publishing.class_compilation import publish_class
from fleet_tune.runs.publishing.class_network import ClassNetwork, NetworkCompiler
from fleet_tune.runs.publishing.compile_request import CompileRequest

# Time limit of compiling a network: this multiple of the build times of its records, and at least so many seconds.
_LONGER = 10.0
_UNKNOWN_BUILD_SECS = 10.0
_LEAST_COMPILE_SECS = 120.0
_LOG = logging.getLogger(__name__)


def folder_of(out: Path, device_class: str, classes: int) -> Path:
    """Return the folder of the network of a class: ``out`` itself for the class whose network is there already, and for
    the only class if no network is there; else a subfolder."""
    present = published_class(out)
    return out if present == device_class or (present is None and classes == 1) else out / device_class


def check_records(
    lowered: Mapping[str, LoweredNetwork], entries: Sequence[SearchTask], records: Path, conversion: Conversion | None
) -> None:
    """Raise :class:`RecordStoreError` if the store is of a run in another precision, or if it has no verified record of
    the network although the network has tasks that can be tuned."""
    with RecordReader(records) as reader:
        stored, here = reader.meta().get(PRECISION), None if conversion is None else conversion.options
        if BOUND in reader.meta() and stored != here:
            raise RecordStoreError(
                f"{records} is of a run in {stored or 'the precision of the network'}, not in {here or 'that'}",
                f"give --precision {stored}" if stored else "leave --precision out, or tune in that precision first",
            )
        if not entries or any(reader.best(task.id) for each in lowered.values() for task in each.tasks):
            return
    raise RecordStoreError(
        f"{records} has no verified record of this network for {' or '.join(lowered)}",
        "tune it first, or name the database of a run of the same network, target and --library",
    )


def publish_networks(
    request: CompileRequest, out: Path, cancellation: Cancellation, compiler: NetworkCompiler | None = None
) -> tuple[NetworkResult, ...]:
    """Compile the network of every device class from its best records, check it on its runner, time it and the untuned
    network, and publish it if it is right.

    A task without a record stays unscheduled. If the network is slower than the untuned one, the untuned one is
    published. An error of one class is in its result and does not affect the others.

    Args:
        request: the networks and their records.
        out: the output folder.
        cancellation: after a cancellation, nothing is published and some error is raised.
        compiler: compiles the networks. None: a new process does.

    Raises the first error if there was one and no class got a network.
    """
    if compiler is None:
        limit_secs = compile_limit_secs(request.lowered.values(), request.records)
        with contextlib.closing(CompileProcess(limit_secs)) as process:
            cancellation.own(process)
            return publish_networks(request, out, cancellation, process)
    expected = request.expected
    if expected is None:
        request.progress.report_step("running the network in its framework")
        expected = request.network.framework_outputs()
    special = functools.cache(lambda: special_outputs_of(request.network))
    results = []
    errors: list[Exception] = []
    for name, lowered in request.lowered.items():
        folder = folder_of(out, name, max(request.classes, len(request.lowered)))
        runner = request.runners.get(name)
        network = ClassNetwork(request, lowered, compiler, expected, special)
        try:
            results.append(publish_class(network, folder, runner, cancellation))
        except Exception as error:
            if cancellation.came:
                raise
            _LOG.warning("the network of %s is not published", name, exc_info=error)
            errors.append(error)
            nothing = NetworkResult(name, folder, None, None, None, None, None)
            results.append(dataclasses.replace(nothing, published="nothing", problem=brief(error)))
        finally:
            if runner is not None:
                runner.close()
    if errors and all(each.published == "nothing" for each in results):
        raise errors[0]
    return tuple(results)


def compile_limit_secs(lowered: Iterable[LoweredNetwork], records: Path) -> float:
    """Return the seconds after which a compiler counts as hanging: ten times the sum of the build times of the best
    records of a network, two minutes at least."""
    with RecordReader(records) as reader:
        sums = [sum(_build_secs(reader.best(task.id)) for task in each.tasks) for each in lowered]
    return max(_LEAST_COMPILE_SECS, _LONGER * max(sums, default=0.0))


def _build_secs(record: Record | None) -> float:
    return (0.0 if record is None else record.measurement.build_secs) or _UNKNOWN_BUILD_SECS
