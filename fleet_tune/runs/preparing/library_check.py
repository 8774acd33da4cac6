"""The libraries that a fleet's kernels may call."""

from __future__ import annotations

import dataclasses

from devices.builds.libraries import onednn
from devices.sketches.rules.library import uses_library
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.search_task import SearchTask


def check_library(fleet: FleetConfig) -> None:
    """Raise :class:`~devices.builds.libraries.onednn.LibraryMissingError` if a library is asked for that is not
    installed here. Other hosts that build report a missing library themselves."""
    if any(device.library for device in fleet.devices):
        onednn.installed()


def with_library_seeds(entry: SearchTask) -> SearchTask:
    """Add one candidate of each library sketch to the candidates with which a task's search begins. No model knows the
    time of library calls: without a measurement the search may never try them.

    The candidate gives each core a part of the rows, or of the columns if there are too few rows. For SqueezeNet's
    convolutions it was within 2% of the library's fastest candidate, in the mean.
    """
    calls = [at for at, sketch in enumerate(entry.sketches) if uses_library(sketch.trace_text)]
    if not calls or entry.recorded is not None:  # a dataset cannot measure new candidates
        return entry
    seeds = list(entry.seeds)
    for at in calls:
        rows, columns = (len(getattr(decision, "values", ())) - 1 for decision in entry.sketches[at].decisions)
        seeds.append((at, (1, 0) if rows else (0, min(1, columns))))
    confirmation_trials = entry.confirmation_trials and entry.confirmation_trials + len(calls)
    return dataclasses.replace(entry, seeds=tuple(seeds), confirmation_trials=confirmation_trials)
