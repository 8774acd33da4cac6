"""The versions of compiled networks that the service has published, each a folder that never changes.

::

    NETWORK/CLASS/v0001/  v0002/      network.so, params.safetensors, manifest.json, inputs.safetensors
    NETWORK/CLASS/current -> v0002    link that users load; replaced atomically by renaming another link over it
    NETWORK/CLASS/withdrawn.json      networks that were rolled back: they are not published again

A version gets its name when it is complete and durable, and ``current`` points to it only after that. So a reader finds
a complete version at any moment, also after a crash. A reader resolves ``current`` once and reads the folder that it
pointed to: that folder is kept at least until ``keep`` newer versions are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.networks.compiled.tensor_file import file_digest
from fleet_tune.base.errors import DiskFullError, RetuneError
from fleet_tune.base.records.files.atomic_file import sync_file, sync_folder, write_atomically
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, wait_for_lock
from policies.retuning.publishing import superseded

MANIFEST, INPUTS = "manifest.json", "inputs.safetensors"
CURRENT = "current"
PROVENANCE = "retune"
"""Key in the manifest of a version under which the reason for publishing it is stored."""
_WITHDRAWN = "withdrawn.json"
_MOST_WITHDRAWN = 100
_NAME = re.compile(r"v(\d{4,9})")
_NO_SPACE = 28
_LOCK_SECS = 60.0
"""Longest wait for another program that changes versions: copying a network takes time."""


@dataclass(frozen=True)
class PublishedVersion:
    """One version. ``withdrawn``: it was rolled back."""

    number: int
    folder: Path
    manifest: Mapping[str, Any]
    withdrawn: bool = False

    @property
    def provenance(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.manifest.get(PROVENANCE, {})
        return found

    @property
    def made_of(self) -> str:
        """Hash of everything that the version was compiled from."""
        return str(self.manifest.get("made_of", ""))

    @property
    def secs(self) -> float | None:
        """Its latency when it was published."""
        secs = self.provenance.get("secs")
        return float(secs) if isinstance(secs, int | float) else None


class VersionRepository:
    """The versions below ``root``. ``keep``: how many of the newest versions of each network and class are kept; the
    current one and the one before it are always kept. Several processes may use it at a time."""

    def __init__(self, root: Path, keep: int) -> None:
        self._root = root
        self._keep = keep
        # By place: the stamps of the current version's files when they were last read, and the damage that was found.
        self._looked_into: dict[Path, tuple[dict[str, tuple[int, ...]], str]] = {}

    def place(self, network: str, device_class: str) -> Path:
        """Return the folder of the versions of a network and class."""
        return self._root / network / device_class

    def places(self) -> list[tuple[str, str]]:
        """Return the networks and classes that have a current version."""
        return sorted((path.parent.parent.name, path.parent.name) for path in self._root.glob(f"*/*/{CURRENT}"))

    def current(self, network: str, device_class: str) -> PublishedVersion | None:
        """Return the current version, which users load. None if there is none, or it cannot be read."""
        number = self.current_number(network, device_class)
        return None if number is None else self._version(self.place(network, device_class), number)

    def damage(self, network: str, device_class: str, anew: bool = False) -> str:
        """Describe the damage of the current version's files. Empty if there is no damage, or no version. The files are
        read again only if they have changed since the last call, or if ``anew`` is true."""
        number = self.current_number(network, device_class)
        if number is None:
            return ""
        place = self.place(network, device_class)
        folder = place / f"v{number:04d}"
        stamps = _stamps(folder)
        known = self._looked_into.get(place)
        if known is None or anew or known[0] != stamps:
            known = self._looked_into[place] = stamps, _damage(folder, number)
        return known[1]

    def current_number(self, network: str, device_class: str) -> int | None:
        """Return the number of the version that users load now, without reading the version. None if there is none."""
        with contextlib.suppress(OSError):
            match = _NAME.fullmatch(os.readlink(self.place(network, device_class) / CURRENT))
            return None if match is None else int(match[1])
        return None

    def is_rolled_back(self, network: str, device_class: str) -> bool:
        """Return true if there are newer versions than the current one."""
        newest = max(_numbers(self.place(network, device_class)), default=0)
        return newest > (self.current_number(network, device_class) or newest)

    def versions(self, network: str, device_class: str) -> list[PublishedVersion]:
        """Return all versions, oldest first."""
        place = self.place(network, device_class)
        return [each for number in _numbers(place) if (each := self._version(place, number)) is not None]

    def is_withdrawn(self, network: str, device_class: str, made_of: str) -> bool:
        """Return true if a network with this hash was published and rolled back."""
        return made_of in _withdrawn(self.place(network, device_class))

    def publish(self, network: str, device_class: str, source: Path, provenance: Mapping[str, Any]) -> PublishedVersion:
        """Make the network in the folder ``source`` the current version. ``provenance`` is added to its manifest.

        Raises :class:`DiskFullError`, :class:`RetuneError`; the last version stays as it was then.
        """
        place = self.place(network, device_class)
        stage: Path | None = None
        with _told(place):
            place.mkdir(parents=True, exist_ok=True)
            with _locked(place):
                number = max(_numbers(place), default=0) + 1
                stage = place / f".v{number:04d}.part"
                try:
                    self._stage(source, stage, {**provenance, "version": number, "published_unix_secs": time.time()})
                    os.rename(stage, place / f"v{number:04d}")
                finally:
                    shutil.rmtree(stage, ignore_errors=True)
                sync_folder(place)
                _point(place, number)
                self._tidy(place, number)
        version = self._version(place, number)
        assert version is not None
        return version

    def _stage(self, source: Path, stage: Path, provenance: Mapping[str, Any]) -> None:
        shutil.rmtree(stage, ignore_errors=True)  # left by a process that was killed
        stage.mkdir()
        manifest = json.loads((source / MANIFEST).read_text())
        names = [*manifest["files"], *([INPUTS] if (source / INPUTS).exists() else [])]
        for name in names:
            # A hard link is safe: writers replace these files by renaming and never change them in place.
            try:
                os.link(source / name, stage / name)
            except OSError:
                shutil.copyfile(source / name, stage / name)
            sync_file(stage / name)
        content = json.dumps({**manifest, PROVENANCE: dict(provenance)}, indent=1) + "\n"
        write_atomically(stage / MANIFEST, content.encode())

    def roll_back(
        self, network: str, device_class: str, to: int | None = None
    ) -> tuple[PublishedVersion, PublishedVersion]:
        """Make another kept version the current one: ``to``, or without it the last version before the current one that
        was not rolled back itself. All versions that are newer than it are withdrawn.

        Return the current version before and after. Raises :class:`RetuneError`.
        """
        place = self.place(network, device_class)
        if not place.is_dir():
            raise _no_version(network, device_class)
        with _told(place), _locked(place):
            before = self.current(network, device_class)
            if before is None:
                raise _no_version(network, device_class)
            known = {each.number: each for each in self.versions(network, device_class)}
            if to is None:
                older = [n for n, each in known.items() if n < before.number and not each.withdrawn]
                if not older:
                    raise RetuneError(
                        f"{network} for {device_class} has no version before {before.number} to go back to",
                        "name one with --to, as 'fleet-tune retune versions' lists them",
                    )
                to = max(older)
            if to not in known or to == before.number:
                what = "is the current one" if to == before.number else "is not kept"
                raise RetuneError(
                    f"version {to} of {network} for {device_class} {what}", f"kept are {', '.join(map(str, known))}"
                )
            newer = [each.made_of for number, each in known.items() if number > to]
            withdrawn = [each for each in _withdrawn(place) if each not in (known[to].made_of, *newer)]
            body = json.dumps([*withdrawn, *dict.fromkeys(newer)][-_MOST_WITHDRAWN:])
            write_atomically(place / _WITHDRAWN, body.encode())
            _point(place, to)
            return before, known[to]

    def _tidy(self, place: Path, current: int) -> None:
        for number in superseded(_numbers(place), current, self._keep):
            # Rename it before removing files: readers never see a part of a version.
            gone = place / f".v{number:04d}.gone"
            with contextlib.suppress(OSError):
                os.rename(place / f"v{number:04d}", gone)
        for path in place.glob(".v*"):
            shutil.rmtree(path, ignore_errors=True)

    def _version(self, place: Path, number: int) -> PublishedVersion | None:
        folder = place / f"v{number:04d}"
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(manifest, dict):
            return None
        return PublishedVersion(number, folder, manifest, manifest.get("made_of") in _withdrawn(place))


def _stamps(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the files of a version, each with its inode, time and size: these change when it is written."""
    stamps: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            status = entry.stat()
            stamps[entry.name] = status.st_ino, status.st_mtime_ns, status.st_size
    return stamps


