"""Stage view: what groups the tokens of a text are in, as a page that needs no network.

`python -m experiments.stages.view` writes results/groups.html of the passages in
experiments/view/passages, which are ours; `python -m experiments.stages.view --text "..."` (or
`--file`) writes build/groups.html of one's own. Groups are those of a trained experiment, under its
hard mask.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import focus
from experiments import settings, trained
from experiments.command import reported
from experiments.methods.focus import FocusSettings
from experiments.settings import Experiment, Settings
from experiments.view.capture import capture

FOLDER = Path(__file__).parents[1] / "view"
PASSAGES, TEMPLATE = FOLDER / "passages", FOLDER / "page.html"
ROUTED = {"paper": "layer", "layer": "layer", "key_head": "key head", "query_head": "query head"}
OURS, OWN = Path("results/groups.html"), Path("build/groups.html")


@reported("view")
def main(arguments: list[str] | None = None) -> None:
    """The command line of the stage."""
    options = _parser().parse_args(arguments)
    chosen = settings.load()
    torch.set_num_threads(min(chosen.threads, torch.get_num_threads()))  # or OMP_NUM_THREADS
    texts = wanted(options.text, options.file)
    written = options.out or (OURS if options.text is options.file is None else OWN)
    cell = chosen.cell(options.experiment)
    passages = shown(texts, cell, options.seed, chosen, options.layers)
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(page(passages, described(cell, options.seed)), encoding="utf-8")
    print(f"view: open {written}")


def wanted(text: str | None, file: Path | None) -> dict[str, str]:
    """Texts by title: the one asked for, or ours.

    Raises:
        ValueError: the file cannot be read.
    """
    if text is not None:
        return {"your text": text}
    if file is None:
        return {path.stem: path.read_text(encoding="utf-8") for path in sorted(PASSAGES.glob("*"))}
    try:
        return {file.name: file.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--file: {error}; give a text file in UTF-8") from error


def shown(texts: dict[str, str], cell: Experiment, seed: int, chosen: Settings,
          layers: int) -> list[dict[str, Any]]:  # fmt: skip
    """A passage a text, by the cell's trained routers and its method's own mask.

    Raises:
        ValueError: the cell has no routers or no trained weights; a text is empty or longer than
            the model's context.
    """
    if cell.method.name != "focus":
        raise ValueError(f"--experiment: {cell.name} has no groups; name one of method focus")
    built = trained.build(cell, seed, chosen)
    found = []
    for title, text in texts.items():
        ids = built.tokenizer(text.strip(), return_tensors="pt")["input_ids"][0].long()
        how = f"{cell.model}, experiment {cell.name}, seed {seed}, {len(ids)} tokens"
        found.append(capture(built.model, built.tokenizer, ids, title, how, layers,
                             **built.method.mask(None)))  # fmt: skip
    return found


def described(cell: Experiment, seed: int) -> str:
    """Whose groups a page shows, and how to make one of others, in HTML."""
    config = FocusSettings(**cell.method.fields).config
    papers = "the paper's setup, with " if config == focus.FocusConfig.paper() else ""
    command = "python -m experiments.stages.view --experiment NAME --out PAGE.html"
    return (f"Routers of experiment <code>{cell.name}</code> ({cell.model}, seed {seed}): {papers}"
            f"{config.num_groups} groups and one routing a {ROUTED[config.routers]}. For "
            f"another trained experiment: <code>{command}</code>.")  # fmt: skip


def page(passages: list[dict[str, Any]], routers: str) -> str:
    """Passages as one HTML page that needs no network: whose groups they are, tokens coloured by
    group, layers side by side, and what each token can attend to."""
    told = json.dumps(passages, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = told.replace("<", "\\u003c")  # a text may hold </script>
    template = TEMPLATE.read_text(encoding="utf-8").replace("<!--routers-->", routers)
    return template.replace("/*passages*/[]", data)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.stages.view")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", help="a text of your own")
    source.add_argument("--file", type=Path, help="a file with one")
    parser.add_argument("--experiment", default="paper", help="a trained cell (default: paper)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=5, help="so many, evenly (default: 5)")
    parser.add_argument("--out", type=Path, help="where the page goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
