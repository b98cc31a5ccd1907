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
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent
SOURCES = sorted(path.name for kind in ("*.h", "*.cpp") for path in HERE.glob(kind))
FLAGS = ("-O3", "-fno-math-errno", "-ffp-contract=fast", "-std=c++17", "-shared", "-fPIC")
TUNED = "-march=native"
SECONDS = 120  # that a compiler may take; it needs two
RETRY = 3600  # seconds after which a failure is no longer believed: a full disk is emptied
DONE, NOT_FINITE, NO_GROUP, NO_MEMORY = range(4)  # as in vectors.h


class NativeUnavailableError(RuntimeError):
    """Why there is no compiled kernel, and what to do; ``told``: an earlier process was told."""

    def __init__(self, message: str, told: bool = False) -> None:
        super().__init__(message)
        self.told = told


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where there is none, which is told once."""
    try:
        return load()
    except NativeUnavailableError as why:
        if not switched_off() and not why.told:
            warnings.warn(f"focus: slower attention on CPU is used, because {why}", stacklevel=2)
        return None


def run(name: str, problem: bytes, *refusals: int) -> int:
    """Calls a function of the kernel: DONE, or one of the refusals that the caller looks for.

    Raises:
        MemoryError: there is no room for what the call needs.
        RuntimeError: it was called without asking first whether it computes the call.
    """
    kernel = library()
    status = None if kernel is None else int(getattr(kernel, name)(problem))
    if status == NO_MEMORY:
        raise MemoryError(f"{name}: no memory; shorten the batch or the texts")
    if status is None or status not in (DONE, *refusals):
        raise RuntimeError(f"{name}: the compiled kernel answers {status}; please report it")
    return status


def places(tensors: Iterable[Tensor | None]) -> list[int]:
    """Where tensors lie, 0 for none; they must live until the call has returned."""
    return [0 if each is None else each.data_ptr() for each in tensors]


def load() -> ctypes.CDLL:
    """The compiled kernel, from the cache or compiled now (a few seconds).

    Raises:
        NativeUnavailableError: it is switched off, there is no compiler, or it fails.
    """
    if switched_off():
        raise NativeUnavailableError("FOCUS_NATIVE=0 turns the compiled kernel off; unset it")
    found = compiler()
    if found is None:
        missing = next(iter(split("CXX")), None)
        what = f"CXX: {missing!r} is not on the path" if missing else "there is no C++ compiler"
        raise NativeUnavailableError(
            f"{what}; install one (Debian: apt install g++) or name one in CXX, or set "
            "FOCUS_NATIVE=0"
        )
    errors = []
    for folder in (cache_folder, private_folder):
        try:
            return _load_from(folder(), f"kernel-{fingerprint(found)}.so", found)
        except OSError as error:  # no room, a folder from which nothing may be run, a broken file
            errors.append(error)
    raise NativeUnavailableError(
        f"the compiled kernel cannot be made or loaded ({'; then '.join(map(str, errors))}); name "
        "another folder in FOCUS_CACHE, or set FOCUS_NATIVE=0"
    ) from errors[-1]


def _load_from(folder: Path, name: str, found: tuple[str, ...]) -> ctypes.CDLL:
    """The kernel of this name, compiled unless it is there or is known to fail."""
    path, failure = folder / name, folder / f"{name}.failed"
    if not path.is_file():
        if failure.is_file() and time.time() - failure.stat().st_mtime < RETRY:
            raise NativeUnavailableError(f"{failure.read_text(encoding='utf-8')}", told=True)
        try:
            compile_to(path, found)
        except NativeUnavailableError as error:
            failure.write_text(f"{error}; delete {failure} to try again", encoding="utf-8")
            raise
    return ctypes.CDLL(str(path))


def switched_off() -> bool:
    """Whether the environment turns the kernel off."""
    return os.environ.get("FOCUS_NATIVE", "1") == "0"


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """The C++ compiler to use: its path, and the words that CXX has after it."""
    own = split("CXX")
    for name, *words in [own] if own else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(name)
        if path is not None:
            return path, *words
    return None


def split(variable: str) -> list[str]:
    """What an environment variable holds, split as a shell does.

    Raises:
        NativeUnavailableError: a quotation is not closed.
    """
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise NativeUnavailableError(f"{variable}: {error}; mend or unset it") from error


def compile_to(path: Path, found: tuple[str, ...]) -> None:
    """Compiles into ``path``; several processes may do so at once.

    Raises:
        NativeUnavailableError: the compiler fails; with the end of what it said.
        OSError: there is no room.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        said = []
        for flags in _choices():
            failed = _compile(part, found, flags) or _unloadable(part, flags)
            if failed is None:
                part.replace(path)
                return
            said.append(failed)
    raise NativeUnavailableError(
        f"{found[0]} could not compile the kernel; FOCUS_NATIVE=0 leaves it out. It said: "
        f"{said[0][-500:]}"
    )


