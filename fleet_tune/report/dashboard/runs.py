"""The runs that a dashboard shows: the output folders in a folder, which come and go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet_tune.base.errors import UserError
from fleet_tune.report.watching import RunWatcher, WatchedRun

_DEPTH = 3
"""Number of levels of folders that are searched for runs, including the named folder."""


@dataclass
class _Watched:
    watcher: RunWatcher
    mutex: threading.Lock


class RunFolder:
    """An output folder, or a folder with output folders in it.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watched: dict[str, _Watched] = {}
        self._mutex = threading.Lock()

    @property
    def title(self) -> str:
        """Name of the folder."""
        return self._root.resolve().name

    def names(self) -> Mapping[str, Path]:
        """Return the runs that are there now: the folder of each by its path below the root, which is ``.`` for a root
        that is a run itself."""
        found: dict[str, Path] = {}
        level = [self._root]
        for _ in range(_DEPTH):
            runs = [folder for folder in level if (folder / "records.db").is_file()]
            found |= {folder.relative_to(self._root).as_posix(): folder for folder in runs}
            level = [each for folder in level if folder not in runs for each in _folders(folder)]
        return dict(sorted(found.items()))

    def look(self, name: str) -> WatchedRun:
        """Return a run as it is now. May be called by several threads.

        Raises KeyError for an unknown name, and what :meth:`RunWatcher.look` raises.
        """
        names = self.names()
        folder = names[name]
        with self._mutex:
            for gone in self._watched.keys() - names.keys():
                del self._watched[gone]
            watched = self._watched.setdefault(name, _Watched(RunWatcher(folder), threading.Lock()))
        with watched.mutex:
            return watched.watcher.look()

    def look_at_all(self) -> Mapping[str, WatchedRun | UserError]:
        """Return all runs as they are now; for a run that cannot be read, the error."""
        runs: dict[str, WatchedRun | UserError] = {}
        for name in self.names():
            try:
                runs[name] = self.look(name)
            except KeyError:  # removed meanwhile
                continue
            except UserError as error:
                runs[name] = error
        return runs


def _folders(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError:  # not ours, or removed meanwhile
        return []
