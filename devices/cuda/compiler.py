"""Compilation of CUDA source to machine code for a GPU that need not be in this machine: by NVRTC's C interface, or
nvcc.

TVM 0.27 leaves the source in the library that it exports, and compiles it on the device when a kernel is first called:
that is slow, and invalid source is found only then. Here the build host compiles it, and the machine code travels as a
comment in front of the source. A device with our callback (:func:`install_loader`) takes the code from there; any other
TVM compiles the source as before.

This module does not load TVM: our device server needs its functions that read machine code.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from devices.host.owned_folder import owned_folder
from fleet_tune.base.errors import UserError

NVCC_TIMEOUT_SECS = 120.0
_MARK = "// fleet-tune machine code "
# Option that TVM's own callback gives both compilers: kernels are as fast and as precise as TVM's.
_FAST_MATH = "--use_fast_math"
# NVRTC has no <math.h>, whose constants TVM's source relies on.
_PREAMBLE = """\
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
"""
# The names of libcu++ that TVM's source uses when NVRTC compiles it. Reading the real headers takes 1.2 s for every
# kernel, compiling the kernel 0.05 s.
_HEADERS = {
    "cuda/std/cstdint": """\
#pragma once
namespace cuda { namespace std {
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;
using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned int;
using uint64_t = unsigned long long;
} }
""",
    "cuda/std/type_traits": """\
#pragma once
namespace cuda { namespace std {
template <bool V> struct bool_constant { static constexpr bool value = V; };
template <class A, class B> struct is_same : bool_constant<false> {};
template <class A> struct is_same<A, A> : bool_constant<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class T, class... Others> struct is_one_of : bool_constant<(is_same_v<T, Others> || ...)> {};
template <class T> struct is_floating_point : is_one_of<T, float, double> {};
template <class T> struct is_integral : is_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int,
    unsigned int, long, unsigned long, long long, unsigned long long> {};
template <class T, bool = is_integral<T>::value || is_floating_point<T>::value>
struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T> struct is_signed<T, false> : bool_constant<false> {};
template <class T> struct is_unsigned : bool_constant<is_integral<T>::value && !is_signed<T>::value> {};
template <bool C, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool C, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
} }
""",
}
_ROOTS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")


NVCC_VARIABLE = "FLEET_TUNE_NVCC"
"""Environment variable with the path of the nvcc to use."""


class CudaCompilerError(UserError):
    """This machine has no compiler for CUDA source: install one."""


class CudaSourceError(Exception):
    """Source that the compiler refuses; the text says why."""


@dataclass(frozen=True)
class CudaCompiler:
    """A CUDA compiler: NVRTC or nvcc."""

    library: str | None
    """NVRTC's shared object; None for nvcc."""
    nvcc: str | None
    includes: tuple[str, ...]
    """Folders with CUDA's headers."""

    def compile(self, source: str, arch: str) -> bytes:
        """Return the machine code (cubin) of ``source`` for ``arch`` (``"sm_87"``). Raises :class:`CudaSourceError`."""
        if self.library is not None:
            return _nvrtc(self.library, source, arch, self.includes)
        assert self.nvcc is not None
        return _nvcc(self.nvcc, source, arch)


@cache
def find_compiler() -> CudaCompiler | None:
    """Return the nvcc that the variable FLEET_TUNE_NVCC names, NVRTC from its Python package, NVRTC or nvcc from a CUDA
    toolkit on this machine, in this order; ``None`` if there is none. Raises :class:`CudaCompilerError` if the variable
    names no program."""
    named = os.environ.get(NVCC_VARIABLE, "")
    if named:
        path = shutil.which(named)
        if path is None:
            raise CudaCompilerError(
                f"{NVCC_VARIABLE} is {named!r}, which is no program", "set it to the path of an nvcc"
            )
        return CudaCompiler(None, path, ())
    package = package_folders()
    toolkits = [Path(root) for root in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), *_ROOTS) if root]
    nvcc = shutil.which("nvcc") or next(
        (str(root / "bin/nvcc") for root in toolkits if (root / "bin/nvcc").is_file()), None
    )
    for roots in (package, toolkits):
        for root in roots:
            for pattern in ("lib/libnvrtc.so.*", "lib64/libnvrtc.so.*"):
                libraries = sorted(path for path in root.glob(pattern) if re.search(r"\.so\.\d+$", path.name))
                includes = _header_folders(package if roots is package else [root])
                if libraries and includes:
                    return CudaCompiler(str(libraries[-1]), None, includes)
    return CudaCompiler(None, nvcc, ()) if nvcc else None


def require_compiler() -> CudaCompiler:
    """Return the result of :func:`find_compiler`; raises :class:`CudaCompilerError` if there is none."""
    compiler = find_compiler()
    if compiler is None:
        raise CudaCompilerError(
            "no CUDA compiler (NVRTC or nvcc) found on this machine",
            "install the Python packages of the extra fleet-tune[cuda], or a CUDA toolkit",
        )
    return compiler


