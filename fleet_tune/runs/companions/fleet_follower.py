"""The fleet file and the machines of the cluster during a run, as a companion."""

from __future__ import annotations

import logging

from actors.clients.calls import error_line
from fleet_tune.runs.companion import Companion, OngoingTuning
from fleet_tune.runs.fleet.fleet_watch import FleetWatch

_LOG = logging.getLogger(__name__)


class FleetFollower(Companion):
    """Adds and removes devices as the fleet file changes, and builders as machines come and go."""

    async def during(self, tuning: OngoingTuning) -> None:
        """Follow the fleet file and the cluster, as far as there is something that may change."""
        hosts = tuning.hosts
        if hosts.fleet.source is None and hosts.cluster.is_embedded:
            return
        try:
            await FleetWatch(hosts.fleet).follow(tuning.session)
        except Exception as error:
            _LOG.exception("the fleet file is not followed any more")
            tuning.session.notice(f"the fleet file is not followed any more: {error_line(error)}", False)
