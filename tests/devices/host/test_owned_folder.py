"""Folders whose owner is gone, and those of others."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devices.host.owned_folder import make_locked, owned_folder, remove_abandoned, remove_locked

OWNER = """
import os, sys
from pathlib import Path
from devices.host.owned_folder import make_locked
folder, lock = make_locked("run", Path(sys.argv[1]))
print(folder, flush=True)
sys.stdin.read()
"""


def test_only_folders_of_these_names_without_an_owner_go(tmp_path: Path) -> None:
    with owned_folder("run", tmp_path) as live:
        assert stat.S_IMODE(live.stat().st_mode) == 0o700
        for name in ("fleet-tune-run-resnet18", "fleet-tune-tmp-run", "fleet-tune-tmp-run-of-mine", "ft-ray-abcdefgh"):
            (tmp_path / name).mkdir()
        (tmp_path / "fleet-tune-tmp-run-filefile").touch()
        (tmp_path / "fleet-tune-tmp-run-linklink").symlink_to(live)
        others = set(tmp_path.iterdir())
        # A process made it again after its owner was gone, or its owner was killed before it was locked.
        (tmp_path / "fleet-tune-tmp-link-a1b2c3d_" / "session").mkdir(parents=True)
        remove_abandoned(tmp_path)
        assert set(tmp_path.iterdir()) == others
    assert set(tmp_path.iterdir()) == others - {live}


def test_the_kernel_frees_the_folder_of_an_owner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        remove_abandoned(tmp_path)
        assert folder.exists(), "its owner lives"
        owner.kill()
    assert folder.exists()
    remove_abandoned(tmp_path)
    assert not folder.exists()


def test_a_process_that_inherits_the_lock_owns_the_folder_too(tmp_path: Path) -> None:
    folder, lock = make_locked("device", tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock]) as heir:
        os.close(lock)
        remove_abandoned(tmp_path)
        assert folder.exists()
        heir.communicate()
    remove_abandoned(tmp_path)
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_folders_of_another_user_stay(tmp_path: Path) -> None:
    theirs = tmp_path / "fleet-tune-tmp-run-a1b2c3d4"
    theirs.mkdir()
    user = pwd.getpwnam("nobody").pw_uid
    os.chown(theirs, user, -1)
    remove_abandoned(tmp_path)
    assert theirs.exists()
    remove_abandoned(tmp_path, users=[user])
    assert not theirs.exists()


def test_a_new_folder_is_never_taken_for_an_abandoned_one(tmp_path: Path) -> None:
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            remove_abandoned(tmp_path)

    removing = [threading.Thread(target=remove) for _ in range(2)]
    for each in removing:
        each.start()
    try:
        for _ in range(300):
            folder, lock = make_locked("run", tmp_path)
            (folder / "file").touch()
            remove_locked(folder, lock)
    finally:
        ended.set()
        for each in removing:
            each.join()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []
