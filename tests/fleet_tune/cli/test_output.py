"""Output that nobody takes any more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRINT = """
import os, sys
from fleet_tune.cli import main as cli

def main():
    for stream in (sys.stdout, sys.stderr):
        for _ in range(3):
            print("a line", file=stream, flush=True)
    open(os.environ["DONE"], "w").close()
    return 0

cli.main = main
cli.run()
"""


def run(redirections: str, folder: Path, output: int | None = None) -> tuple[int, bool, str]:
    """Run the command line behind a shell's redirections, with ``output`` as its standard output. Returns its code,
    true if it came to its end, and what is in the file ``errors``."""
    errors, done = folder / "errors", folder / "done"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DONE": str(done), "errors": str(errors)}
    script = f'exec "$0" -c "$1" {redirections}'
    command = ["bash", "-c", script, sys.executable, PRINT]
    code = subprocess.run(command, env=environment, stdout=output, timeout=120, check=False).returncode
    return code, done.exists(), errors.read_text() if errors.exists() else ""


@pytest.mark.parametrize(
    "redirections", ['>&- 2> "$errors"', "2>&-", "<&- >&- 2>&-", "2> /dev/full", '2> "$errors"', "2>&1"]
)
def test_it_goes_on_when_nobody_reads_it(redirections: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, is_done, errors = run(redirections, tmp_path, writing)
    finally:
        os.close(writing)
    assert (code, is_done) == (0, True), errors
    assert errors.splitlines() == (["a line"] * 3 if "errors" in redirections else [])


def test_an_output_that_is_wanted_and_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    code, is_done, errors = run('> /dev/full 2> "$errors"', tmp_path)
    assert (code, is_done) == (2, True)
    assert "error: the output cannot be written: No space left on device\nnext: " in errors
