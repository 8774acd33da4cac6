"""A run callback that follows the fleet file and the machines of the cluster during a run."""

from __future__ import annotations

from fleet_tune.runs.fleet.fleet_watch import FleetWatch
from fleet_tune.runs.run_callback import OngoingTuning, RunCallback


class FleetFollower(RunCallback):
    """Adds and removes devices when the fleet file changes, and builders when machines join or leave."""

    failure = "the fleet file is not followed any more"

    async def during(self, tuning: OngoingTuning) -> None:
        """Follow the fleet file and the cluster. Does nothing if there is no fleet file and the
        cluster is the run's own."""
        hosts = tuning.hosts
        if hosts.fleet.source is not None or not hosts.cluster.is_embedded:
            await FleetWatch(hosts.fleet).follow(tuning.session)
