"""How the native kernels are compiled, kept, and done without."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from focus.attention.native import build
from tests import forked
from tests.attention.cases import needs_kernel

InNewProcess = Callable[..., str]
Told = Callable[..., tuple[str, str]]

QUICK = {"FOCUS_CXXFLAGS": "-O0"}  # to compile, where what is compiled hardly runs


def script(path: Path, body: str) -> str:
    """A command of that body."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A compiler that copies the kernel of this process: compiling takes seconds each time."""
    kernel, folder = build.load()._name, tmp_path_factory.mktemp("compiler")
    return {"CXX": script(folder / "c++", f'for out; do :; done\ncp {kernel} "$out"')}


def test_a_compiler_is_found_where_one_is_on_the_path() -> None:
    """So that the tests below are left out for no other reason than the one they name."""
    if build.compiler() is not None and not build.switched_off():
        assert isinstance(build.load(), ctypes.CDLL)


@pytest.fixture
def in_new_process(tmp_path_factory: pytest.TempPathFactory) -> InNewProcess:
    """What code prints, without a warning."""

    def run(code: str, **environment: str) -> str:
        own = tmp_path_factory.mktemp("process")
        status, said, warned = forked.run(code, own, "error", {**QUICK, **environment})
        assert status == 0, warned[-2000:]
        return said.strip()

    return run


@pytest.fixture
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What code prints, and its warnings."""

    def run(code: str, **environment: str) -> tuple[str, str]:
        own = tmp_path_factory.mktemp("process")
        status, said, warned = forked.run(code, own, "always", {**QUICK, **environment})
        assert status == 0, warned[-2000:]
        return said, warned

    return run


ASK = "from focus.attention.native import build; print(build.library() is not None)"
USE = """
import torch, focus
x = torch.randn(1, 2, 40, 16)
focus.focus_attention(x, x, x, torch.eye(4, dtype=torch.bool).repeat(10, 1)[None], window=4)
print("done")
"""
NARROWER = """
import torch
from focus.attention.native import build, call
from tests.attention import test_step
from tests.attention.cases import Case, check
from tests.attention.train import test_kernel as train
for dim in (16, 64, 80):
    for key_top_k in (None, 1):
        for way in ("lists", "dense test"):
            check(Case(300, 6, 2, key_top_k, sinks=3, dim=dim, routers="kv_head"), way)
    train.test_outputs_and_gradients_are_the_definitions(train.Case(dim=dim))
test_step.test_compiled_steps_over_long_lists()
print(call.limits(build.load())[0])
"""


@needs_kernel
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are flags of x86-64 compilers")
@pytest.mark.parametrize(("flags", "lanes"), [("-mno-avx512f", 8), ("-mno-avx", 4)])
def test_narrower_vectors_give_the_same(
    tmp_path: Path, flags: str, lanes: int, in_new_process: InNewProcess
) -> None:
    found = in_new_process(NARROWER, FOCUS_CXXFLAGS=f"{flags} -O1", FOCUS_CACHE=str(tmp_path))
    assert int(found) <= lanes


def test_switched_off_attention_goes_another_way_without_a_word(
    tmp_path: Path, in_new_process: InNewProcess
) -> None:
    environment = {"FOCUS_NATIVE": "0", "FOCUS_CACHE": str(tmp_path / "cache")}
    assert in_new_process(ASK, **environment) == "False"
    assert in_new_process(USE, **environment) == "done"


@pytest.mark.parametrize(
    ("cxx", "why"),
    [
        ("", "there is no C++ compiler; install one"),
        ("  ", "there is no C++ compiler; install one"),
        ("no-such-compiler", "CXX: 'no-such-compiler' is not on the path; install one"),
        ("c++ '", "CXX: No closing quotation; mend or unset it"),
    ],
)
def test_without_a_compiler_attention_goes_another_way_and_tells_once(
    cxx: str, why: str, tmp_path: Path, told: Told
) -> None:
    said, warned = told(USE + USE, PATH=str(tmp_path), CXX=cxx, FOCUS_CACHE=str(tmp_path / "cache"))
    assert said.split() == ["done", "done"]
    assert warned.count(why) == 1


def test_missing_sources_do_not_crash(tmp_path: Path, told: Told) -> None:
    code = f"""
import pathlib
from focus.attention.native import build
build.SOURCES = (*build.SOURCES, "gone.h")
{USE}"""
    said, warned = told(code, FOCUS_CACHE=str(tmp_path))
    assert said.split() == ["done"]
    assert warned.count("slower attention on CPU is used") == 1


@needs_kernel
def test_a_compiler_without_openmp_compiles_for_one_thread(tmp_path: Path, told: Told) -> None:
    real = build.compiler()
    assert real is not None
    fake = script(tmp_path / "c++", f'case "$*" in *-fopenmp*) exit 1;; esac\nexec {real[0]} "$@"')
    said, warned = told(
        ASK + "\nfrom tests.attention.cases import Case, check\ncheck(Case(300, 8), 'lists')",
        CXX=fake, FOCUS_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert said.split() == ["True"]
    assert "UserWarning" not in warned


@needs_kernel
@pytest.mark.parametrize("runtime", ["whole", "broken", "none"])
def test_apples_compiler_takes_pytorchs_openmp_where_it_can_be_loaded(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler as Apple's: it refuses -fopenmp alone, and an older one every tuning."""
    real = build.compiler()
    assert real is not None
    fake, own, target = tmp_path / "c++", tmp_path / "libomp.dylib", tmp_path / "made.so"
    fake.write_text(
        "#!/bin/bash\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        '[[ "$*" != *-march=native* ]] || exit 1\n'
        '[[ "$*" != *-fopenmp* || "$*" == *"-Xclang -fopenmp"* ]] || exit 1\n'
        f'exec {real[0]} -Wl,--no-as-needed "${{@/-Xclang/-O0}}" -O0\n'
    )
    fake.chmod(0o755)
    if runtime != "none":  # a library that needs another one, there or not
        other = tmp_path / "libother.so"
        for name, needs in ((other, []), (own, [str(other)])):
            made = [real[0], "-shared", "-x", "c++", "/dev/null", "-x", "none", *needs]
            subprocess.run([*made, "-Wl,--no-as-needed", *needs, "-o", str(name)], check=True)
        if runtime == "broken":
            other.unlink()
    monkeypatch.setattr(build, "_runtime", lambda: own)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    build.compile_to(target, (str(fake),))
    assert ctypes.CDLL(str(target)).focus_limits is not None
    threaded = "-Xclang" in (tmp_path / "calls").read_text().splitlines()[-1]
    assert threaded == (runtime == "whole")