@cache
def describe() -> str:
    """Return the name and version of this machine's compiler; empty if there is none. Equal texts mean equal machine
    code."""
    compiler = find_compiler()
    if compiler is None:
        return ""
    if compiler.library is not None:
        major, minor = ctypes.c_int(), ctypes.c_int()
        _load_nvrtc(compiler.library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"nvrtc {major.value}.{minor.value}"
    assert compiler.nvcc is not None
    done = subprocess.run([compiler.nvcc, "--version"], capture_output=True, text=True, timeout=60)
    return f"nvcc {done.stdout.strip().splitlines()[-1]}" if done.stdout.strip() else "nvcc"


@contextlib.contextmanager
def compiling_for(target: str) -> Iterator[None]:
    """Within the block, libraries that TVM builds for the canonical CUDA ``target`` contain machine code.

    If this machine has no compiler, they contain the source alone, and the device compiles it, as in plain TVM.
    """
    arch = _arch(target)
    compiler = find_compiler() if arch else None
    if compiler is None:
        yield
        return
    import tvm_ffi

    def compiled(source: str, *_target: Any) -> str:
        return with_code(source, arch, compiler.compile(source, arch))

    before = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)
    # If TVM's CUDA runtime is loaded, as on every machine with a GPU, a build also asks this callback for machine code.
    # Ours takes it from the source. TVM's own compiler would take seconds for each kernel.
    install_loader(lambda: arch)
    tvm_ffi.register_global_func(_POSTPROC, compiled, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_POSTPROC, _unchanged, override=True)
        if before is not None:  # this process also loads kernels, for its own GPU
            tvm_ffi.register_global_func(_COMPILE, before, override=True)


def with_code(source: str, arch: str, code: bytes) -> str:
    """Return ``source`` with its machine code for ``arch`` in a comment in front."""
    return f"{_MARK}{arch} {base64.b64encode(code).decode()}\n{source}"


def split_code(text: str) -> tuple[str, str, bytes]:
    """Return the source, architecture and machine code in a text of :func:`with_code`. Architecture and code are empty
    if it has no code.

    Raises ValueError for a damaged comment.
    """
    if not text.startswith(_MARK):
        return text, "", b""
    line, _, source = text.partition("\n")
    arch, _, encoded = line.removeprefix(_MARK).partition(" ")
    try:
        return source, arch, base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError("the machine code of a CUDA kernel is damaged") from error


def install_loader(device_arch: Callable[[], str]) -> None:
    """Make TVM on a device use the machine code that comes with a kernel, and compile the source if there is none.

    ``device_arch``: returns the GPU's architecture (``"sm_87"``); called when a source has to be compiled.
    """
    import tvm_ffi

    def load(text: str, *_target: Any) -> bytes:
        source, _arch, code = split_code(text)
        return code or require_compiler().compile(source, device_arch())

    tvm_ffi.register_global_func(_COMPILE, load, override=True)


def _unchanged(source: str, *_target: Any) -> str:
    return source


def _arch(target: str) -> str:
    """Return the GPU architecture of a canonical target; empty if it is not for CUDA."""
    attributes = json.loads(target)
    return str(attributes.get("arch", "")) if attributes["kind"] == "cuda" else ""


def package_folders() -> list[Path]:
    """Return the folders of NVIDIA's Python packages: ``nvidia/cu13`` with everything, or one folder for each part of
    CUDA 12."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in dict.fromkeys(spec.submodule_search_locations or ())] if spec else []
    packages = [folder for place in places for folder in sorted(place.glob("cu[0-9]*"), reverse=True)]
    parts = ("cuda_nvrtc", "cuda_runtime", "cuda_nvcc", "cuda_cccl")
    packages += [place / part for place in places for part in parts if (place / part).is_dir()]
    return packages


def _header_folders(roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders of CUDA's headers under ``roots``; none if a header that TVM's source includes is missing."""
    folders = [root / "include" / part for root in roots for part in ("", "cccl")]
    present = tuple(str(folder) for folder in folders if folder.is_dir())
    needed = ("cuda_fp16.h", "mma.h", "crt/mma.h")
    return present if all(any((Path(folder) / name).is_file() for folder in present) for name in needed) else ()


def _nvrtc(library: str, source: str, arch: str, includes: Sequence[str]) -> bytes:
    nvrtc = _load_nvrtc(library)
    program = ctypes.c_void_p()
    text = (_PREAMBLE + source).encode()

    def checked(code: int, doing: str) -> None:
        if code:
            raise CudaSourceError(f"NVRTC cannot {doing}: {nvrtc.nvrtcGetErrorString(code).decode()}")

    names, contents = (_strings(each) for each in (_HEADERS.keys(), _HEADERS.values()))
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", len(_HEADERS), contents, names)
    checked(created, "take the source")
    try:
        options = [f"--gpu-architecture={arch}", "--device-int128", _FAST_MATH]
        options += [f"--include-path={folder}" for folder in includes]
        if nvrtc.nvrtcCompileProgram(program, len(options), _strings(options)):
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CudaSourceError(f"NVRTC for {arch}: {_first_error(log.value.decode(errors='replace'))}")
        size = ctypes.c_size_t()
        checked(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "make machine code")
        code = ctypes.create_string_buffer(size.value)
        checked(nvrtc.nvrtcGetCUBIN(program, code), "make machine code")
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _load_nvrtc(library: str) -> ctypes.CDLL:
    """Load NVRTC and the library of its built-in functions. NVRTC opens that library by its name alone, and the
    system's loader does not find it in the folder of a Python package."""
    for builtins in Path(library).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _strings(values: Iterable[str]) -> Any:
    """Return an array of C strings."""
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _nvcc(nvcc: str, source: str, arch: str) -> bytes:
    with owned_folder("nvcc") as folder:
        path, output = folder / "kernel.cu", folder / "kernel.cubin"
        path.write_text(source)
        command = [nvcc, "--cubin", "-O3", f"-arch={arch}", _FAST_MATH, "-o", str(output), str(path)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NVCC_TIMEOUT_SECS
            )
        except subprocess.TimeoutExpired as error:
            raise CudaSourceError(f"nvcc took more than {NVCC_TIMEOUT_SECS:g} s") from error
        if done.returncode != 0:
            raise CudaSourceError(f"nvcc for {arch}: {_first_error(done.stderr + done.stdout)}")
        return output.read_bytes()


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no reason given")[:500]


_POSTPROC = "tvm_callback_cuda_postproc"
_COMPILE = "tvm_callback_cuda_compile"