def _choices() -> Iterator[tuple[str, ...]]:
    """Flags that not every compiler takes, the best first. Without OpenMP one thread does all.

    Apple's compiler has OpenMP but no runtime, and PyTorch brings one; before version 15 it could
    not be tuned to Apple's processors, which have all that the kernel uses anyway.
    """
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    threads: list[tuple[str, ...]] = [("-fopenmp",), ()]
    if (runtime := _runtime()).is_file():
        threads.insert(1, ("-Xclang", "-fopenmp", str(runtime), f"-Wl,-rpath,{runtime.parent}"))
    for tuned, threaded in itertools.product([(TUNED,)] if x86 else [(TUNED,), ()], threads):
        yield *tuned, *threaded


def _runtime() -> Path:
    """PyTorch's own OpenMP, on macOS."""
    return Path(torch.__file__).parent / "lib" / "libomp.dylib"


def _unloadable(library: Path, flags: tuple[str, ...]) -> str | None:
    """Why a library that was linked with :func:`_runtime` does not find it, or None."""
    if str(_runtime()) in flags:
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return f"it made a library that cannot be loaded: {error}"
    return None


def _compile(target: Path, found: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """Runs a compiler; None, or what it said where it failed."""
    units = [str(HERE / name) for name in SOURCES if name.endswith(".cpp")]
    command = (*found, *FLAGS, *units, *flags, *split("FOCUS_CXXFLAGS"), "-o", str(target))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:  # other flags will not mend it
        raise NativeUnavailableError(
            f"{found[0]} could not be run: {error}; mend or unset CXX, or set FOCUS_NATIVE=0"
        ) from error
    return done.stderr.strip() or "nothing" if done.returncode else None


@functools.cache
def cache_folder() -> Path:
    """Where kernels are kept: a folder of the user's own, else one of this process alone."""
    own, cache = (os.environ.get(name) for name in ("FOCUS_CACHE", "XDG_CACHE_HOME"))
    try:
        folder = Path(own or Path(cache or Path.home() / ".cache") / "focus-attention")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        open_to_others = _open_to_others(folder)
        with tempfile.TemporaryFile(dir=folder):
            if open_to_others is None:
                return folder
        warnings.warn(
            f"focus: compiles its kernel anew in every process, because others may write to "
            f"{open_to_others} and lay a library of theirs; chmod go-w {open_to_others}, or name a "
            "folder of your own in FOCUS_CACHE",
            stacklevel=2,
        )
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        pass
    return private_folder()


@functools.cache
def private_folder() -> Path:
    """A folder of this process alone, gone when it ends."""
    folder = tempfile.mkdtemp(prefix="focus-attention-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _open_to_others(folder: Path) -> Path | None:
    """The folder itself or one above it that another user could replace files in, if there is one.

    Above it, root's folders are trusted, and those where others may only add entries (sticky).
    """
    if not hasattr(os, "getuid"):
        return None
    folder = folder.resolve()
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        return folder
    for each in folder.parents:
        state = each.stat()
        if state.st_uid not in (0, os.getuid()) or state.st_mode & 0o1002 == 0o002:
            return each
    return None


def fingerprint(found: tuple[str, ...]) -> str:
    """Names everything that the compiled file depends on: sources, compiler, processor."""
    state = Path(found[0]).resolve().stat()
    parts = [*((HERE / name).read_text(encoding="utf-8") for name in SOURCES), *FLAGS,
             *itertools.chain(*_choices()), *split("FOCUS_CXXFLAGS"), *found,
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
