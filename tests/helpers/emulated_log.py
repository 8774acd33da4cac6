"""Candidates that were emulated, as lines of a file: one run goes on where another one was cut, and several add up.

``python -m tests.helpers.emulated_log FILE`` counts them. Lines of other code do not count.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from devices.host.file_cache import source_digest
from fleet_tune.base.domain import Candidate

RIGHT, REFUSED = "right", "refused"
_EMULATOR = Path(__file__).parent / "cuda_on_cpu"


class EmulatedLog:
    """The file; ``path`` None: nothing is kept. What is wrong is written too, and emulated again by the next run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._code = _code()
        self._known = {each["candidate"]: each for each in _lines(path) if each["code"] == self._code}

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Candidates by rule and outcome."""
        return Counter((each["rule"], each["outcome"]) for each in self._known.values())

    def outcome(self, candidate: Candidate) -> str:
        """Return :data:`RIGHT` or :data:`REFUSED`; empty for a candidate that is to be emulated."""
        known = self._known.get(candidate.id, {}).get("outcome", "")
        return known if known in (RIGHT, REFUSED) else ""

    def add(self, candidate: Candidate, workload: str, rule: str, outcome: str) -> None:
        """Write a candidate down, at once. ``outcome``: as of :meth:`outcome`, or what is wrong."""
        about = {"code": self._code, "candidate": candidate.id, "workload": workload, "rule": rule}
        line = {**about, "task": candidate.task_id, "outcome": outcome}
        self._known[candidate.id] = line
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{json.dumps(line)}\n")


def _lines(path: Path | None) -> list[dict[str, str]]:
    """Return the lines of the file. One that was cut is passed over, and ended."""
    if path is None or not path.exists():
        return []
    text, found = path.read_text(), []
    if not text.endswith("\n"):
        with path.open("a") as file:
            file.write("\n")
    for line in text.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _code() -> str:
    """Return a digest of the code that makes kernels, and of that which emulates them."""
    digest = hashlib.blake2b(source_digest().encode(), digest_size=8)
    for file in sorted(_EMULATOR.glob("*.*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def main(path: Path) -> None:
    """Print the counts."""
    counts = EmulatedLog(path).counts
    all_right = all_wrong = 0
    for rule in sorted({rule for rule, _ in counts}):
        right, refused = counts[rule, RIGHT], counts[rule, REFUSED]
        wrong = sum(count for (of, _), count in counts.items() if of == rule) - right - refused
        print(f"{rule}: {right} right, {wrong} wrong, {refused} refused")
        all_right, all_wrong = all_right + right, all_wrong + wrong
    print(f"all: {all_right} right, {all_wrong} wrong")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
