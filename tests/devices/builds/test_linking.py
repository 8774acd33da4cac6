"""Linking on the build host and on the device, with real linkers and a real device server."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te

from devices.builds import linking
from devices.builds.linking import LinkerError, find_linker, foreign_linkers, link
from devices.client.session import RpcSession
from devices.client.workbench import Workbench
from devices.rpc import remote_linking
from devices.rpc.remote_linking import NO_LINKER, is_archive, link_archive, linked
from devices.server.server import DeviceServer
from devices.targets import parse_target, resolve_target

ORIN = {"kind": "llvm", "mcpu": "cortex-a78ae", "mtriple": "aarch64-linux-gnu", "num-cores": 4}
PI = {"kind": "llvm", "mcpu": "cortex-a76", "mtriple": "aarch64-linux-gnu", "num-cores": 4}
ELF, AARCH64 = b"\x7fELF", 183


def built(target: str) -> tvm.runtime.Module:
    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: a[i] * 2.0 + 1.0, name="B")
    function = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    return tvm.tirx.build(tvm.IRModule({"main": function}), target=parse_target(target))


def unlinked(target: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(linking, "find_linker", lambda _target: None)
    return link(built(target), target)


@pytest.mark.parametrize("target", [ORIN, PI])
def test_kernels_for_arm_are_objects_of_its_architecture(target: dict[str, object], tmp_path: Path) -> None:
    """Linked where this machine has a cross linker, else an archive: the machine code is ARM's in both."""
    text = resolve_target(target)
    library = link(built(text), text)
    if is_archive(library):
        assert find_linker(text) is None
        (tmp_path / "kernel.tar").write_bytes(library)
        library = remote_linking._unpack(tmp_path / "kernel.tar", tmp_path)[0].read_bytes()
    assert library[:4] == ELF
    assert int.from_bytes(library[18:20], "little") == AARCH64


def test_a_device_links_what_the_build_host_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    native = resolve_target("native")
    archive = unlinked(native, monkeypatch)
    assert is_archive(archive)
    assert archive == unlinked(native, monkeypatch)
    with DeviceServer(threads=1) as server:
        session = RpcSession("127.0.0.1", server.port)
        try:
            bench = Workbench(session, "cpu", 1 << 20)
            a = tvm.runtime.tensor(np.arange(64, dtype=np.float32), bench.device)
            b = tvm.runtime.tensor(np.zeros(64, np.float32), bench.device)
            for _ in range(2):  # its files have names of their own
                bench.load(archive)["main"](a, b)
                np.testing.assert_array_equal(b.numpy(), 2 * np.arange(64) + 1)
        finally:
            session.close()


def test_a_library_is_linked_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    native = resolve_target("native")
    (tmp_path / "network.so").write_bytes(unlinked(native, monkeypatch))
    with linked(tmp_path / "network.so") as path:
        module = tvm.runtime.load_module(str(path))
    a, b = (tvm.runtime.tensor(np.ones(64, np.float32)) for _ in range(2))
    module["main"](a, b)
    np.testing.assert_array_equal(b.numpy(), np.full(64, 3.0))
    (tmp_path / "shared.so").write_bytes(b"\x7fELF and so on")
    with linked(tmp_path / "shared.so") as path:
        assert path == tmp_path / "shared.so"
    (tmp_path / "other.so").write_bytes(b"\x7fELF and another")
    (tmp_path / "other.so").replace(tmp_path / "shared.so")
    with linked(tmp_path / "shared.so") as path:
        assert path != tmp_path / "shared.so"  # which the loader knows, with another content
        assert path.read_bytes() == b"\x7fELF and another"
    monkeypatch.setattr(remote_linking.shutil, "which", lambda _name: None)
    with pytest.raises(RuntimeError, match="install binutils"), linked(tmp_path / "network.so"):
        pass


def test_a_device_without_a_linker_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = unlinked(resolve_target("native"), monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with DeviceServer(threads=1) as server:
        session = RpcSession("127.0.0.1", server.port)
        try:
            with pytest.raises(LinkerError) as caught, session.deadline(30):
                Workbench(session, "cpu", 1 << 20).load(archive)
        finally:
            session.close()
    assert "binutils-aarch64-linux-gnu" in caught.value.next_step


def test_a_compiler_links_where_there_is_no_ld(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernel.tar").write_bytes(unlinked(resolve_target("native"), monkeypatch))
    which = shutil.which
    monkeypatch.setattr(remote_linking.shutil, "which", lambda name: None if name == "ld" else which(name))
    assert link_archive(tmp_path / "kernel.tar", tmp_path / "kernel.so") == ""
    assert (tmp_path / "kernel.so").read_bytes()[:4] == ELF


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE])
def test_an_archive_of_anything_but_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("../../escape")
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "kernel.tar", "w") as archive:
        archive.addfile(member)
    assert "not an archive of object files" in link_archive(tmp_path / "kernel.tar", tmp_path / "kernel.so")


@pytest.mark.parametrize("content", [b"", b"no tar", b"x" * 2000])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kernel.tar").write_bytes(content)
    assert link_archive(tmp_path / "kernel.tar", tmp_path / "kernel.so").startswith("cannot link")
    assert not is_archive(content)


def test_what_the_linker_says_is_told(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "kernel.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("object-0.o")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"text"))
    problem = link_archive(tmp_path / "kernel.tar", tmp_path / "kernel.so")
    assert "failed" in problem
    assert problem != NO_LINKER


def test_linkers_for_another_architecture_in_the_order_of_their_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"aarch64-linux-gnu-ld", "aarch64-linux-gnu-gcc", "ld.lld", "zig"}
    monkeypatch.setattr(linking.shutil, "which", lambda name: f"/usr/bin/{name}" if name in there else None)
    monkeypatch.setattr(linking.importlib.util, "find_spec", lambda _name: None)
    programs = [command[0] for command in foreign_linkers("aarch64-linux-gnu")]
    assert programs == ["aarch64-linux-gnu-ld", "ld.lld", "aarch64-linux-gnu-gcc", "zig"]
    there.clear()
    assert foreign_linkers("aarch64-linux-gnu") == ()


def test_a_machine_without_any_linker_for_itself_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking.shutil, "which", lambda _name: None)
    find_linker.cache_clear()
    try:
        with pytest.raises(LinkerError, match="install binutils"):
            find_linker(resolve_target("native"))
    finally:
        find_linker.cache_clear()
