"""Sketches of the tasks of some networks, in a process of its own. Nothing is built or measured; no device is needed.

``python -m bench.drafts.sketch_counts_process --target JSON SPEC...`` prints one JSON object. For each spec it has the
tasks, each with its name, operations, calls, and the number of its sketches by MetaSchedule's rules and by ours; or the
error that kept the network from being read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from bench.processes import die_with_parent
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.sketches.spaces import OWN_RULES, DesignSpace
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass, Task
from fleet_tune.base.errors import UserError


def counts(task: Task) -> dict[str, Any]:
    """Return the facts of a task and the numbers of its sketches."""
    rules = [sketch.rule for sketch in DesignSpace(task).undescribed]
    ours = sum(rule in OWN_RULES for rule in rules)
    workload = task.workload
    return {
        "task": workload.name,
        "flop": workload.flop,
        "calls": task.weight,
        "metaschedule": len(rules) - ours,
        "ours": ours,
    }


def of_network(spec: str, device_class: DeviceClass) -> dict[str, Any]:
    """Return the ``tasks`` of a network, or the ``error`` if it cannot be read or lowered."""
    try:
        tasks = import_network(load_network(spec), device_class).tasks
    except (UserError, ImportError) as error:
        return {"error": str(error).partition("\n")[0]}
    return {"tasks": [counts(task) for task in tasks]}


@click.command()
@click.option("--target", required=True)
@click.argument("specs", nargs=-1, required=True)
def main(target: str, specs: Sequence[str]) -> None:
    """Print the sketches of the networks SPECS for a target."""
    die_with_parent()
    device_class = DeviceClass("counted", resolve_target(target))
    click.echo(json.dumps({spec: of_network(spec, device_class) for spec in specs}))


if __name__ == "__main__":
    main()