def _damage(folder: Path, number: int) -> str:
    """Describe the damage of a version's files. Empty if there is none."""
    try:
        files: dict[str, Any] = json.loads((folder / MANIFEST).read_text())["files"]
        for name, digest in files.items():
            if file_digest(folder / name) != digest:
                return f"{name} of version {number} is damaged"
    except OSError as error:
        return f"{Path(str(error.filename)).name} of version {number} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} of version {number} is damaged"
    return ""


def _no_version(network: str, device_class: str) -> RetuneError:
    return RetuneError(f"{network} has no version for {device_class}", "'fleet-tune retune versions' lists them")


def _numbers(place: Path) -> list[int]:
    try:
        names = os.listdir(place)
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def _point(place: Path, number: int) -> None:
    """Point ``current`` to a version, atomically."""
    link = place / ".current.part"
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(f"v{number:04d}")
    os.replace(link, place / CURRENT)
    sync_folder(place)


def _withdrawn(place: Path) -> list[str]:
    try:
        found = json.loads((place / _WITHDRAWN).read_text())
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Lock the versions at ``place`` for changes: by the service, or by a command that rolls back. Raises
    :class:`RetuneError` if another process holds the lock for too long."""
    try:
        descriptor = wait_for_lock(place / ".lock", f"the versions in {place}", _LOCK_SECS)
    except LockedError as error:
        raise RetuneError(
            f"another program ({error.who}) has been changing the versions in {place} for {_LOCK_SECS:.0f} s",
            "end it, or run again later",
        ) from None
    try:
        yield
    finally:
        release_lock(descriptor)


@contextlib.contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == _NO_SPACE:
            raise DiskFullError(f"no space left on the disk of {place}", "free some") from error
        raise RetuneError(f"{place} cannot be written: {error.strerror}", "see to the folder's permissions") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RetuneError(f"there is no whole network to publish in {place}: {error}", "tune it again") from error