def test_a_compiler_that_hangs_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "c++"
    fake.write_text(f"#!/bin/sh\nprintf x >> {tmp_path}/calls\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(build, "SECONDS", 0.5)
    with pytest.raises(build.NativeUnavailableError, match=r"could not be run: .*timed out"):
        build.compile_to(tmp_path / "kernel.so", (str(fake),))
    assert (tmp_path / "calls").read_text() == "x"


def test_a_compiler_that_fails_is_told_once(tmp_path: Path, told: Told) -> None:
    fails = f"printf x >> {tmp_path}/calls\necho no such instruction >&2\nexit 1"
    fake = script(tmp_path / "c++", fails)
    target = tmp_path / "kernel.so"
    with pytest.raises(build.NativeUnavailableError, match=r"FOCUS_NATIVE=0.*no such instruction"):
        build.compile_to(target, (fake,))
    assert set(tmp_path.iterdir()) == {Path(fake), tmp_path / "calls"}
    environment = {"CXX": f"{fake} -m64", "FOCUS_CACHE": str(tmp_path / "cache")}
    said, warned = told(USE + USE, **environment)
    assert said.split() == ["done", "done"]
    assert warned.count("UserWarning: focus: slower attention on CPU is used, because") == 1
    # Another process neither tries nor tells again, until the user deletes the note.
    calls = len((tmp_path / "calls").read_text())
    said, warned = told(USE, **environment)
    assert said.split() == ["done"]
    assert "UserWarning" not in warned
    assert len((tmp_path / "calls").read_text()) == calls
    (note,) = (tmp_path / "cache").glob("*.failed")
    assert f"delete {note}" in note.read_text()
    # What failed may have been a full disk: after a while it is tried again.
    os.utime(note, (0, 0))
    said, warned = told(USE, **environment)
    assert said.split() == ["done"]
    assert warned.count("slower attention on CPU is used") == 1
    assert len((tmp_path / "calls").read_text()) > calls


@needs_kernel
def test_it_is_compiled_once_and_kept_and_again_elsewhere_if_it_cannot_be_loaded(
    tmp_path: Path, in_new_process: InNewProcess, copying: dict[str, str]
) -> None:
    cache = {"FOCUS_CACHE": str(tmp_path), "FOCUS_NATIVE": "1", **copying}
    assert in_new_process(ASK, **cache) == "True"
    (made,) = tmp_path.iterdir()
    when = made.stat().st_mtime_ns
    assert in_new_process(USE, **cache) == "done"
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [when]
    made.write_bytes(b"not a library")
    assert in_new_process(ASK + USE, **cache).split() == ["True", "done"]


@needs_kernel
def test_without_a_home_folder_it_is_made_for_this_process(
    tmp_path: Path, in_new_process: InNewProcess, copying: dict[str, str]
) -> None:
    code = f"""
import pathlib, os
def no_home(): raise RuntimeError("Could not determine home directory.")
pathlib.Path.home = no_home
for name in ("FOCUS_CACHE", "XDG_CACHE_HOME"): os.environ.pop(name, None)
os.environ["TMPDIR"] = {str(tmp_path)!r}
from focus.attention.native import build
print(build.library() is not None, build.cache_folder().parent)
"""
    assert in_new_process(code, **copying) == f"True {tmp_path}"
    assert not list(tmp_path.iterdir())  # and is gone with it


@pytest.mark.filterwarnings("ignore:focus. compiles its kernel anew")
@pytest.mark.parametrize("why", ["a file stands there", "others may write", "or above it"])
def test_a_folder_that_is_not_ours_alone_is_replaced(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "place"
    if why == "a file stands there":
        blocked.write_text("")
    else:
        (blocked / "cache").mkdir(parents=True)
        (blocked / "cache" if why == "others may write" else blocked).chmod(0o777)
    monkeypatch.setenv("FOCUS_CACHE", str(blocked / "cache"))
    build.cache_folder.cache_clear()
    try:
        folder = build.cache_folder()
        assert folder.is_dir()
        assert not str(folder).startswith(str(blocked))
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        build.cache_folder.cache_clear()


@needs_kernel
def test_a_folder_that_others_may_write_to_is_told_of(
    tmp_path: Path, told: Told, copying: dict[str, str]
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o775)
    _, warned = told(ASK, FOCUS_CACHE=str(tmp_path / "cache"), **copying)
    assert warned.count(f"chmod go-w {tmp_path / 'cache'}") == 1


def test_the_fingerprint_follows_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (sys.executable,)
    before = build.fingerprint(own)
    monkeypatch.setenv("FOCUS_CXXFLAGS", "-g")
    assert build.fingerprint(own) != before
    monkeypatch.delenv("FOCUS_CXXFLAGS")
    monkeypatch.setattr(build, "SOURCES", build.SOURCES[:-1])
    assert build.fingerprint(own) != before
