"""The parts of the runtime in rounds: what the benchmark compares a run with."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from actors.clusters.cluster import connected
from actors.simulation.rounds import SimulatedRounds
from actors.simulation.run import SimulatedFleet
from fleet_tune.base.records.stores.reader import RecordReader

SIZE, ROUNDS = 6, 4


@pytest.mark.usefixtures("ray_cluster")
async def test_a_round_is_built_and_measured_before_the_next_one_of_its_class_begins(tmp_path: Path) -> None:
    with connected(None) as cluster:
        run = SimulatedRounds(cluster, SimulatedFleet(6, 0.005, 0.005, 0.0), tmp_path, SIZE)
        tasks: dict[str, list[str]] = defaultdict(list)
        try:
            await run.start()
            async with asyncio.timeout(120):
                while len(tasks) < 3 or min(map(len, tasks.values())) < SIZE * ROUNDS:
                    assert await run.trials_a_second(0.1) >= 0.0
                    tasks.clear()
                    with RecordReader(tmp_path / "records.db") as reader:
                        made = list(reader)
                    for record in made:
                        tasks[record.device_id.partition("-")[0]].append(record.task_id)
        finally:
            await run.stop()
    assert set(tasks) == {"board", "server", "card"}
    assert len({record.candidate.id for record in made}) == len(made)
    for of_class in tasks.values():
        rounds = [set(of_class[at : at + SIZE]) for at in range(0, SIZE * ROUNDS, SIZE)]
        assert all(len(each) == 1 for each in rounds), "candidates of two rounds are mixed"
        assert all(one != other for one, other in itertools.pairwise(rounds)), "each task in its turn"
