#!/usr/bin/env bash
# An aarch64 board in a folder: Debian's arm64 Python and the arm64 wheels of what the device server needs, run by
# qemu's user emulation. Needs no root, no mounts and no binfmt_misc: programs of the board are started through small
# scripts (BOARD/bin/python3, BOARD/bin/ld) that name the emulator, so that the board can start programs itself.
#
#   tests/arm64/board.sh prepare    make the board, unless it is there already, and print its folder
#   tests/arm64/board.sh remove     remove it
#
# The board lies in ${XDG_CACHE_HOME:-~/.cache}/fleet-tune/arm64, named after all that it is made of: a changed version
# makes another one; one that was not used for two weeks is removed then. Debian's packages come from where this machine
# has its own from; FLEET_TUNE_DEBIAN_MIRROR names another mirror.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fleet-tune/arm64
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
release=bookworm
debian_packages=(python3 binutils)

fail() {
    printf 'board.sh: %s\n' "$@" >&2
    exit 1
}

# What a device needs to be served (pyproject.toml), with all that it needs, at the versions of requirements.lock;
# safetensors, to run a compiled network; and CUDA's runtime library, so that of a GPU only NVIDIA's driver is missing.
wheels() {
    local name
    for name in apache-tvm apache-tvm-ffi ml-dtypes numpy safetensors typing-extensions; do
        grep -x "$name==[^ ]*" "$repository/requirements.lock" || fail "requirements.lock has no $name"
    done
    grep -x "nvidia-cuda-runtime==[^ ]*" "$repository/.ci/cuda.txt" || fail ".ci/cuda.txt has no nvidia-cuda-runtime"
}

# apt for arm64, with lists, cache and package state of its own: nothing of this machine's is read or written.
board_apt() {
    local work=$1
    shift
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
        -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache" \
        -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null -o Debug::NoLocking=1 "$@"
}

# The mirror that this machine's apt has the release's main archive from.
own_mirror() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == release && $3 == "main" { print $1; exit }'
}

emulator() {
    command -v qemu-aarch64-static || true
}

# make_board FOLDER: all of it, in a folder that is not in use yet.
make_board() {
    local board=$1 work=$1/work package
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$board/root" "$board/site" "$board/bin"

    if [[ -z $(emulator) ]]; then
        (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download qemu-user-static) ||
            fail "cannot download qemu-user-static" "install it: apt-get install qemu-user-static"
        dpkg-deb -x "$work"/qemu-user-static_*.deb "$work/qemu"
        cp "$work/qemu/usr/bin/qemu-aarch64-static" "$board/bin/"
    else
        ln -s "$(emulator)" "$board/bin/qemu-aarch64-static"
    fi

    : >"$work/status"
    echo "deb [signed-by=$keyring] $mirror $release main" >"$work/sources.list"
    board_apt "$work" update || fail "cannot read the package lists of $mirror"
    board_apt "$work" install --download-only --yes --no-install-recommends "${debian_packages[@]}" ||
        fail "cannot download Debian's arm64 packages from $mirror"
    for package in "$work"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$board/root"
    done

    wheels >"$work/wheels.txt"
    "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: \
        --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_24_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
        --target "$board/site" --requirement "$work/wheels.txt" || fail "cannot install the arm64 wheels"

    # The emulator's -0 is what Python finds itself by: its library, and the program that it starts children with.
    write_program "$board/bin/python3" "$board" usr/bin/python3.11 \
        "export PYTHONHOME='$board/root/usr' PYTHONNOUSERSITE=1 PATH='$board/bin':\$PATH" \
        "export PYTHONPATH=\"\${PYTHONPATH:+\$PYTHONPATH:}$board/site\""
    write_program "$board/bin/ld" "$board" usr/bin/aarch64-linux-gnu-ld
    rm -rf "$work"
}

# write_program SCRIPT BOARD PROGRAM [LINE...]: a script that runs a program of the board, after the given lines.
write_program() {
    local script=$1 board=$2 program=$3
    shift 3
    {
        echo '#!/bin/sh'
        printf '%s\n' "$@"
        echo "exec '$board/bin/qemu-aarch64-static' -L '$board/root' -0 \"\$0\" '$board/root/$program' \"\$@\""
    } >"$script"
    chmod 755 "$script"
}

prepare() {
    local id board
    python=${PYTHON:-$repository/.venv/bin/python}
    [[ -x $python ]] || fail "$python is missing" "run 'make setup' first, or name a Python with pip: PYTHON=..."
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "apt-get and dpkg-deb are needed (Debian)"
    [[ -r $keyring ]] || fail "$keyring is missing" "install it: apt-get install debian-archive-keyring"
    mkdir -p "$cache"
    id=$({ cat "${BASH_SOURCE[0]}"; wheels; } | sha256sum | cut -c1-12)
    board=$cache/$id
    exec 9>"$cache/lock"
    flock -w 900 9 || fail "another process has been preparing the board for 15 minutes"
    if [[ ! -e $board/complete ]]; then
        mirror=${FLEET_TUNE_DEBIAN_MIRROR:-$(own_mirror)}
        [[ -n $mirror ]] || fail "apt knows no sources of Debian $release here" \
            "run 'apt-get update', or name a mirror: FLEET_TUNE_DEBIAN_MIRROR=http://HOST/debian"
        # What an interruption left, and boards of other versions that nobody has used for two weeks.
        rm -rf "$board"
        find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +14 -exec rm -rf {} +
        # The scripts name the folder, so it is made in its place; the mark is written last.
        make_board "$board" >&2
        touch "$board/complete"
    fi
    touch "$board"
    echo "$board"
}

case ${1:-} in
    prepare) prepare ;;
    remove) rm -rf "$cache" ;;
    *) fail "usage: board.sh prepare | remove" ;;
esac
