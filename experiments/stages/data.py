"""Brings what an experiment needs: its model and texts, by data/plan/<experiment>/data.json.

`python -m experiments.stages.data EXPERIMENT` fetches the sources, makes the texts that are not
there as they should be, and writes data/ready/<experiment>/train.json and read.json: fingerprints
of the contents that training and reading see. Of prefill and continuation it makes the data alone,
and of experiments that they time, where these are not trained yet; other measurements need none.

What this machine cannot train, and is not trained yet, it refuses before it fetches anything.

It is a stage by experiment since DVC cannot tell which texts an experiment needs: blocks of
params.yaml inherit from one another. Training depends on the fingerprints, so a change of the
cleaning that leaves an experiment's texts as they are trains nothing again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments import imports, plans, settings, sources, texts, trained
from experiments.command import reported
from experiments.record import read_json, write_json
from experiments.settings import Settings, machine
from experiments.sources.catalogue import TINY
from experiments.sources.files import sha256
from experiments.texts import corpus

FOLDER = Path("data/ready")
CODE = tuple(
    Path(corpus.__file__).with_name(f"{name}.py")
    for name in ("cleaning", "corpus", "overlap", "shards")
)
MADE = "made.json"  # beside the sides of a text: what it was made from


@reported("data")
def main(arguments: list[str] | None = None) -> None:
    """The command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="an experiment of params.yaml, or a measurement")
    prepare(parser.parse_args(arguments).name, settings.load())


def prepare(name: str, chosen: Settings) -> None:
    """Makes the data of an experiment or measurement; see the module.

    Raises:
        ValueError: a source cannot be had, a text cannot be made, or this machine cannot train it.
    """
    if name in plans.WHOLE:
        plan = getattr(chosen, name)
        blocks = [cell.block for cell in map(chosen.cell, plan.experiments)
                  if not trained.is_trained(cell, cell.seeds[0], chosen)]  # fmt: skip
        for block in blocks:
            refuse_untrained(block, chosen)
        bring([plan.model])
        make([plan.texts], chosen)
        for block in blocks:
            prepare(block, chosen)
        return
    if name in plans.MEASUREMENTS:
        print(f"data: {name}: needs no model and no texts")
        return
    refuse_untrained(name, chosen)
    wanted = plans.of_data(name, chosen)
    named = [*wanted["models"], *wanted["benchmarks"]]
    bring(named)
    for each in wanted["models"]:
        refuse_without_config(each)
    make(wanted["texts"], chosen)
    fetched = {each: stamp(each) for each in named}
    for part, names in (("train", wanted["training"]), ("read", wanted["reading"])):
        sides = ("train", "validation") if part == "train" else texts.SIDES
        found = {each: {side: texts.fingerprint(each, side) for side in sides} for each in names}
        write_json(FOLDER / name / f"{part}.json", {"sources": fetched, "texts": found})


def refuse_untrained(block: str, chosen: Settings) -> None:
    """Raises ValueError, by field, where an experiment, or what it starts from, is yet to be
    trained and cannot be on this machine."""
    for cell in chosen.cells(block).values():
        for seed in cell.seeds:
            own = [(cell, seed)] if cell.trains else []
            for each, its_seed in [*trained.before(cell, seed, chosen), *own]:
                impossible = any(machine.reasons(each, started=False))
                if impossible and not trained.is_trained(each, its_seed, chosen):
                    machine.refuse(each, started=False)


def bring(names: Iterable[str]) -> None:
    """Fetches sources that are not there."""
    listed = sources.sources()
    for name in names:
        sources.fetch(sources.find(name, listed))


def make(names: Iterable[str], chosen: Settings) -> None:
    """Makes texts that are not there as their settings, sources and the code of now would make
    them."""
    for name in names:
        every = plans.texts([name], chosen)
        bring(dict.fromkeys(block["source"] for block in every.values()))
        made = {
            "texts": every, "code": imports.digits(CODE),
            "sources": {block["source"]: stamp(block["source"]) for block in every.values()},
        }  # fmt: skip
        path = corpus.ROOT / name / MADE
        if read_json(path) != made or not whole(path.parent):
            print(f"data: {name}: making", flush=True)
            corpus.build(name, chosen)
            write_json(path, made)


def refuse_without_config(model: str) -> None:
    """Raises ValueError where a folder that FOCUS_DATA gave for a model holds none."""
    folder = sources.ROOT / model
    if not model.startswith(TINY) and not (folder / "config.json").is_file():
        raise ValueError(f"{model} has no config.json; put the model's files into "
                         f"$FOCUS_DATA/{model}")  # fmt: skip


def whole(folder: Path) -> bool:
    """Whether a text's sides are as they were made."""
    manifest = read_json(folder / "texts.json") or {"sides": {}}
    written = {side: told["sha256"] for side, told in manifest["sides"].items()}
    there = {side: sha256(folder / f"{side}.jsonl") for side in texts.SIDES
             if (folder / f"{side}.jsonl").is_file()}  # fmt: skip
    return bool(there) and there == written


def stamp(source: str) -> Any:
    """What a fetched source was made from, equal on every machine."""
    return json.loads((sources.ROOT / source / "source.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
