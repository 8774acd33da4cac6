from __future__ import annotations

import importlib.metadata

import pytest

from devices.host.versions import HostVersions, check_same_tvm, this_host_versions
from fleet_tune.base.errors import VersionsDifferError


def test_this_host_says_what_is_installed() -> None:
    assert this_host_versions().tvm_versions["apache-tvm"] == importlib.metadata.version("apache-tvm")
    check_same_tvm(this_host_versions(), "builder 0", this_host_versions())


@pytest.mark.parametrize("package", ["apache-tvm", "apache-tvm-ffi"])
def test_a_difference_names_the_part_its_machine_and_both_versions(package: str) -> None:
    ours = HostVersions("desk", {"apache-tvm": "0.27.0", "apache-tvm-ffi": "0.1.14"})
    theirs = HostVersions("server", {**ours.tvm_versions, package: "0.99"})
    with pytest.raises(VersionsDifferError) as caught:
        check_same_tvm(ours, "builder 3", theirs)
    assert caught.value.problem.startswith("builder 3 on server has TVM ")
    assert "0.99" in caught.value.problem
    assert "this machine has TVM 0.27.0 with apache-tvm-ffi 0.1.14" in caught.value.problem
    assert "same version" in caught.value.next_step
