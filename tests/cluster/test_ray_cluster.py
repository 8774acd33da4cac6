"""A team's cluster, by the commands of its guide and the cluster file for machines of one's own: three nodes, a device
that each of them reaches, one node that is killed on the way, and everybody without the token outside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fleet_tune.base.domain import Outcome
from fleet_tune.base.errors import UserError
from fleet_tune.base.records.stores.reader import RecordReader
from tests.helpers.guide_cluster import (
    RAY,
    ROOT,
    Head,
    Served,
    block,
    changed,
    environment,
    free_ports,
    shell,
    wait_until,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

TRIALS = 80
SMALL = "--num-cpus 2 --object-store-memory 100000000 --node-ip-address 127.0.0.1"


@dataclass
class Team:
    """A head, two more nodes, and what is beside them."""

    head: Head
    nodes: dict[str, Served]
    boards: dict[str, Served]

    @property
    def home(self) -> Path:
        return self.head.home

    def told(self) -> str:
        """What is where, for people."""
        nodes, actors = (self.head.get(f"/api/v0/{what}?limit=1000&detail=1") for what in ("nodes", "actors"))
        return json.dumps([each["data"]["result"]["result"] for each in (nodes, actors)], indent=1)

    def lose(self, name: str) -> None:
        """A machine loses its power, and so does the board at its side."""
        self.nodes[name].kill()
        self.boards[name].kill()


def _started(command: str, name: str, home: Path, changes: Mapping[str, str], options: str) -> Served:
    """A node, by a command of the cluster file. The launcher's shell ends, and leaves Ray behind: here it stays."""
    [agent] = free_ports(1)
    options = f"--block {SMALL} --dashboard-agent-listen-port {agent} {options}"
    here = {
        "PATH=/opt/fleet-tune/.venv/bin:$PATH": f"PATH={RAY.parent}:$PATH",
        "$(hostname -s)": name,
        "--disable-usage-stats": f"--disable-usage-stats {options}",
    }
    own = home / f"tmp-{name}"  # for temporary files, and so for quiet windows
    own.mkdir()
    env = {**environment(home), "TMPDIR": str(own)}
    return Served(changed(command, {**here, **changes}), env, home / f"{name}.log")


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as text:
        home = Path(text)
        made = shell(block("The token"), environment(home))
        assert made.returncode == 0, made.stderr
        assert (home / ".ray/auth_token").stat().st_mode & 0o077 == 0
        config = yaml.safe_load((ROOT / "cluster/on-premise.yaml").read_text())
        [head_command] = [each for each in config["head_start_ray_commands"] if "ray start" in each]
        [node_command] = [each for each in config["worker_start_ray_commands"] if "ray start" in each]
        port, dashboard, client, board, tracker, tracked = free_ports(6)
        changes = {
            "--port 6379": f"--port {port}",
            "--dashboard-port 8265": f"--dashboard-port {dashboard}",
            "/tmp/ft-ray": f"{home}/t",
            # It would have the head start the others over SSH.
            " --autoscaling-config ~/ray_bootstrap_config.yaml": "",
        }
        started: list[Served] = []
        nodes: dict[str, Served] = {}

        def served(script: str, name: str) -> Served:
            started.append(Served(script, environment(home), home / f"{name}.log"))
            return started[-1]

        try:
            nodes["head"] = _started(head_command, "head", home, changes, f"--ray-client-server-port {client}")
            started.append(nodes["head"])
            head = Head(home, port, dashboard, nodes["head"]).ready()
            for name in ("server-1", "server-2"):
                joins = {"$RAY_HEAD_IP:6379": head.address}
                nodes[name] = _started(node_command, name, home, joins, f"--temp-dir {home}/t-{name}")
                started.append(nodes[name])
                nodes[name].until("Ray runtime started")
            serve = changed(block("How devices join", "--port 9090\n"), {"--port 9090": f"--port {board}"})
            boards = {"server-2": served(serve, "board").until("ready")}
            at_tracker = {"192.168.1.2:9190": f"127.0.0.1:{tracker}"}
            *_, tracks, registers = block("How devices join", "tracker").splitlines()
            here = {"0.0.0.0": "127.0.0.1", "9190": f"{tracker} --port-end {tracker + 1}", "python": sys.executable}
            served(changed(tracks, here), "tracker")
            here = {**at_tracker, "--bind 192.168.1.30": f"--bind 127.0.0.1 --port {tracked}"}
            served(changed(registers, here), "orin").until("ready")
            fleet = block("How devices join", language="toml")
            (home / "srv").mkdir()
            (home / "srv/fleet.toml").write_text(changed(fleet, {**at_tracker, "127.0.0.1:9090": f"127.0.0.1:{board}"}))
            yield Team(head, nodes, boards)
        finally:
            for each in reversed(started):
                if each in nodes.values():
                    each.end()
                else:
                    each.kill()


