"""Which file systems are over a network, by what the kernel says of its mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_tune.base.records.files.network_drive import network_drive

# Lines of real machines.
MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:26 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2,hard
31 30 8:1 / /home/me/scratch rw,relatime - xfs /dev/sda1 rw
32 22 0:40 / /mnt/my\040share rw - cifs //server/share rw,vers=3.1.1
33 22 0:41 / /mnt/ssh rw,nosuid - fuse.sshfs me@host:/ rw,user_id=1000
34 22 0:42 / /mnt/photos rw - fuse.gocryptfs /crypt rw
35 22 0:43 / /data rw shared:9 master:3 - lustre 10.0.0.1@tcp:/fs rw
36 35 0:44 / /data rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/out", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/out", ""),
        ("/home/me/scratch/out", ""),
        ("/mnt/my share/a/b", "cifs"),
        ("/mnt/ssh/out", "fuse.sshfs"),
        ("/mnt/photos/out", ""),
        ("/data/out", ""),  # another one is mounted over it
        ("/var/out", ""),
    ],
)
def test_the_file_system_of_a_path_decides(path: str, kind: str) -> None:
    assert network_drive(Path(path), MOUNTS) == kind


def test_a_link_is_where_it_leads(tmp_path: Path) -> None:
    place = tmp_path / "local"
    place.symlink_to("/home/me/out")
    assert network_drive(place / "records.db", MOUNTS) == "nfs4"


def test_what_is_no_table_of_mounts_says_nothing() -> None:
    assert network_drive(Path("/home/me"), "\n - \n1 2 3\n30 22 0:26 / /home rw - nfs4") == "nfs4"
    assert network_drive(Path("/home/me"), "") == ""


def test_this_machines_mounts_can_be_read() -> None:
    assert network_drive(Path("/proc/self")) == ""
