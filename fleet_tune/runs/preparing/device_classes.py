"""Preparation of a run's network for device classes, both the classes of its start and classes that join later.

Both kinds take the same three steps: :func:`prepare_classes`, :func:`check`, and :func:`with_search_prior`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from devices.describing.cache import DescriptionCache
from devices.error_text import brief
from devices.host.file_cache import user_folder
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.networks.caches.static_caches import overwrite_caches
from devices.networks.checks.comparison import errors_of
from devices.networks.checks.silent_outputs import silent_outputs
from devices.networks.dynamic.other_extents import DisagreementAtExtentsError, compare_least, other_extents
from devices.networks.frontend import Network
from devices.networks.network import Array
from devices.networks.processes.lowering_process import LoweringProcess
from devices.networks.tasks.lowering import (
    DisagreementError,
    LoweredNetwork,
    RunUntuned,
    agreement,
    check_values,
    computes,
    with_operator,
)
from devices.targets import NATIVE, device_kind, library_of, resolve_target, with_library
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import (
    FleetFileError,
    NetworkError,
    RecordStoreError,
    UncheckedError,
    UnsupportedNetworkError,
)
from fleet_tune.base.precision import Precision
from fleet_tune.base.results import OutputErrors, SkippedPart
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.methods import method_of
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing.library_check import with_library_seeds
from fleet_tune.runs.preparing.precision_choice import PrecisionChoice, choose_precisions
from fleet_tune.runs.preparing.ready_tasks import ReadyTask, ReadyTasks
from fleet_tune.runs.shared_store.lookup import StoreLookup, look_up
from fleet_tune.runs.shared_store.shipped import shipped
from fleet_tune.runs.shared_store.store_prior import StorePrior, learns_from_store, read_store_prior
from fleet_tune.runs.transfer.transfer_prior import TransferPrior, what_applies

_LOG = logging.getLogger(__name__)


def prepare_classes(
    network: Network,
    fingerprints: Mapping[str, Fingerprint],
    request: RunRequest,
    lowering: LoweringProcess,
    store: Path | None,
) -> Prepared:
    """Lower the network for the classes of some devices, and look up its tasks in the shared store.

    Args:
        network: the network of the run.
        fingerprints: the fingerprint of each device, by the device's name.
        request: the request. Its fleet has these devices, and may have others, which join later.
        lowering: the process that lowers networks.
        store: the shared store; None for none.

    Raises UserError for a network that such a device cannot run, RecordStoreError if the user has named the store and
    it cannot be read, and FleetTuneError if ``lowering`` is closed meanwhile.
    """
    prepared = lower_network(network, fingerprints, request.fleet, lowering)
    return prepared if store is None else prepared.with_found(look_up_tasks(store, prepared, request))


def lower_network(
    network: Network, fingerprints: Mapping[str, Fingerprint], fleet: FleetConfig, lowering: LoweringProcess
) -> Prepared:
    """Lower ``network`` for every class of devices. Raises :class:`UnsupportedNetworkError` if it has no kernel at
    all, and the errors of :meth:`LoweringProcess.lowered`."""
    # This process also times the network's framework: TVM's threads must not be pinned to the cores of its threads.
    os.environ["TVM_BIND_THREADS"] = "0"
    of_classes = device_classes_of(fingerprints)
    answered = [device for device in fleet.devices if device.name in fingerprints]  # the other devices join later
    here = frozenset(
        fingerprints[device.name].device_class.name
        for device in answered
        if (device.connect == "local" and device.via is None) or is_this_machine(fingerprints[device.name])
    )
    classes = {name: fingerprint.device_class for name, fingerprint in of_classes.items()}
    choices: dict[str, PrecisionChoice] = {}
    expected = None
    if network.conversion is not None and network.conversion.precision is Precision.AUTO:
        expected = network.framework_outputs()
        choices = {name: choose_precisions(network, each, lowering, expected) for name, each in classes.items()}
        lowered = {name: choice.lowered for name, choice in choices.items()}
    else:
        lowered = {name: lowering.lowered(network, each) for name, each in classes.items()}
    if any(each.quantized for each in lowered.values()):
        spread = network.framework.spread()
        lowered = {name: dataclasses.replace(each, framework_spread=spread) for name, each in lowered.items()}
    if not all(map(computes, lowered.values())):
        raise UnsupportedNetworkError(
            f"{network.name} computes nothing: its outputs are its inputs, or views of them", "give another network"
        )
    left_out = tuple(
        SkippedPart("rewrite", "", name, "", f"without {step}: {reason}")
        for name, of_class in lowered.items()
        for step, reason in of_class.left_out
    )
    left_out += tuple(part for name, of_class in lowered.items() for part in _float_products(name, of_class))
    left_out += tuple(part for choice in choices.values() for part in choice.left_out)
    devices = {
        name: tuple(device for device in answered if fingerprints[device.name].device_class.name == name)
        for name in of_classes
    }
    return Prepared(network, of_classes, lowered, here, devices, left_out, expected)


def _float_products(device_class: str, lowered: LoweredNetwork) -> list[SkippedPart]:
    """Return the products of a quantised network that are computed in floats."""
    products = lowered.products
    if products is None:
        return []
    share = f"{products.integers} of {products.integers + len(products.floats)} are in integers"
    return [SkippedPart("product", each.name, device_class, "", f"{each.reason} ({share})") for each in products.floats]


def device_classes_of(fingerprints: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    """Return the fingerprint of each device class by the name of the class: the fingerprint of its first device.

    Raises :class:`FleetFileError` if devices of one class have different targets or power modes.
    """
    classes: dict[str, Fingerprint] = {}
    earlier: dict[str, list[Fingerprint]] = {}  # by class
    for device, fingerprint in fingerprints.items():
        name = fingerprint.device_class.name
        first = classes.setdefault(name, fingerprint)
        if first.device_class.target != fingerprint.device_class.target:
            raise FleetFileError(
                f"device {device!r} has another target than the others of its class {first.device_class.name!r}",
                "give it a device_class of its own in the fleet file",
            )
        others = earlier.setdefault(name, [])
        for other in others:
            if other.differs_in_power(fingerprint):
                raise FleetFileError(
                    f"device {device!r} is in power mode {fingerprint.power}, others of its class "
                    f"{name!r} in {other.power}: their times mean different things",
                    "set both alike (nvpmodel -m, jetson_clocks), or give it a device_class of its own in the fleet "
                    "file",
                )
        others.append(fingerprint)
    return classes


def is_this_machine(fingerprint: Fingerprint) -> bool:
    """Return true if a device that is reached over a port runs the kernels of this machine: it has the same target
    and processor."""
    target = fingerprint.device_class.target
    return target == with_library(resolve_target(NATIVE, fingerprint.threads), library_of(target))


def look_up_tasks(store: Path, prepared: Prepared, request: RunRequest) -> StoreLookup:
    """Look up the tasks in the shared store. Raises :class:`RecordStoreError` if the user has named the store and it
    cannot be read. A default store that cannot be read counts as empty."""
    tasks = [entry.task for entry in prepared.undescribed]
    shown = request.store.shown if request.store else ""
    try:
        shipped_records = shipped() if request.pretrained else None
        found = look_up(store, tasks, prepared.origins, request.limits, request.records, shipped_records)
        return dataclasses.replace(found, shown=shown, prior=_store_prior(found, prepared, request))
    except RecordStoreError as error:
        if request.store_named:
            raise
        _LOG.warning("nothing is taken from the store: %s", error.problem)
        return StoreLookup(store)


def _store_prior(found: StoreLookup, prepared: Prepared, request: RunRequest) -> StorePrior:
    """Return the cost models trained on the store. There are none if the user has named another source to learn from,
    if the run collects a dataset, or if its method does not learn from the store."""
    if request.collects or request.transfer_from is not None or not learns_from_store(method_of(request.method)):
        return StorePrior()
    devices = {name: fingerprint.abstraction for name, fingerprint in prepared.fingerprints.items()}
    return read_store_prior(found.path, found.similar, devices, DescriptionCache(user_folder()), request.seed)


def with_search_prior(prepared: Prepared, request: RunRequest, first: TransferPrior | None = None) -> Prepared:
    """Add the cost model that the searches start from, if any.

    Args:
        prepared: classes without a prior.
        request: names the source of the prior, if any.
        first: the prior of the classes of the run's start. If the user has named a source, its prior is used for all
            classes.

    Raises UserError if ``request.transfer_from`` cannot be used.
    """
    if request.collects:
        return prepared
    if request.transfer_from is not None and first is not None:
        return prepared.with_prior(first)
    method, entries = method_of(request.method), prepared.undescribed
    source = what_applies(entries, method, request.transfer_from, pretrained=request.pretrained)
    return prepared.with_prior(None if source is None else TransferPrior(source, method, request.seed, entries))


def needs_no_trial(prepared: Prepared, request: RunRequest) -> bool:
    """Return true if the run only compiles: the shared store settles all of its tasks."""
    if prepared.found is None or request.collects or request.fleet.datasets:
        return False
    tasks = [entry.task.id for entry in prepared.undescribed]
    return bool(tasks) and prepared.found.settled.issuperset(tasks)


def check(prepared: Prepared, lowering: LoweringProcess, skip: Collection[str] = ()) -> Prepared:
    """Compare the lowered networks with the network's framework, and end ``lowering``.

    A network that this machine cannot run is not compared here; the tuned network is compared before it is published.
    An output may tell nothing on the example inputs: all of it is one number, say. Then other inputs are tried, and
    after those the values that it is computed from.

    Args:
        prepared: the network.
        lowering: the process that runs it.
        skip: names of the classes whose networks are compared on the example inputs later. Here they are run on other
            inputs only, and only if an output tells nothing on the example inputs.

    Raises NetworkError if they disagree, with the operator at fault, or if the network crashes.
    """
    unchecked: list[SkippedPart] = []
    errors: dict[str, OutputErrors] = {}
    untuned_secs: dict[str, float] = {}
    compared = {name: lowered for name, lowered in prepared.lowered.items() if name not in skip}
    expected, others = prepared.expected, prepared.other_extents
    if prepared.lowered and expected is None:
        with ACTIVITY.step("running the network in its framework, to compare"):
            expected = prepared.network.framework_outputs()
    if compared and others is None:
        with ACTIVITY.step("running the network in its framework, to compare"):
            others = other_extents(prepared.network)
        unchecked += [SkippedPart("extent", "", "", "", refusal) for refusal in others.refusals]
    for name, lowered in compared.items():
        assert expected is not None
        assert others is not None
        try:
            untuned = lowering.run(lowered, prepared.network.example_inputs)
            agreement(lowered, untuned.outputs, expected)
            errors[name] = errors_of(untuned.outputs, expected)
            if _is_published_alike(lowered):
                untuned_secs[name] = untuned.secs
            compare_least(others, lowered, partial(lowering.outputs, lowered))
        except DisagreementAtExtentsError as error:
            raise _with_operator(error, prepared.network.at(error.extents), lowered, lowering) from error
        except DisagreementError as error:
            raise _with_operator(error, prepared.network, lowered, lowering) from error
        except UncheckedError as error:
            unchecked.append(SkippedPart("check", "", name, "", str(error)))
    for part in unchecked:
        compared.pop(part.device_class, None)
    later = {name: lowered for name, lowered in prepared.lowered.items() if name in skip}
    unchecked += _compare_further(prepared.network, expected or (), {**compared, **later}, lowering)
    lowering.close()
    checked = prepared.with_left_out(*unchecked)
    return dataclasses.replace(
        checked, expected=expected, other_extents=others, errors=errors, untuned_secs=untuned_secs
    )


def _is_published_alike(lowered: LoweredNetwork) -> bool:
    """Return true if the untuned network would be published in the form that runs here: it is for a CPU, has no dynamic
    extents, over which published kernels run in parallel, and no caches, which are then overwritten, not copied."""
    on_cpu = device_kind(lowered.device_class.target) == "cpu"
    return on_cpu and lowered.shapes is None and not overwrite_caches(lowered.module)[1]


def _compare_further(
    network: Network, expected: Sequence[Array], compared: Mapping[str, LoweredNetwork], lowering: LoweringProcess
) -> list[SkippedPart]:
    """Compare the outputs that tell nothing on the example inputs: on other inputs, or if these tell nothing either, by
    the values from which they are computed. Return a notice for each such output, and for each failed comparison.

    Raises NetworkError if something disagrees.
    """
    told: list[SkippedPart] = []
    silent = silent_outputs(network, expected) if compared else []
    for name, lowered in compared.items():
        try:
            values_before = ""
            # Values before the outputs come last: for them another network is lowered, which the process then runs.
            for each in sorted(silent, key=lambda each: each.others is None):
                if each.others is None:
                    values_before = values_before or _values_before(network, lowered, lowering)
                    found = f"on any inputs that were tried; {values_before}"
                else:
                    other, outputs = each.others
                    try:
                        agreement(lowered, lowering.outputs(lowered, other.example_inputs), outputs)
                    except DisagreementError as error:
                        raise _with_operator(error, other, lowered, lowering) from error
                    found = f"on these inputs ({network.inputs_from}); on others it agrees"
                reason = f"output {each.at} {each.reason}, and a comparison of it says nothing {found}"
                told.append(SkippedPart("output", "", name, "", f"{reason}: give other inputs with --inputs"))
        except UncheckedError as error:
            told.append(SkippedPart("check", "", name, "", str(error)))
    return told


def _values_before(network: Network, lowered: LoweredNetwork, lowering: LoweringProcess) -> str:
    """Compare the values from which the outputs are computed, and return the result in words."""
    try:
        return f"the {check_values(network, _runner(lowered, lowering))} values before the outputs agree"
    except (NetworkError, UncheckedError):
        raise
    except Exception as error:  # what TVM, torch and onnx raise over a network that returns its values
        return f"the values before the outputs cannot be compared ({brief(error)})"


def _with_operator(
    error: DisagreementError, network: Network, lowered: LoweredNetwork, lowering: LoweringProcess
) -> NetworkError:
    """Return ``error`` with its cause: the precision of the conversion, if the network agrees without it, else an
    operator."""
    if lowered.conversion is not None:
        try:
            plain, outputs = _runner(lowered, lowering)(dataclasses.replace(network, conversion=None))
            agreement(plain, outputs, network.framework_outputs())
        except UncheckedError:  # the cause is unknown
            return error
        except DisagreementError as without:
            error = without
        else:
            return NetworkError(
                f"{error.problem}; it agrees in the precision that it came in, and {lowered.precision} is too coarse "
                "or too narrow for it",
                "give another --precision, or leave it out",
            )
    return with_operator(error, network, _runner(lowered, lowering))


def _runner(lowered: LoweredNetwork, lowering: LoweringProcess) -> RunUntuned:
    """Return a function that lowers another network for the class of ``lowered``, as it is imported, and runs it."""

    def run(opened: Network) -> tuple[LoweredNetwork, tuple[Array, ...]]:
        of_opened = lowering.lowered(opened, lowered.device_class)
        return of_opened, lowering.outputs(of_opened, opened.example_inputs)

    return run


def describe_tasks(prepared: Prepared, fleet: FleetConfig, window: QuietWindow | None = None) -> ReadyTasks:
    """Return the tasks of a prepared network as they become ready, each with the start of its search: a cost model and
    seeds."""
    found, priors = prepared.found, prepared.priors

    def with_start(entry: SearchTask) -> SearchTask:
        prior = priors.get(entry.task.device_class.name)
        if found is not None and entry.task.id in found.prior.learners:
            entry = found.prior.with_prior(entry)
        elif prior is not None:
            entry = prior.with_prior(entry)
        return with_library_seeds(entry if found is None else found.seeded(entry))

    return ReadyTasks(prepared.undescribed, fleet.datasets, with_start, window)


def described_tasks(prepared: Prepared, fleet: FleetConfig) -> list[ReadyTask]:
    """Return all tasks of :func:`describe_tasks`."""
    ready: list[ReadyTask] = []
    total = len(prepared.undescribed)
    with ACTIVITY.step(f"describing {total} tasks") as say:
        for each in describe_tasks(prepared, fleet):
            ready.append(each)
            say(f"describing tasks, {len(ready)} of {total}")
    return ready
