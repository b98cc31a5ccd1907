"""A run's record: its tables, and everything that produced them.

`with Run(folder, cell.plain(), seeds) as run:` writes run.json when the block ends well: the
settings of this run alone, seeds, versions, hardware, commit, wall time, peak memory. A block that
raises writes none, so it always stands for a finished run. Of several processes that train together
the first writes. What earlier processes finished of it (`run.earlier`) counts in time and memory.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import pandas as pd

    from experiments.settings import Settings

PACKAGES = ("torch", "transformers", "pytorch-lightning", "peft", "numpy", "dvc", "safetensors")
PEAKS = ("peak_memory_mb", "peak_gpu_memory_mb")
ROOT = Path("results")
# These change while a pipeline runs, or stand in every record whole: they make the code no other.
NOT_CODE = (":!results", ":!dvc.lock", ":!params.yaml")


def results(chosen: Settings) -> Path:
    """Where the results of a scale lie."""
    return ROOT / chosen.scale


class Run:
    """One stage, or one part of it, with its result files.

    Attributes:
        folder: where the files go; made on entry.
        settings: the plain settings of this run alone.
        seeds: of the run.
        dtype: number format of the model, by name; None: the run has no model.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], seeds: Sequence[int],
                 dtype: str | None = None) -> None:  # fmt: skip
        self.folder, self.settings = Path(folder), dict(settings)
        self.seeds, self.dtype = list(seeds), dtype
        self._notes: dict[str, Any] = {}
        self._started = 0.0
        self._earlier: list[Mapping[str, Any] | None] = []

    def __enter__(self) -> Run:
        if first_process():
            self.folder.mkdir(parents=True, exist_ok=True)
            # An older run's record must not outlive it.
            (self.folder / "run.json").unlink(missing_ok=True)
        self._started = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and first_process():
            write_json(self.folder / "run.json", self.provenance())

    def note(self, name: str, value: Any) -> None:
        """Adds something that stands in no table (a size, a time, a reason) to run.json."""
        self._notes[name] = value

    def table(self, frame: pd.DataFrame, name: str) -> Path:
        """Writes a data frame as CSV into the run's folder, whole or not at all; the path."""
        path = self.folder / name
        if first_process():
            write_text(path, frame.to_csv(index=False))
        return path

    @contextmanager
    def part(self) -> Iterator[dict[str, Any]]:
        """Fills a mapping, when the block ends well, with what it took and what ran it: to be kept
        with a part of the run, which a later process may find and gives to :meth:`earlier`."""
        took: dict[str, Any] = {}
        started = time.monotonic()
        yield took
        took |= {"seconds": round(time.monotonic() - started, 3), **peaks(), **self._maker}

    def earlier(self, took: Mapping[str, Any] | None) -> None:
        """Counts a part that an earlier process made; None: it is not known what that took."""
        self._earlier.append(took)

    @cached_property
    def _maker(self) -> dict[str, Any]:
        return maker()  # once: git takes longer than some parts

    def provenance(self) -> dict[str, Any]:
        """What run.json holds."""
        own = {
            "command": " ".join(["python", *_command()]),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": round(time.monotonic() - self._started, 3),
            **peaks(),
            **maker(),
            "dtype": self._dtype(),
            "seeds": self.seeds,
            "settings": self.settings,
            "notes": self._notes,
        }
        return with_earlier(own, self._earlier) if self._earlier else own

    def _dtype(self) -> str | None:
        """What the wanted number format meant on this machine."""
        if self.dtype is None or "torch" not in sys.modules:
            return None
        from experiments.sources import models  # it takes seconds, and not every run has a model

        return str(models.resolve_dtype(self.dtype)).removeprefix("torch.")


def peaks() -> dict[str, float | None]:
    """Most memory of this process so far, by the names in :data:`PEAKS`."""
    return dict(zip(PEAKS, (round(peak_memory_mb(), 1), _peak_gpu_memory_mb()), strict=True))


def maker() -> dict[str, Any]:
    """What code, packages and machine something is made by."""
    return {"commit": commit(), "versions": versions(), "hardware": hardware()}


def with_earlier(own: dict[str, Any], parts: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """A process's record with what earlier ones made of the run: seconds added up, the greatest
    memory, and in the notes what others made it. Seconds and memory are null where a part, made by
    older code, does not tell its own."""
    told = [part for part in parts if part is not None]
    notes: dict[str, Any] = {"parts": len(parts)}
    for name in ("commit", "versions", "hardware"):
        if others := _others(own[name], [part[name] for part in told]):
            notes[name] = others
    taken: dict[str, Any] = dict.fromkeys(("wall_seconds", *PEAKS))
    if len(told) < len(parts):
        notes["untold"] = (f"{len(parts) - len(told)} parts do not tell what they took, nor what "
                           "made them: time and memory of the whole are unknown")  # fmt: skip
    else:
        seconds = own["wall_seconds"] + sum(part["seconds"] for part in told)
        taken["wall_seconds"] = round(seconds, 3)
        for peak in PEAKS:
            known = [each[peak] for each in (own, *told) if each[peak] is not None]
            taken[peak] = max(known, default=None)
    return own | taken | {"notes": own["notes"] | {"earlier": notes}}


def _others(own: Any, theirs: Sequence[Any]) -> list[Any]:
    """Each that differs from one's own, once."""
    return [each for number, each in enumerate(theirs) if each not in (own, *theirs[:number])]


def first_process() -> bool:
    """Whether this is the first, or the only one, of the processes that train together."""
    ranks = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK"))
    return int(next((rank for rank in ranks if rank), 0)) == 0


def of(folder: str | Path) -> dict[str, Any] | None:
    """What a folder's run.json says; None: there is none, or it is no finished run's."""
    found = read_json(Path(folder) / "run.json")
    return found if isinstance(found, dict) else None


def read_json(path: Path) -> Any:
    """What a JSON file says; None: there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Writes a file whole or not at all: a reader, or a killed run, never sees half of it. What the
    block writes to the path that it is given takes the file's place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text whole or not at all."""
    with written(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Writes JSON (no NaN, a newline at the end) whole or not at all."""
    write_text(path, json.dumps(values, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def commit() -> dict[str, Any]:
    """The git commit of the working directory, and whether code differs from it."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", *NOT_CODE)
    except (OSError, subprocess.CalledProcessError):
        return {"id": None, "dirty": None}
    return {"id": head, "dirty": bool(changed)}


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def hardware() -> dict[str, Any]:
    """Processor with its instruction set and model numbers (one name may be several), cores,
    memory, operating system and GPU of this machine."""
    torch = sys.modules.get("torch")
    return {
        "cpu": _processor("model name") or platform.processor() or "unknown",
        "cpu_numbers": "/".join(_processor(name) for name in ("cpu family", "model", "stepping")),
        "instructions": torch.backends.cpu.get_cpu_capability() if torch else None,
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gpu": _gpu_name(),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _command() -> list[str]:
    """The arguments that started this process, without this machine's paths."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else None
    return (["-m", name] if name else [Path(sys.argv[0]).name]) + sys.argv[1:]


def _processor(field: str) -> str:
    """A field of the first processor, empty where Linux does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""


def _gpu_name() -> str | None:
    torch = sys.modules.get("torch")  # a stage that never loaded torch used no GPU
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()


def _peak_gpu_memory_mb() -> float | None:
    if _gpu_name() is None:
        return None
    return round(sys.modules["torch"].cuda.max_memory_allocated() / 2**20, 1)
