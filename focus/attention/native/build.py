"""Compiles the kernel once for this processor and keeps it in the user's cache folder.

``FOCUS_NATIVE=0`` turns it off; ``CXX`` names another compiler than the first of c++, g++ and
clang++ on the path, ``FOCUS_CXXFLAGS`` flags beside those below (``-mno-avx512f``, say);
``FOCUS_CACHE`` another folder than ``$XDG_CACHE_HOME/focus-attention``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

UNITS = ("forward.cpp", "backward.cpp", "gated.cpp", "step.cpp", "route.cpp")
SOURCES = ("vectors.h", "tile.h", "gradient.h", "lists.h", "rows.h", "gated.h", *UNITS)
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast", "-std=c++17",
         "-shared", "-fPIC")  # fmt: skip
SECONDS = 120  # that a compiler may take; it needs two


class NativeUnavailableError(RuntimeError):
    """Why there is no compiled kernel, and what to do."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where there is none; a compiler that fails is warned of once."""
    try:
        return load()
    except NativeUnavailableError as why:
        if not switched_off() and (compiler() or os.environ.get("CXX")):
            warnings.warn(f"focus: slower attention on CPU is used, because {why}", stacklevel=2)
        return None


def load() -> ctypes.CDLL:
    """The compiled kernel, from the cache or compiled now (about two seconds).

    Raises:
        NativeUnavailableError: it is switched off, there is no compiler, or it fails.
    """
    if switched_off():
        raise NativeUnavailableError("FOCUS_NATIVE=0 turns the compiled kernel off; unset it")
    found = compiler()
    if found is None:
        raise NativeUnavailableError(
            "there is no C++ compiler on the path; install one (Debian: apt install g++) or name "
            "one in CXX"
        )
    name = f"kernel-{fingerprint(found)}.so"
    try:
        path = cache_folder() / name
        if not path.is_file():
            compile_to(path, found)
        return ctypes.CDLL(str(path))
    except OSError as error:  # no room, a folder from which nothing may be run, a broken file
        first = error
    try:
        path = private_folder() / name
        compile_to(path, found)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(
            f"the compiled kernel cannot be loaded ({first}; then {error}); name another folder in "
            "FOCUS_CACHE, or set FOCUS_NATIVE=0"
        ) from error


def switched_off() -> bool:
    """Whether the environment turns the kernel off."""
    return os.environ.get("FOCUS_NATIVE", "1") == "0"


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """The C++ compiler to use: its path, and the words that CXX has after it."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name, *words in map(shlex.split, wanted):
        path = shutil.which(name)
        if path is not None:
            return path, *words
    return None


def flags() -> tuple[str, ...]:
    """What the compiler is told."""
    return *FLAGS, *shlex.split(os.environ.get("FOCUS_CXXFLAGS", ""))


def compile_to(path: Path, found: tuple[str, ...]) -> None:
    """Compiles into ``path``; several processes may do so at once.

    Raises:
        NativeUnavailableError: the compiler fails; with the end of what it said.
        OSError: there is no room.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        units = (str(Path(__file__).with_name(unit)) for unit in UNITS)
        command = [*found, *flags(), *units, "-o", str(part)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeUnavailableError(f"{found[0]} could not be run: {error}") from error
        if done.returncode:
            raise NativeUnavailableError(
                f"{found[0]} could not compile the kernel; FOCUS_NATIVE=0 leaves it out. It said: "
                f"{done.stderr.strip()[-500:]}"
            )
        part.replace(path)


@functools.cache
def cache_folder() -> Path:
    """Where kernels are kept: a folder of the user's own, else one of this process alone."""
    root = os.environ.get("FOCUS_CACHE")
    try:
        folder = Path(root) if root else _user_cache() / "focus-attention"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Where others may write, they could lay a library of theirs.
        with tempfile.TemporaryFile(dir=folder):
            if _own(folder):
                return folder
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        pass
    return private_folder()


@functools.cache
def private_folder() -> Path:
    """A folder of this process alone, gone when it ends."""
    folder = tempfile.mkdtemp(prefix="focus-attention-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _own(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    state = folder.stat()
    return state.st_uid == os.getuid() and not state.st_mode & 0o022


def _user_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache) if cache else Path.home() / ".cache"


def fingerprint(found: tuple[str, ...]) -> str:
    """Names everything that the compiled file depends on: sources, compiler, processor."""
    here = Path(__file__).parent
    state = Path(found[0]).resolve().stat()
    parts = [*((here / name).read_text(encoding="utf-8") for name in SOURCES), *flags(), *found,
             str(state.st_mtime_ns), str(state.st_size), processor()]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def processor() -> str:
    """The processor's instruction sets: home folders may be shared between machines."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("flags", "features")):
                return line
    return f"{platform.machine()} {platform.processor()}"
