"""Child process of the service, for one step: ``python -m fleet_tune.retuning.child ORDER ANSWER PARENT``.

``ORDER`` is a JSON file with the step's name under ``step`` and its arguments. ``ANSWER`` is written at the end:
``{"answer": ...}``, or ``{"problem": ...}`` in one line. TVM, torch and Ray are loaded in this process, whose end frees
their memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.host.children.child import die_with_parent
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig, default_fleet, load_fleet
from fleet_tune.base.device_state import Admin
from fleet_tune.base.errors import FleetTuneError, UserError
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.records.orders import FleetOrders, orders_path
from fleet_tune.retuning.step_runner import StepError, TuneOutcome

if TYPE_CHECKING:
    from fleet_tune.runs.run import FinishedRun

_Step = Callable[..., Any]


def _fleet(path: str | None) -> FleetConfig:
    return default_fleet() if path is None else load_fleet(Path(path))


def _device(fleet: str | None, name: str) -> DeviceConfig:
    for device in _fleet(fleet).devices:
        if device.name == name:
            for why in _out_of_use(fleet, [name]).values():
                raise StepError(f"device {name} is {why}")
            return device
    raise StepError(f"the fleet has no device {name} any more")


def _out_of_use(fleet: str | None, devices: Sequence[str]) -> dict[str, str]:
    """Return the devices that people have taken out of use, each with the reason. Nothing runs on them."""
    orders = {} if fleet is None else FleetOrders(orders_path(Path(fleet))).latest()
    return {
        name: f"out of use: {orders[name].admin.value}{orders[name].reason and f' ({orders[name].reason})'}"
        for name in devices
        if name in orders and orders[name].admin is not Admin.ACTIVE
    }


def ask(fleet: str | None, devices: Sequence[str], address: str | None = None) -> list[dict[str, str]]:
    """Return descriptions of devices: the fields of :class:`policies.retuning.state.DeviceAnswer`."""
    from fleet_tune.base.records.stores.origin import encode_origin
    from fleet_tune.runs.fleet.device_check import check_devices
    from fleet_tune.runs.origins import origin_of

    out = _out_of_use(fleet, devices)
    answers = [{"name": name, "problem": why} for name, why in out.items()]
    asked = [name for name in devices if name not in out]
    for check in check_devices(_fleet(fleet), asked, address) if asked else ():
        if check.fingerprint is None or check.state != "good":
            answers.append({"name": check.device_id, "problem": check.detail or check.state})
            continue
        name, origin = check.fingerprint.device_class.name, encode_origin(origin_of(check.fingerprint))
        answers.append({"name": check.device_id, "device_class": name, "origin": origin})
    return answers


def tune(
    network: str,
    inputs: str | None,
    trust: bool,
    fleet: str | None,
    devices: Sequence[str],
    out: str,
    store: str,
    address: str | None,
    secs: float,
    precision: str | None = None,
    max_error: float | None = None,
    shapes: str | None = None,
    shapes_weights: str | None = None,
    metrics_host: str | None = None,
) -> dict[str, Any]:
    """Tune a network in a run, and return the fields of :class:`fleet_tune.retuning.step_runner.TuneOutcome`. The
    metrics of the run are served on a free port of ``metrics_host``, or not at all if that is None."""
    from fleet_tune.base.config.request import run_request
    from fleet_tune.runs.run import run

    request = run_request(
        network,
        out=out,
        time_budget_secs=secs,
        fleet=_fleet(fleet).only(set(devices)),
        address=address,
        inputs=inputs,
        trust_model=trust,
        precision=precision,
        max_error=max_error,
        shapes=shapes,
        shapes_weights=shapes_weights,
        store=store,
    )
    if metrics_host is not None:
        request = dataclasses.replace(request, metrics_port=0, metrics_host=metrics_host)
    finished = asyncio.run(run(request))
    ran = _outcome(finished, secs)
    return {**dataclasses.asdict(ran), "folder": None if ran.folder is None else str(ran.folder)}


def _outcome(finished: FinishedRun, secs: float) -> TuneOutcome:
    from devices.networks.compiled.tensor_file import write
    from fleet_tune.retuning.version_repository import INPUTS

    result = finished.result
    if result.interrupted:
        return TuneOutcome(None, "it was interrupted")
    if finished.published is None or len(result.networks) != 1:
        classes = ", ".join(each.device_class for each in result.networks) or "no class"
        return TuneOutcome(None, f"its devices are of {classes}, and not of one")
    (compiled,) = result.networks
    if compiled.published == "nothing":
        return TuneOutcome(None, f"the network is not published: {compiled.problem}")
    write(compiled.folder / INPUTS, finished.published.tuned.prepared.network.example_inputs)
    tuned_secs = min(secs, result.elapsed_secs)
    return TuneOutcome(compiled.folder, "", tuned_secs, compiled.secs, compiled.untuned_secs, result.new_trials)


def compare(
    fleet: str | None, device: str, last: str, new: str, to_the_end: bool, address: str | None = None
) -> dict[str, Any]:
    """Compare two versions, and return the fields of :class:`fleet_tune.retuning.step_runner.VersionComparison`."""
    from fleet_tune.retuning.timing import compare_versions, timer_on

    with timer_on(_device(fleet, device), address) as timer:
        return dataclasses.asdict(compare_versions(timer, Path(last), Path(new), to_the_end))


def check(
    fleet: str | None,
    device: str,
    folder: str,
    against: Mapping[str, float] | None,
    slower: float,
    drift: float,
    address: str | None = None,
) -> list[dict[str, float]]:
    """Time a version beside the probe. Return the fields of :class:`policies.retuning.slowdown.Timed` of each pair."""
    from fleet_tune.retuning.timing import time_with_probe, timer_on
    from policies.retuning.slowdown import Baseline

    baseline = None if against is None else Baseline(**against)
    with timer_on(_device(fleet, device), address) as timer:
        return [dataclasses.asdict(pair) for pair in time_with_probe(timer, Path(folder), baseline, slower, drift)]


def prune(store: str, keep_best: int) -> int:
    """Prune a store and return the number of removed records. The best candidates of each task and origin stay."""
    from fleet_tune.base.records.sharing.maintenance import PruneRule
    from fleet_tune.runs.shared_store.upkeep import pruned

    return pruned(Path(store), PruneRule(keep_best=keep_best), dry_run=False)[0]


STEPS: Mapping[str, _Step] = {"ask": ask, "tune": tune, "compare": compare, "check": check, "prune": prune}


def main(arguments: Sequence[str]) -> int:
    order_file, answer_file, parent = arguments
    die_with_parent(int(parent))
    order = json.loads(Path(order_file).read_text())
    answer: dict[str, Any]
    try:
        answer = {"answer": STEPS[order.pop("step")](**order)}
    except UserError as error:
        answer = {"problem": error.problem, "kind": type(error).__name__}
    except (FleetTuneError, StepError) as error:
        answer = {"problem": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"problem": f"a fault of fleet-tune: {type(error).__name__}: {error}"}
    answer = {name: " ".join(value.split()) if name == "problem" else value for name, value in answer.items()}
    write_atomically(Path(answer_file), json.dumps(answer).encode(), durable=False)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a run that ended early may have left a thread in native code: see fleet_tune.cli.main.run
