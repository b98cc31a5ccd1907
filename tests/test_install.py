"""The library as pip installs it: without this repository, a compiler, or the suite's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.models import build

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "user_script.py"
RUN = """
import sys, time
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer
began = time.process_time()
import focus
print(time.process_time() - began)
print(focus.__file__)
import warnings
warnings.simplefilter("always")
from user_script import kept
print([sorted(kept(sys.argv[1])) for _ in range(2)])
print("experiments" in sys.modules)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the library alone."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "focus", source / "focus")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    how = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *how, "--target", place, source]
    subprocess.run(command, check=True, capture_output=True)
    shutil.copy(ROOT / "tests" / SCRIPT, place)
    return place


def test_the_library_runs_alone_and_tells_once_that_there_is_no_compiler(
    installed: Path, tmp_path: Path
) -> None:
    build("llama").save_pretrained(tmp_path / "model")
    environment = {**os.environ, "PYTHONPATH": str(installed), "PATH": str(tmp_path), "CXX": "",
                   "FOCUS_CACHE": str(tmp_path / "cache")}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error:::focus", "-c", RUN, str(tmp_path / "model")], cwd=tmp_path,
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, file, layers, suite = done.stdout.split("\n", 3)
    assert float(seconds) < 3.0  # of the processor, beyond torch and transformers
    assert Path(file).is_relative_to(installed)
    assert layers == "[[0, 1], [0, 1]]"
    assert suite.strip() == "False"
    assert (installed / "focus/py.typed").is_file()
    assert done.stderr.count("there is no C++ compiler") == 1


@pytest.mark.timeout(400)  # fetches it, and tests every model of another file
def test_with_the_oldest_transformers_that_is_allowed(tmp_path: Path) -> None:
    """Keywords of its models have had other names: the cache's, until 5.23."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = (each for each in project["dependencies"] if each.startswith("transformers>="))
    oldest = named.removeprefix("transformers>=") + ".0"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile",
           "--disable-pip-version-check"]  # fmt: skip
    subprocess.run([*pip, "--target", tmp_path, f"transformers=={oldest}"], check=True,
                   capture_output=True)  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", "import transformers as t; print(t.__version__)"],
                          capture_output=True, text=True, env=environment, check=True)  # fmt: skip
    assert told.stdout.strip() == oldest
    tests = ["tests/test_architectures.py", "tests/test_compiled.py", "-k", "computes or no_mask"]
    done = subprocess.run([sys.executable, "-m", "pytest", *tests, "-p", "no:cacheprovider"],
                          cwd=ROOT, capture_output=True, text=True, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