def _devices(store: Path) -> list[str]:
    """The device of each record, in their order; none while there is no store or it is being made."""
    try:
        with RecordReader(store) as reader:
            return [record.device_id for record in reader]
    except UserError:
        return []


def _nodes_of(head: Head, kind: str) -> set[str]:
    """On which nodes processes of a kind are."""
    listed = head.get("/api/v0/actors?limit=1000&detail=1")["data"]["result"]["result"]
    return {each["node_id"] for each in listed if each["class_name"] == kind and each["state"] == "ALIVE"}


def test_a_job_on_three_nodes_loses_one_of_them_and_leaves_its_results_where_its_log_says(
    team: Team, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    out = team.home / "srv/mlp"
    here = {"8265": str(team.head.dashboard_port), "resnet18": "mlp"}
    changes = {**here, "/srv/fleet-tune": f"{team.home}/srv", "--time-budget 10m": f"--trials {TRIALS}"}
    job = Served(
        changed(block("Submit a tuning run", "ray job submit"), changes), team.head.env, team.home / "job.log", tmp_path
    )
    try:
        wait_until(
            lambda: job.process.poll() is not None or len(set(_devices(out / "records.db"))) == 3,
            "a record of each device",
            300,
            job.told,
        )
        assert job.process.poll() is None, job.told()
        wait_until(lambda: len(_nodes_of(team.head, "Builders")) == 3, "builders on each node", 60, team.told)
        # Two that name their machines, and one of the tracker, which the head reaches.
        wait_until(lambda: len(_nodes_of(team.head, "DeviceActor")) == 3, "a device on each node", 60, team.told)
        before = _devices(out / "records.db")
        team.lose("server-2")
        assert job.process.wait(400) == 0, job.told()
    finally:
        job.kill()

    verbs = changed(block("Submit a tuning run", "ray job stop"), here).splitlines()
    logs, status = (shell(line, team.head.env) for line in verbs[:2])
    assert "succeeded" in status.stdout + status.stderr
    [named] = re.findall(r"^result: (.*)$", logs.stdout, re.MULTILINE)
    assert named == str(out / "result.json")
    result = json.loads(Path(named).read_text())
    # One machine that is lost is no reason to leave out a candidate.
    assert result["new_trials"] == TRIALS, json.dumps([result["outcomes"], result["notices"]], indent=1)
    [network] = result["networks"]
    assert network["folder"] == str(out)
    told = " ".join(notice["text"] for notice in result["notices"])
    assert "board" in told, told

    devices = _devices(out / "records.db")
    assert devices[: len(before)] == before
    assert len(set(devices[len(before) + 20 :])) >= 2, "the others went on"
    with RecordReader(out / "records.db") as reader:
        kept = [each for each in reader if each.measurement.outcome is not Outcome.DEVICE_LOST and not each.revision]
    tried = [(record.task_id, record.candidate.id) for record in kept]
    assert len(tried) == len(set(tried)), "a candidate was measured twice"

    import torch

    import fleet_tune
    from examples.networks import mlp

    model, inputs = mlp()
    with torch.inference_mode():
        expected = model(*inputs)
    torch.testing.assert_close(torch.as_tensor(fleet_tune.load(out)(*inputs)), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("token", ["", "0" * 64], ids=["no token", "another token"])
def test_who_has_not_the_token_is_refused(team: Team, tmp_path: Path, token: str) -> None:
    stranger = environment(tmp_path)
    if token:
        stranger |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    head = team.head
    submits = ["ray", "job", "submit", "--address", head.dashboard, "--", "true"]
    joins = ["ray", "start", "--block", "--address", head.address, *SMALL.split()]
    tunes = [sys.executable, "-m", "fleet_tune", "tune", str(ROOT / "examples/networks.py:mlp"), "--out", str(tmp_path)]
    jobs, nodes = len(head.get("/api/jobs/")), len(head.get("/nodes?view=summary")["data"]["summary"])
    for command in (submits, joins, [*tunes, "--address", head.address]):
        done = subprocess.run(
            command,
            env=stranger,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0, command
        assert re.search("[Uu]nauthenticated|[Aa]uthentication", done.stdout + done.stderr), done.stdout + done.stderr
    assert len(head.get("/api/jobs/")) == jobs
    assert len(head.get("/nodes?view=summary")["data"]["summary"]) == nodes
