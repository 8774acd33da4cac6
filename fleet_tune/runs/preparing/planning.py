"""The plan of a run, which is made without a cluster and without a trial."""

from __future__ import annotations

import contextlib
import math

from devices.networks.frontend import load_network
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.records.datasets.sources import check_source
from fleet_tune.base.records.sharing.team import sync_team
from fleet_tune.base.results import Plan, TaskProgress
from fleet_tune.runs.fleet.fleet_probe import probe_fleet
from fleet_tune.runs.fleet.tracker_boards import with_boards
from fleet_tune.runs.methods import method_of
from fleet_tune.runs.preparing.device_classes import (
    check,
    described_tasks,
    look_up_tasks,
    lower_network,
    with_search_prior,
)
from fleet_tune.runs.preparing.library_check import check_library
from fleet_tune.runs.preparing.ready_tasks import in_order


def plan(request: RunRequest) -> Plan:
    """Plan a run: tasks, weights and sketches for every device class, and the records and models from which the search
    would start. The imported network is compared with its framework. Raises UserError."""
    method = method_of(request.method)
    check_library(request.fleet)
    if request.transfer_from is not None:
        check_source(request.transfer_from)
    if request.store is not None:
        sync_team(request.store)
    fleet = with_boards(request.fleet)
    with ACTIVITY.step("probing the devices"):
        by_device = probe_fleet(fleet)
    with contextlib.closing(LoweringProcess()) as lowering:
        with ACTIVITY.step("reading the network"):
            network = load_network(request.network, request.inputs, request.trust_model, request.shapes)
            network = network.in_precision(request.precision, request.max_error)
        prepared = check(lower_network(network, by_device, fleet, lowering), lowering)
        described, left_out = in_order(prepared.undescribed, described_tasks(prepared, fleet))
    with ACTIVITY.step("training on what earlier runs have measured"):
        prepared = with_search_prior(prepared, request)
    found = None if request.store is None else look_up_tasks(request.store.path, prepared, request)
    prior = prepared.first_prior
    others = described if found is None else tuple(found.without_prior(described))
    tasks = tuple(
        TaskProgress(
            task_id=entry.task.id,
            name=entry.task.workload.name,
            device_class=entry.task.device_class.name,
            weight=entry.task.weight,
            flop=entry.task.workload.flop,
            sketches=len(entry.sketches),
            trials=0,
            best_secs=math.inf,
        )
        for entry in described
    )
    return Plan(
        network=network.name,
        method=method.name,
        devices={
            config.name: by_device[config.name].device_class.name if config.name in by_device else "it does not answer"
            for config in fleet.devices
        },
        tasks=tasks,
        trial_limit=request.limits.trials,
        time_budget_secs=request.limits.time_budget_secs,
        transferred=None if prior is None or not others else prior.summary(others),
        left_out=(*prepared.left_out, *left_out),
        inputs=network.inputs_from,
        store=None if found is None else found.summary,
        precision=None if network.conversion is None else network.conversion.options,
        errors=prepared.errors if request.precision else {},
    )
