"""Libraries that end the process while they are loaded, and a current folder that vanishes meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOAD = "from devices.networks.libraries import load_libraries; load_libraries()"
MKL = "Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so."
ENDS = {
    # As MKL does where it cannot ask for the current folder.
    "exit": (f"print({MKL!r}, file=sys.stderr, flush=True); ctypes.CDLL(None).exit(2)", 2),
    "abort": ("ctypes.CDLL(None).abort()", -signal.SIGABRT),
    "instruction": ("os.kill(os.getpid(), signal.SIGILL)", -signal.SIGILL),
    "memory": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
}
ERRORS = {
    "raise ImportError('libcudart.so.12: cannot open shared object file')": ("cannot open", "requirements.lock"),
    "raise OSError('version `GLIBC_2.99 not found')": ("GLIBC_2.99", "a newer system"),
    "raise MemoryError": ("MemoryError", "free some memory"),
    "import no_such_module": ("no_such_module", "requirements.lock"),
}


def fake_torch(folder: Path, text: str) -> Path:
    """A package that comes before the real one."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(f"import ctypes, os, signal, sys\n{text}\n")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("end", ENDS)
def test_people_are_told_of_a_library_that_ends_the_process(end: str, tmp_path: Path) -> None:
    text, code = ENDS[end]
    done = run(fake_torch(tmp_path, text), "-c", LOAD)
    assert done.returncode == code
    *above, error, next_step = done.stderr.splitlines()
    assert error == "error: the process ended while it loaded torch"
    assert next_step.startswith("next: ")
    assert above == ([MKL] if end == "exit" else [])


def test_the_command_line_tells_it_too(tmp_path: Path) -> None:
    folder = fake_torch(tmp_path, ENDS["exit"][0])
    done = run(folder, "-m", "fleet_tune", "tune", "examples/networks.py:mlp", "--no-store", "--dry-run")
    assert done.returncode == 2
    assert [line.partition(":")[0] for line in done.stderr.splitlines()[-2:]] == ["error", "next"]


@pytest.mark.parametrize("text", ERRORS)
def test_a_library_that_cannot_be_loaded_is_an_error_with_a_next_step(text: str, tmp_path: Path) -> None:
    command = (
        "from fleet_tune.base.errors import UserError\n"
        f"try:\n    {LOAD}\nexcept UserError as error:\n    print(error.problem, error.next_step, sep='\\n')"
    )
    done = run(fake_torch(tmp_path, text), "-c", command)
    assert (done.returncode, done.stderr) == (0, "")
    problem, next_step = done.stdout.splitlines()
    assert problem.startswith("torch cannot be loaded: ")
    assert ERRORS[text][0] in problem
    assert ERRORS[text][1] in next_step


def test_a_process_that_ends_by_its_own_will_is_none_that_a_library_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (
        "import os, threading\nfrom devices.networks.libraries import LoadingWatch, load_libraries\n"
        "threading.Thread(target=load_libraries, daemon=True).start()\nopen(os.environ['BEGUN']).close()\n"
        "LoadingWatch.close_all()\nos._exit(130)"
    )
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    monkeypatch.setenv("BEGUN", str(begun))
    done = run(fake_torch(tmp_path, "open(os.environ['BEGUN'], 'w').close(); signal.pause()"), "-c", command)
    assert (done.returncode, done.stderr) == (130, "")


def test_torch_is_loaded_though_the_current_folder_was_replaced(tmp_path: Path) -> None:
    """Ray does so with the folder of a job that runs already; oneMKL then ends the process."""
    job = tmp_path / "job"
    job.mkdir()
    command = (
        "import os, sys\n"
        f"job = {str(job)!r}\nos.chdir(job)\nos.environ['PWD'] = job\nos.rmdir(job)\nos.mkdir(job)\n{LOAD}\n"
        "assert 'torch' in sys.modules and 'tvm' in sys.modules\nprint(os.getcwd())"
    )
    done = run(tmp_path, "-c", command)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{job}\n", "")


def test_a_current_folder_that_was_removed_is_an_error(tmp_path: Path) -> None:
    command = f"import os\nos.chdir({str(tmp_path)!r})\nos.environ['PWD'] = 'none'\nos.rmdir({str(tmp_path)!r})\n{LOAD}"
    done = run(tmp_path, "-c", command)
    assert done.returncode == 1
    assert "CurrentFolderError: the current folder was removed; change to a folder" in done.stderr


def test_the_folder_may_vanish_while_torch_is_loaded(tmp_path: Path) -> None:
    """The thread that loads it stands elsewhere, and the others stay where they were."""
    unshare = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x200))"
    if subprocess.run([sys.executable, "-c", unshare]).returncode:
        pytest.skip("this system lets no thread have a folder of its own")
    job = tmp_path / "job"
    job.mkdir()
    text = f"os.rmdir({str(job)!r}); print(os.getcwd())"
    command = f"import os, sys\nsys.modules['tvm'] = None\nos.chdir({str(job)!r})\n{LOAD}\nos.getcwd()"
    done = run(fake_torch(tmp_path, text), "-c", command)
    assert done.stdout == "/\n"
    assert "FileNotFoundError" in done.stderr
