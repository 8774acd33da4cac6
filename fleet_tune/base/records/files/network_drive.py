"""Detection of files on another machine. SQLite's log needs shared memory, which works on one machine only."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Types by the names of the kernel. File systems in user space have the names of their programs ("fuse.sshfs").
_OVER_A_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|ncpfs|afs|coda|ceph|lustre|gpfs|beegfs\w*|orangefs|pvfs2|ocfs2|gfs2?|9p|davfs"
    r"|fuse\.(sshfs|s3fs|gcsfuse|goofys|rclone|glusterfs|ceph\w*|davfs2?|smbnetfs|curlftpfs|juicefs|blobfuse\w*|moosefs|mfs\w*)"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_drive(path: Path, mounts: str | None = None) -> str:
    """Return the type of a network file system on which ``path`` is or would be. Empty for a local one.

    ``mounts``: the text of ``/proc/self/mountinfo``. None: that of this process. Empty: no mounts are known.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""
    place = os.path.realpath(path)
    kind = ""
    deepest = -1
    for line in mounts.splitlines():
        before, found, after = line.partition(" - ")
        fields = before.split(" ")
        if not found or len(fields) < 5:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # Of two mounts on one place the later one is on top.
        if _is_in(place, point) and len(point) >= deepest:
            deepest, kind = len(point), after.split(" ")[0]
    return kind if _OVER_A_NETWORK.fullmatch(kind) else ""


def _is_in(place: str, point: str) -> bool:
    return place == point or place.startswith(point.rstrip("/") + "/")
