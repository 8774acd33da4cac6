"""Decisions for the candidate of a task that is the fastest in a network, as a store keeps them from run to run.

A decision is for one network and one task. It is an entry of the store's table ``meta``, as JSON, and the next decision
replaces it. Readers check whether it still holds (:func:`policies.measuring.in_network.still_holds`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping

from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import ChosenInNetwork

_KEY = "chosen in place: "  # as stores of earlier versions have it


def keep_choices(store: RecordStore, network: str, choices: Iterable[ChosenInNetwork]) -> None:
    """Make decisions for the network of this fingerprint durable. Each replaces the last decision for its task."""
    store.annotate({_key(network) + each.task_id: json.dumps(dataclasses.asdict(each)) for each in choices})


def kept_choices(reader: RecordReader, network: str) -> dict[str, ChosenInNetwork]:
    """Return the last decision for each task in the network of this fingerprint, by task id."""
    return {each.task_id: each for each in _readable(reader.meta(), _key(network))}


def _readable(meta: Mapping[str, str], key: str) -> Iterator[ChosenInNetwork]:
    """Yield the decisions that can be read. Decisions that another version wrote and that cannot be read count as
    absent: the decision is made again."""
    for name, text in meta.items():
        if not name.startswith(key):
            continue
        try:
            found = json.loads(text)
            compared = tuple(str(each) for each in found["compared"])
            choice = ChosenInNetwork(
                str(found["task_id"]),
                str(found["candidate_id"]),
                compared,
                float(found["ratio"]),
                float(found["error"]),
                int(found["rounds"]),
            )
        except (ValueError, TypeError, KeyError):
            continue
        if choice.task_id == name.removeprefix(key):
            yield choice


def _key(network: str) -> str:
    return f"{_KEY}{network} "
