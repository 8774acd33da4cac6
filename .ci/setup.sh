#!/usr/bin/env bash
# Creates the virtual environment and installs the locked dependencies and the project into it.
# Usage: .ci/setup.sh VENV. PYTHON=/path/to/python picks the interpreter. Safe to repeat and to interrupt: the stamp
# is written last, and an environment that no longer runs is made anew.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
stamp=$venv/.installed
rm -f "$stamp"

fail() {
    printf 'fleet-tune set-up: %s\n' "$@" >&2
    exit 1
}

is_supported() {
    "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    if [[ -n ${PYTHON:-} ]]; then
        is_supported "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.11 or newer"
        command -v "$PYTHON"
        return
    fi
    local name
    for name in python3.11 /usr/bin/python3.11 python3; do
        if is_supported "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 was not found" "install it (Debian, Ubuntu: apt-get install python3.11 python3-pip), or name one: make PYTHON=/path/to/python3.11 ..."
}

# Debian's Python has no ensurepip unless python3-venv is installed too: then the system's pip fills the environment.
make_environment() {
    local python=$1
    rm -rf "$venv"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$venv"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check "pip>=24"
    else
        fail "$python has neither ensurepip nor pip" "install one (Debian, Ubuntu: apt-get install python3-pip)"
    fi
}

compiler=
for name in "${CXX:-g++}" "${CC:-gcc}" clang++ clang cc; do
    if command -v "$name" >/dev/null 2>&1; then
        compiler=$name
        break
    fi
done
[[ -n $compiler ]] || fail "no C compiler was found, and TVM links every kernel with one" "install it (Debian, Ubuntu: apt-get install gcc libc6-dev)"
if ! printf '#include <stdio.h>\nint fleet_tune_probe(void) { return printf(""); }\n' |
    "$compiler" -x c -shared -fPIC -o /dev/null - 2>/dev/null; then
    fail "$compiler cannot build a shared library" "install the C library's headers (Debian, Ubuntu: apt-get install libc6-dev)"
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || ! is_supported "$venv/bin/python"; then
    python=$(find_python)
    echo "Creating $venv with $python"
    make_environment "$python"
fi

echo "Installing the locked dependencies into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r requirements.lock
# The build backend is in the lock too, so building the project needs no download. It warns at length about editable
# installations, which this is on purpose.
if ! output=$("$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps --no-build-isolation -e . 2>&1); then
    printf '%s\n' "$output" >&2
    fail "the project could not be installed"
fi
"$venv/bin/python" -m pip check
touch "$stamp"
