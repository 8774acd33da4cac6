"""Packages for a GPU machine without a network: fetched on a machine with a network, copied over, installed there.

On the machine with a network, in the project's environment: ``python -m bench.gpu.wheels fetch FOLDER --have LIST``
fetches the wheels of the packages that the project needs (with its extras ``tune``, ``cuda`` and ``gpu``) and LIST
lacks, in the versions of the lock files. LIST is a ``pip freeze`` of the GPU machine. The wheels go into
``FOLDER/load-1``. With ``--load-mb N`` they go into ``load-1``, ``load-2`` and so on, at most N MB each; larger files
are split.

On the GPU machine: ``python bench/gpu/wheels.py install FOLDER TARGET`` checks the loads, joins split files and
installs all packages into TARGET without an index. ``PYTHONPATH=TARGET`` makes them importable. This command needs only
Python and pip.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

PYTHON = "3.12"
EXTRAS = ("tune", "cuda", "gpu")
_ROOT = Path(__file__).resolve().parents[2]
_LOCKS = ("requirements.lock", ".ci/cuda.txt")
_MANIFEST = "manifest.json"
_GLIBC = range(39, 16, -1)
"""Minor versions of glibc whose wheels fit the GPU machine, newest first: pip needs the name of each platform."""


class WheelError(Exception):
    """A failure. The message says what is wrong and what to do."""


def canonical(name: str) -> str:
    """Return the normalised spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(have: Iterable[str], root: str = "fleet-tune", extras: Iterable[str] = EXTRAS) -> list[str]:
    """Return the packages that ``root`` with its extras needs and ``have`` lacks, sorted.

    The requirements are read from the packages that are installed on this machine. The requirements of a package in
    ``have`` are assumed to be on the other machine too.
    """
    from packaging.requirements import Requirement

    there = {canonical(name) for name in have}
    seen: set[str] = set()
    left = [(canonical(root), frozenset(extras))]
    while left:
        name, wanted = left.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            requirements = []  # not installed here: the lock has what it needs
        for text in requirements:
            each = Requirement(text)
            environments = [{"extra": extra, "python_version": PYTHON} for extra in ("", *wanted)]
            if each.marker is not None and not any(each.marker.evaluate(about) for about in environments):
                continue
            found = canonical(each.name)
            if found not in there and found not in seen and found != canonical(root):
                seen.add(found)
                left.append((found, frozenset(each.extras)))
    return sorted(seen)


def locked(root: Path = _ROOT) -> dict[str, str]:
    """Return the versions in the project's lock files by package name."""
    versions = {}
    for file in _LOCKS:
        for line in (root / file).read_text().splitlines():
            name, _, version = line.partition("==")
            if version and not line.startswith("#"):
                versions[canonical(name)] = version.split(";")[0].strip()
    return versions


