"""The cache of built kernels: what is found again, what is not, and what becomes of a damaged or full folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from devices.builds import cache as artifact_cache
from devices.builds.cache import ArtifactCache, artifact_key, usable_folder
from devices.protocol import Artifact, BuildRequest, TensorSpec
from fleet_tune.base.domain import Candidate, DeviceClass
from tests.helpers.properties import examples
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task("matmul", "cpu")
REQUEST = BuildRequest(TASK, make_candidate(TASK, 4, 8, sketch=3, sketch_id="sketch"))


def artifact(library: bytes = b"library", request: BuildRequest = REQUEST) -> Artifact:
    specs = (TensorSpec((2, 3), "float32"), TensorSpec((6,), "float32"))
    flop = request.task.workload.flop
    return Artifact(
        request.task.id, request.candidate, library, specs, specs[:1], (1,), (), '["trace"]', 0.75, flop=flop
    )


def test_what_was_stored_is_found(tmp_path: Path) -> None:
    key = artifact_key(REQUEST, "tvm 1")
    ArtifactCache(tmp_path / "artifacts").store(key, artifact())
    assert ArtifactCache(tmp_path / "artifacts").find(key, REQUEST) == artifact()
    assert ArtifactCache(tmp_path / "elsewhere").find(key, REQUEST) is None


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    library=st.binary(max_size=200),
    trace=st.text(max_size=50),
    secs=st.floats(0, 1e3),
    outputs=st.lists(st.integers(0, 9)),
)
def test_every_field_survives(tmp_path: Path, library: bytes, trace: str, secs: float, outputs: list[int]) -> None:
    stored = replace(artifact(library), trace=trace, build_secs=secs, outputs=tuple(outputs))
    ArtifactCache(tmp_path).store("ab12", stored)
    assert ArtifactCache(tmp_path).find("ab12", REQUEST) == stored


def test_all_that_decides_the_bytes_is_in_the_key() -> None:
    other_target = replace(TASK, device_class=DeviceClass("cpu", '{"kind":"llvm","mcpu":"haswell"}'))
    other_program = replace(TASK, workload=replace(TASK.workload, hash="other"))
    requests = [
        REQUEST,
        BuildRequest(TASK, None),
        BuildRequest(TASK, make_candidate(TASK, 8, 4, sketch=3, sketch_id="sketch")),
        BuildRequest(TASK, make_candidate(TASK, 48, sketch=3, sketch_id="sketch")),
        BuildRequest(TASK, make_candidate(TASK, 4, 8, sketch=3, sketch_id="another sketch")),
        BuildRequest(other_target, REQUEST.candidate),
        BuildRequest(other_program, REQUEST.candidate),
    ]
    keys = {artifact_key(request, "tvm 1") for request in requests} | {artifact_key(REQUEST, "tvm 2")}
    assert len(keys) == len(requests) + 1


def test_names_and_limits_are_not_in_the_key() -> None:
    """A sketch's number, a class' name and the weight of a task differ from run to run."""
    renamed = replace(TASK, device_class=DeviceClass("another name", TASK.device_class.target), weight=7)
    same = BuildRequest(renamed, Candidate(renamed.id, 5, "sketch", (4, 8)), timeout_secs=1.0)
    assert artifact_key(same, "tvm 1") == artifact_key(REQUEST, "tvm 1")


def test_the_answer_is_of_the_request_that_asked(tmp_path: Path) -> None:
    renamed = replace(TASK, device_class=DeviceClass("another name", TASK.device_class.target))
    asking = BuildRequest(renamed, Candidate(renamed.id, 5, "sketch", (4, 8)))
    cache = ArtifactCache(tmp_path)
    cache.store("ab12", artifact())
    assert cache.find("ab12", asking) == artifact(request=asking)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:0], lambda b: b[:20] + b"x" + b[21:], lambda b: b[:5]]
)
def test_a_damaged_file_counts_as_absent(tmp_path: Path, damage: object) -> None:
    cache = ArtifactCache(tmp_path)
    cache.store("ab12", artifact())
    (path,) = tmp_path.glob("??/*.artifact")
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.find("ab12", REQUEST) is None
    cache.store("ab12", artifact())
    assert cache.find("ab12", REQUEST) == artifact()


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=50_000)
    for number in range(4):
        cache.store(f"{number:02}", artifact(bytes(10_000)))
        os.utime(tmp_path / f"{number:02}" / f"{number:02}.artifact", (1000 + number, 1000 + number))
    assert cache.find("00", REQUEST) is not None  # now the last used
    cache.store("04", artifact(bytes(10_000)))
    assert size_bytes(tmp_path) <= 50_000
    found = [number for number in range(5) if cache.find(f"{number:02}", REQUEST) is not None]
    assert 0 in found
    assert 4 in found
    assert 1 not in found


def test_it_never_grows_beyond_its_limit_by_much(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, limit_bytes=20_000)
    sizes = []
    for number in range(40):
        cache.store(f"{number:02}", artifact(bytes(1_000)))
        sizes.append(size_bytes(tmp_path))
    assert max(sizes) <= 1.2 * 20_000
    assert sizes[-1] > 5_000


def test_a_folder_that_cannot_be_written_costs_no_build(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ArtifactCache(tmp_path / "file")
    for _ in range(3):
        cache.store("ab12", artifact())
        assert cache.find("ab12", REQUEST) is None
    assert len([record for record in caplog.records if "cannot keep built kernels" in record.getMessage()]) == 1


def test_a_builder_elsewhere_uses_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert usable_folder(tmp_path / "artifacts") == tmp_path / "artifacts"
    assert usable_folder(tmp_path / "no-such-run" / "artifacts") == tmp_path / "cache" / "fleet-tune" / "artifacts"


def test_the_code_of_this_package_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = artifact_key(REQUEST, "tvm 1")
    monkeypatch.setattr(artifact_cache, "source_digest", lambda: "changed")
    assert artifact_key(REQUEST, "tvm 1") != before


def test_a_limit_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ArtifactCache(tmp_path, 0)
