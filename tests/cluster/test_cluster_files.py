"""The cluster files for ``ray up``: Ray takes them, and what they start asks for the token."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"
FILES = sorted(CLUSTER.glob("*.yaml"))


def read(file: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    return config


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """The cluster as Ray's launcher begins with it: checked against Ray's schema, with its defaults."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    complete: dict[str, Any] = prepare_config(copy.deepcopy(config))
    validate_config(complete)
    return complete


def starts(config: dict[str, Any]) -> list[str]:
    """The commands that start Ray, on the head and on the other machines."""
    commands = [*config["head_start_ray_commands"], *config.get("worker_start_ray_commands", ())]
    return [command for command in commands if "ray start" in command]


def test_there_is_a_file_for_one_machine_and_one_for_several() -> None:
    assert {file.name: len(read(file)["provider"]["worker_ips"]) > 0 for file in FILES} == {
        "on-premise.yaml": True,
        "one-machine.yaml": False,
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_ray_accepts_the_file(file: Path) -> None:
    config = read(file)
    workers = len(config["provider"]["worker_ips"])
    [node_type] = prepared(config)["available_node_types"].values()
    assert (node_type["min_workers"], node_type["max_workers"]) == (workers, workers), "all of them are always there"


def test_ray_refuses_a_key_that_it_does_not_know() -> None:
    from jsonschema import ValidationError

    with pytest.raises(ValidationError, match="token"):
        prepared({**read(FILES[0]), "token": "secret"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_machine_gets_the_token_asks_for_it_and_has_the_resource_of_its_name(file: Path) -> None:
    from ray.scripts import scripts

    config = read(file)
    assert list(config["file_mounts"].items()) == [("~/.ray/auth_token", "~/.ray/auth_token")]
    assert len(starts(config)) == 1 + bool(config["provider"]["worker_ips"])
    known = {option for parameter in scripts.start.params for option in parameter.opts}
    for command in starts(config):
        exports, _, start = command.partition(";")
        assert {"RAY_AUTH_MODE=token", "RAY_worker_niceness=0"} <= set(exports.split())
        words = shlex.split(start)
        assert words[:2] == ["ray", "start"]
        assert {word for word in words if word.startswith("--")} <= known
        assert '{"fleet-tune-host:$(hostname -s)":1}' in words


def test_the_machines_start_alike_in_both_files() -> None:
    several, one = (starts(read(CLUSTER / name))[0] for name in ("on-premise.yaml", "one-machine.yaml"))
    assert several == one
    assert "RAY_enable_autoscaler_v2=0" in one.split(), "Ray's second one takes the head for one of the others"


def test_the_guide_names_files_that_are_there() -> None:
    text = (CLUSTER / "README.md").read_text()
    named = set(re.findall(r"\]\(([\w.-]+)\)", text)) | set(re.findall(r"(?<!tests/)cluster/([\w.-]+\.\w+)", text))
    assert {file.name for file in FILES} <= named
    assert {name for name in named if not (CLUSTER / name).is_file()} == set()
