"""The first step of a run: it reads the network while the devices start, and prepares the network for their classes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors.clients.threads import in_thread
from actors.run_hosts import RunHosts
from devices.networks.frontend import Network
from devices.networks.libraries import load_libraries
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.config.request import RunRequest
from fleet_tune.runs.context import RunContext
from fleet_tune.runs.interruption import beside
from fleet_tune.runs.shared_store.shipped import shipped

if TYPE_CHECKING:
    from fleet_tune.runs.prepared import Prepared


async def prepare(context: RunContext, starting: asyncio.Future[RunHosts], lowering: LoweringProcess) -> Prepared:
    """Prepare the network of a run for the classes of the devices that answer.

    Args:
        context: the run.
        starting: the builders and devices of the run, which start meanwhile.
        lowering: the process that lowers networks.

    Raises RunInterruptedError, and UserError for problems that users can correct.
    """
    async with beside(context.reporter.announce_waiting()):
        return await _prepare(context, starting, lowering)


async def _prepare(context: RunContext, starting: asyncio.Future[RunHosts], lowering: LoweringProcess) -> Prepared:
    request, store, unless_interrupted = context.request, context.store, context.interruption.unless
    hosts, network, _ = await unless_interrupted(
        asyncio.gather(
            starting,
            in_thread(_read_network, request),
            store.synchronize(),
        )
    )
    if store.path is None:
        hosts.warm_up()
    from fleet_tune.runs.preparing import device_classes  # TVM is loaded by now

    await unless_interrupted(in_thread(store.subscribe))
    prepared = await unless_interrupted(
        in_thread(device_classes.prepare_classes, network, hosts.fingerprints, request, lowering, store.path)
    )
    if device_classes.needs_no_trial(prepared, request):
        return prepared
    if store.path is not None:  # not before the look-up, which might have settled all tasks
        hosts.warm_up()
    return await unless_interrupted(in_thread(device_classes.with_search_prior, prepared, request))


def _read_network(request: RunRequest) -> Network:
    # Imported in this thread, because loading TVM takes seconds: the actors start meanwhile.
    with ACTIVITY.step("loading torch and TVM"):
        load_libraries()
        from devices.networks.frontend import load_network
        from fleet_tune.runs.preparing import device_classes  # noqa: F401

    with ACTIVITY.step("reading the network"):
        network = load_network(request.network, request.inputs, request.trust_model, request.shapes)
        network = network.in_precision(request.precision, request.max_error)
    if request.store is not None and request.pretrained:
        shipped()  # read while the devices start, and kept for the look-up of the tasks
    return network
