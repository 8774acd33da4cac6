"""The nodes that drive devices, and the builders of each node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.runs.cluster.placement import BUILDER_BYTES, ClusterNode, place_builders, place_device
from tests.helpers.properties import examples

GIB = float(1 << 30)
HEAD = ClusterNode("id-head", "head", "10.0.0.1", cpus=4, free_cpus=4, free_bytes=32 * GIB)
LAB = ClusterNode("id-lab", "lab-pc", "10.0.0.2", frozenset({"lab"}), cpus=8, free_cpus=6, free_bytes=64 * GIB)
EDGE = ClusterNode("id-edge", "10.0.0.3", "10.0.0.3")
NODES = (HEAD, LAB, EDGE)


@pytest.mark.parametrize(
    ("via", "node_id"),
    [
        (None, "id-head"),
        ("lab", "id-lab"),
        ("lab-pc", "id-lab"),
        ("10.0.0.2", "id-lab"),
        ("head", "id-head"),
        ("10.0.0.3", "id-edge"),
    ],
)
def test_a_device_is_driven_from_the_host_that_its_entry_names(via: str | None, node_id: str) -> None:
    assert place_device(NODES, "id-head", via).node_id == node_id


def test_where_no_node_fits_the_nodes_that_there_are_are_named() -> None:
    place = place_device(NODES, "id-head", "lap")
    assert place.node_id is None
    assert place.reason == (
        "no node of the cluster has the name or address lap, or the resource fleet-tune-host:lap "
        "(its nodes: 10.0.0.3, head (10.0.0.1), lab-pc (10.0.0.2, fleet-tune-host:lab))"
    )
    assert place_device((), "id-head", "lap").reason.endswith("(its nodes: none)")


def test_a_resource_goes_before_a_name_and_the_head_before_others() -> None:
    named = ClusterNode("id-0", "lab", "10.0.0.9")
    assert place_device((*NODES, named), "id-head", "lab").node_id == "id-lab"
    twins = [ClusterNode(node_id, "n", "127.0.0.1") for node_id in ("b", "a", "c")]
    assert place_device(twins, "c", "127.0.0.1").node_id == "c"
    assert place_device(twins, "elsewhere", "127.0.0.1").node_id == "a"


def test_builders_have_a_free_cpu_each_and_a_gibibyte_of_half_of_the_memory() -> None:
    assert place_builders(NODES, "id-head") == {"id-head": 4, "id-lab": 6}
    small = ClusterNode("small", "small", "10.0.0.4", cpus=8, free_cpus=8, free_bytes=5 * GIB)
    assert place_builders((HEAD, small), "id-head") == {"id-head": 4, "small": 2}


def test_a_number_of_workers_is_one_of_each_host_that_has_cpus() -> None:
    assert place_builders(NODES, "id-head", workers=3) == {"id-head": 3, "id-lab": 3}
    assert place_builders(NODES, "id-head", workers=3, total=4) == {"id-head": 2, "id-lab": 2}
    assert place_builders(NODES, "id-head", total=1) == {"id-head": 1}
    assert place_builders(NODES, "id-head", total=5) == {"id-head": 2, "id-lab": 3}


def test_who_has_builders_keeps_them_and_a_machine_that_comes_gets_some() -> None:
    assert place_builders(NODES, "id-head", there={"id-head": 1}) == {"id-lab": 6}
    assert place_builders(NODES, "id-head", total=4, there={"id-head": 1}) == {"id-lab": 3}
    assert place_builders(NODES, "id-head", total=4, there={"id-head": 4}) == {}
    assert place_builders((EDGE,), "id-edge", there={"id-head": 4}) == {}
    assert place_builders((EDGE,), "id-edge", there={}) == {"id-edge": 1}


def test_a_cluster_without_a_free_cpu_builds_on_its_head() -> None:
    assert place_builders((EDGE, ClusterNode("id-head", "head", "10.0.0.1")), "id-head") == {"id-head": 1}


_NODES = st.lists(
    st.builds(
        ClusterNode,
        st.uuids().map(str),
        st.just("n"),
        st.just("10.0.0.1"),
        cpus=st.floats(0, 256),
        free_cpus=st.floats(0, 256),
        free_bytes=st.floats(0, 2**42),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda node: node.node_id,
)


@examples(100)
@given(_NODES, st.none() | st.integers(1, 64), st.none() | st.integers(1, 200), st.data())
def test_no_host_has_more_builders_than_it_can_take(
    nodes: list[ClusterNode], workers: int | None, total: int | None, data: st.DataObject
) -> None:
    head = data.draw(st.sampled_from(nodes)).node_id
    whole = place_builders(nodes, head, workers)
    placed = place_builders(nodes, head, workers, total)
    assert sum(placed.values()) == min(sum(whole.values()), total or sum(whole.values())) >= 1
    assert all(1 <= count <= whole[node_id] for node_id, count in placed.items())
    by_id = {node.node_id: node for node in nodes}
    for node_id, count in whole.items():
        node = by_id[node_id]
        if workers is None and whole != {head: 1}:
            assert count <= node.free_cpus
            assert count * BUILDER_BYTES <= node.free_bytes / 2
        elif workers is not None and whole != {head: 1}:
            assert (count, node.cpus >= 1) == (workers, True)
    if total is not None and total < sum(whole.values()):
        more = place_builders(nodes, head, workers, total + 1)
        assert all(placed.get(node_id, 0) <= count for node_id, count in more.items())
