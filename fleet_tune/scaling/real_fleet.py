"""Scaling of a run on a real fleet: a network is tuned on more and more of its devices, one count after the other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from actors.fleet_usage import FleetUsage, since
from actors.tuning_session import TuningSession
from devices.host.owned_folder import owned_folder
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig, RecordedConnection, load_fleet
from fleet_tune.base.config.request import RunRequest, run_request
from fleet_tune.base.config.values import MOST_SECS, path, seconds
from fleet_tune.base.errors import RequestError
from fleet_tune.base.results import DeviceTime
from fleet_tune.runs.fleet.tracker_boards import with_boards
from fleet_tune.runs.run import run
from fleet_tune.runs.run_callback import OngoingTuning, RunCallback
from fleet_tune.scaling.simulated_fleet import WARM_UP_SECS, counts

_LOOK_SECS = 0.5


@dataclass(frozen=True)
class FleetScaleRequest:
    """``run``: a run on all devices of the fleet; each count gets a temporary output folder instead. ``devices``: the
    counts of devices; ``secs``: seconds for which each count is measured."""

    run: RunRequest
    devices: tuple[int, ...]
    secs: float


def fleet_scale_request(
    network: str,
    devices: str,
    *,
    fleet: Path | str,
    secs: float,
    address: str | None = None,
    inputs: Path | str | None = None,
    shapes: str | None = None,
    shapes_weights: str | None = None,
    trust_model: bool = False,
) -> FleetScaleRequest:
    """Check the request of a user, and return it. ``fleet``: the path of a fleet file, whose trackers are asked for
    their boards. ``devices``: counts, as ``1,2,4``. The other arguments are those of
    :func:`fleet_tune.base.config.request.run_request`. Raises :class:`RequestError`, :class:`FleetFileError`."""
    asked, secs = counts(devices), seconds("the time for each count", secs, "--seconds")
    config = with_boards(load_fleet(path("a fleet file", fleet, "--fleet")))
    there = len(config.devices)
    if max(asked) > there:
        raise RequestError(f"--devices has {max(asked)}, and {fleet} has {there}", f"give counts from 1 to {there}")
    if any(isinstance(device.connection, RecordedConnection) for device in config.devices):
        raise RequestError(
            f"{fleet} has recorded devices, which take no time", "remove them; without --fleet devices are simulated"
        )
    request = run_request(
        network,
        out=Path(tempfile.gettempdir()).absolute(),
        time_budget_secs=MOST_SECS,
        fleet=config,
        address=address,
        inputs=inputs,
        shapes=shapes,
        shapes_weights=shapes_weights,
        trust_model=trust_model,
        store="",
    )
    return FleetScaleRequest(request, asked, secs)


def part(fleet: FleetConfig, count: int) -> FleetConfig:
    """Return the fleet with ``count`` of its devices. They are taken from each kind (same device class, or else same
    target) in turn, in the order of the fleet."""
    kinds: dict[str, list[str]] = {}
    for device in fleet.devices:
        kinds.setdefault(_kind(device), []).append(device.name)
    in_turn = [name for name in chain(*zip_longest(*kinds.values())) if name is not None]
    # Of the boards of a tracker, only those listed so far take part.
    return fleet.only(in_turn[:count]).model_copy(update={"all_of_a_key": ()})


def _kind(device: DeviceConfig) -> str:
    return device.device_class or json.dumps(device.target, sort_keys=True)


def run_fleet_scaling(request: FleetScaleRequest, on_count: Callable[[int], None]) -> list[FleetUsage]:
    """Tune the network on parts of the fleet and return the use of each, in the order of the request.

    ``on_count`` is called with each count when its run starts. Raises KeyboardInterrupt after a signal,
    :class:`RequestError` if a device does not answer or the network has too little to tune, and the errors of runs.
    """
    uses = []
    for count in request.devices:
        on_count(count)
        with owned_folder("scale") as folder:
            part_request = dataclasses.replace(request.run, out=folder.absolute(), fleet=part(request.run.fleet, count))
            use = asyncio.run(_played(part_request, request.secs))
        if use is None:
            raise KeyboardInterrupt
        uses.append(use)
    return uses


class _FleetMeter(RunCallback):
    """Measures what the devices of a run do while it tunes."""

    failure = "the fleet is not metered any more"

    def __init__(self, fleet: FleetConfig, secs: float) -> None:
        self.usage: asyncio.Future[FleetUsage | None] = asyncio.get_running_loop().create_future()
        """The result; None after a signal."""
        self._fleet = fleet
        self._secs = secs

    async def during(self, tuning: OngoingTuning) -> None:
        """Measure for the given time. It is an error if the tuning ends earlier."""
        try:
            _check_all_answer(self._fleet, tuning.session.members())
            self.usage.set_result(await _watched(tuning.session, self._secs))
        except asyncio.CancelledError:
            if tuning.is_interrupted:
                self.usage.set_result(None)
            else:
                problem = "the network was tuned to its end before the time was over"
                self.usage.set_exception(RequestError(problem, "give a larger one, or less time"))
            raise
        except Exception as error:
            self.usage.set_exception(error)


async def _played(request: RunRequest, secs: float) -> FleetUsage | None:
    """Run until the devices are measured, and return their use. None after a signal."""
    meter = _FleetMeter(request.fleet, secs)
    running = asyncio.ensure_future(run(request, follows_fleet=False, callbacks=[meter]))
    try:
        either: list[asyncio.Future[Any]] = [running, meter.usage]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not meter.usage.done():
            running.result()  # it failed, or was interrupted before it tuned
            return None
        return meter.usage.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _check_all_answer(fleet: FleetConfig, members: Mapping[str, tuple[DeviceConfig, ...]]) -> None:
    there = {device.name for devices in members.values() for device in devices}
    missing = [device.name for device in fleet.devices if device.name not in there]
    if missing:
        raise RequestError(
            f"{', '.join(missing)}: no answer, or out of use: what fewer devices do says nothing of so many",
            "see fleet-tune device check, or remove it from the fleet file",
        )


async def _watched(session: TuningSession, secs: float) -> FleetUsage:
    """Return the use of the devices in ``secs`` seconds, which begin :data:`WARM_UP_SECS` after the first trial."""
    while not (await session.progress()).new_trials:
        await asyncio.sleep(_LOOK_SECS)
    await asyncio.sleep(WARM_UP_SECS)
    before, used, began = await session.progress(), await session.usage(), time.monotonic()
    await asyncio.sleep(secs)
    later, used_later, span = await session.progress(), await session.usage(), time.monotonic() - began
    trials = later.new_trials - before.new_trials
    busy = {name: shares.get(DeviceTime.MEASURE, 0.0) for name, shares in later.device_time.items()}
    members = {name: len(devices) for name, devices in session.members().items()}
    devices, (builders, searchers) = sum(members.values()), session.helpers
    return FleetUsage(
        devices=devices,
        builders=builders,
        searchers=searchers,
        trials_a_second=trials / span,
        demand=None,
        busy=sum(busy.get(name, 0.0) * count for name, count in members.items()) / devices,
        busy_by_class=busy,
        bound=later.bounds,
        roles=since(used, used_later, trials),
        secs=span,
    )
