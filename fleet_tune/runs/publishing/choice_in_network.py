"""The choice between records of nearly the same time, by their time in the network."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from devices.error_text import brief
from fleet_tune.base.errors import UncheckedError
from fleet_tune.base.results import THROTTLED_SHARE, is_busy
from fleet_tune.runs.publishing import versions_in_network
from fleet_tune.runs.publishing.class_network import CheckedNetwork, ClassNetwork
from fleet_tune.runs.publishing.incumbents import Incumbents
from fleet_tune.runs.publishing.network_check import NetworkCheck
from fleet_tune.runs.publishing.network_runners import ROUNDS, NetworkRunner
from fleet_tune.runs.publishing.versions_in_network import Ranked
from policies.measuring.in_network import is_worth_it

_LOG = logging.getLogger(__name__)


class ChoiceInNetwork:
    """Chooses between the records of tasks of one network. Records that were compared in the network before are not
    compared again.

    Args:
        network: the network.
        check: checks it.
        runner: runs it.
        incumbents: the records, and the choices of earlier runs.
    """

    def __init__(
        self, network: ClassNetwork, check: NetworkCheck, runner: NetworkRunner, incumbents: Incumbents
    ) -> None:
        self._network = network
        self._check = check
        self._runner = runner
        self._incumbents = incumbents

    def chosen(self, checked: CheckedNetwork) -> CheckedNetwork:
        """Return the network with the records that are faster in it, if it is right with them and faster as a whole;
        else ``checked``. An error becomes a warning."""
        network, request = self._network, self._network.request
        compared = {each.task_id: each.compared for each in checked.chosen}
        ranked = versions_in_network.ranked(checked.records, self._incumbents.next_best, self._incumbents.rank_secs)
        near = {
            task_id: records
            for task_id, records in ranked.items()
            if any(each.candidate.id not in compared.get(task_id, ()) for each in records)
        }
        networks = versions_in_network.networks_of(checked.records, near)
        if not networks:
            return checked
        while (
            networks and versions_in_network.expected_secs(len(networks), self._check.compile_secs) > request.spare_secs
        ):
            networks.pop()
        if not networks:
            _LOG.info("no time to choose between kernels of %d tasks by their time in the network", len(near))
            return checked
        network.report_step(f"choosing between kernels of {len(near)} tasks by their time in the network")
        deadline = time.monotonic() + 2 * request.spare_secs
        folders = {0: checked.folder}
        try:
            for number, records in enumerate(networks, 1):
                with self._only_warned("a version of its kernels is not tried"):
                    folder = checked.folder.with_name(f"version-{number}")
                    folders[number] = network.compile(records, folder)
            with self._only_warned("its kernels are not chosen by their time in it"):
                return self._fastest(checked, near, folders, deadline)
        finally:
            for number in set(folders) - {0}:
                shutil.rmtree(folders[number], ignore_errors=True)
        return checked

    def _fastest(
        self, checked: CheckedNetwork, near: Ranked, folders: Mapping[int, Path], deadline: float
    ) -> CheckedNetwork:
        """See :meth:`chosen`. ``folders``: the network of each version number."""
        network, runner = self._network, self._runner
        if len(folders) == 1:
            return checked
        changed = versions_in_network.fastest(near, network.lowered, folders, runner, deadline)
        if not changed:
            return checked
        records = {**checked.records, **{task_id: record for task_id, (record, _) in changed.items()}}
        folder = network.compile_whole(records, checked.folder.with_name("chosen"))
        errors, wrong = network.errors_of(runner.outputs(folder), runner.extent_outputs)
        if wrong:
            raise UncheckedError(f"with those it is wrong: {wrong}")
        fault, special = self._check.special_fault(runner, records)
        if fault is not None:
            raise UncheckedError(f"with those it is wrong: {fault.detail}")
        before_secs, secs = self._in_turn(checked.folder, folder)
        if not is_worth_it(secs, before_secs):
            return checked
        choices = tuple(why for _, why in changed.values())
        # Kept choices are not compared again. With dynamic shapes none is kept: it depends on the extents' weights.
        is_calm = not is_busy(runner.others_cores) and runner.throttled < THROTTLED_SHARE
        if network.lowered.shapes is None and is_calm:
            self._incumbents.choose(choices)
        return checked.with_choices(CheckedNetwork(folder, records, errors, special=special, chosen=choices))

    def _in_turn(self, before: Path, after: Path) -> tuple[float, float]:
        """Measure the seconds of a run of two networks. For dynamic shapes it is the weighted sum over the most
        frequent extents."""
        if self._network.lowered.shapes is None:
            return self._runner.measure_in_turn(before, after)
        rounds = list(self._runner.kernel_times_interleaved([before, after], ROUNDS))
        return min(each[0].secs for each in rounds), min(each[1].secs for each in rounds)

    @contextlib.contextmanager
    def _only_warned(self, what: str) -> Iterator[None]:
        """Turn every error into a warning: ``what``, with the reason. The network is right without this step."""
        try:
            yield
        except Exception as error:  # a version crashes, or has no space on the disk, say: it is not used
            self._network.warn(f"is as it was, {what}: {brief(error)}")