def pinned(names: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """Return ``name==version`` of each package, with the installed version of a package that is not in ``versions``.

    Raise WheelError for a package that is neither in ``versions`` nor installed.
    """
    unknown = [name for name in names if name not in versions and not _installed(name)]
    if unknown:
        raise WheelError(f"{', '.join(unknown)}: no version in {' or '.join(_LOCKS)}; install them here first")
    return [f"{name}=={versions.get(name) or metadata.version(name)}" for name in names]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def download(requirements: Sequence[str], folder: Path) -> None:
    """Fetch wheels for the GPU machine into ``folder``, without their dependencies. Raise WheelError if pip fails."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    chosen = [part for platform in platforms for part in ("--platform", platform)]
    about = ["--only-binary=:all:", "--no-deps", "--python-version", PYTHON, "--implementation", "cp", *chosen]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *about, *requirements]
    if subprocess.run(command).returncode:
        raise WheelError("pip cannot fetch these wheels: what it says is above")


def pack(wheels: Path, folder: Path, load_bytes: int = sys.maxsize) -> list[Path]:
    """Put the wheels in ``wheels`` into loads (folders ``load-N``) in ``folder``, and return the loads.

    The wheels of a load have at most ``load_bytes`` together. The first load also has the manifest. Old loads in
    ``folder`` are removed.
    """
    for old in folder.glob("load-*"):
        shutil.rmtree(old)
    manifest: dict[str, dict[str, object]] = {}
    parts: list[tuple[str, bytes]] = []
    for wheel in sorted(wheels.glob("*.whl")):
        body = wheel.read_bytes()
        pieces = [body[at : at + load_bytes] for at in range(0, len(body), load_bytes)]
        names = [wheel.name] if len(pieces) == 1 else [f"{wheel.name}.part-{at}" for at in range(len(pieces))]
        manifest[wheel.name] = {"parts": names, "sha256": hashlib.sha256(body).hexdigest()}
        parts += zip(names, pieces, strict=True)
    loads: list[Path] = []
    for at, load in enumerate(_filled(parts, load_bytes), 1):
        loads.append(folder / f"load-{at}")
        loads[-1].mkdir(parents=True)
        for name, body in load:
            (loads[-1] / name).write_bytes(body)
    if loads:
        (loads[0] / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    return loads


def _filled(parts: Sequence[tuple[str, bytes]], load_bytes: int) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the parts of each load: each part, the largest first, goes into the first load with room for it."""
    loads: list[list[tuple[str, bytes]]] = []
    for part in sorted(parts, key=lambda each: -len(each[1])):
        room = (load for load in loads if sum(len(body) for _, body in load) + len(part[1]) <= load_bytes)
        load = next(room, None)
        if load is None:
            loads.append([part])
        else:
            load.append(part)
    yield from loads


def join(folder: Path, wheels: Path) -> list[Path]:
    """Join the loads in ``folder`` into wheels in the folder ``wheels``, and return the wheels.

    Raise WheelError if the manifest or parts are missing, or if a wheel is damaged.
    """
    manifests = list(folder.glob(f"load-*/{_MANIFEST}"))
    if not manifests:
        raise WheelError(f"{folder} has no load with {_MANIFEST}: take load-1 there first")
    manifest = json.loads(manifests[0].read_text())
    there = {path.name: path for path in folder.glob("load-*/*")}
    missing = [part for entry in manifest.values() for part in entry["parts"] if part not in there]
    if missing:
        raise WheelError(f"{', '.join(missing)}: not there yet, take the other loads there")
    wheels.mkdir(parents=True, exist_ok=True)
    for name, entry in manifest.items():
        body = b"".join(there[part].read_bytes() for part in entry["parts"])
        if hashlib.sha256(body).hexdigest() != entry["sha256"]:
            raise WheelError(f"{name} is damaged: take its parts there again ({', '.join(entry['parts'])})")
        (wheels / name).write_bytes(body)
    return [wheels / name for name in manifest]


def install(folder: Path, target: Path) -> None:
    """Join the loads in ``folder`` and install them into ``target``. Raise WheelError if either fails."""
    wheels = join(folder, folder / "joined")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    if subprocess.run([*command, "--target", str(target), *map(str, wheels)]).returncode:
        raise WheelError("pip cannot install these wheels: what it says is above")


def _fetch(folder: Path, have: Path, others: Sequence[str], load_bytes: int) -> str:
    names = [re.split(r"[=<>@ \[]", line.strip())[0] for line in have.read_text().splitlines() if line.strip()]
    lacking = pinned([*needed(names), *others], locked())
    fetched = folder / "wheels"
    download(lacking, fetched)
    loads = pack(fetched, folder, load_bytes)
    return f"{len(lacking)} packages in {len(loads)} loads: {', '.join(map(str, loads))}"


def _megabytes(text: str) -> int:
    """Return a number of MB in bytes. Raise ArgumentTypeError for text that is not a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of MB: give 1 or more")
    return int(text) * 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch")
    fetch.add_argument("folder", type=Path)
    fetch.add_argument("--have", type=Path, required=True, help="A 'pip freeze' of the other machine.")
    fetch.add_argument("--add", nargs="*", default=[], help="Further packages, such as torchvision.")
    fetch.add_argument("--load-mb", type=_megabytes, default=sys.maxsize, help="Largest load in MB; else all are one.")
    put = commands.add_parser("install")
    put.add_argument("folder", type=Path)
    put.add_argument("target", type=Path)
    given = parser.parse_args()
    try:
        if given.command == "fetch":
            print(_fetch(given.folder, given.have, [canonical(name) for name in given.add], given.load_mb))
        else:
            install(given.folder, given.target)
    except WheelError as error:
        raise SystemExit(f"wheels: {error}") from error


if __name__ == "__main__":
    main()
