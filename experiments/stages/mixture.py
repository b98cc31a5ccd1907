"""Training texts of several kinds: as many tokens of each source, cut from many documents.

Reads the fetched sources of ``mixture.sources`` (fetching what lacks), writes
data/mixture/train.npz and corpus.json. Of ``corpus.source`` it takes what the corpus stage put on
the training side; of others their own training side where they have sides, else all but every
``corpus.test_every``-th document; and nothing that the corpus holds out. Routers that are trained
on one kind of text know little about another (docs/log.md); trials ask for these texts with
``retrofit.texts: mixture``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from typing import Any

from rich.progress import track
from transformers import PreTrainedTokenizerBase

from experiments import data, models, record, sources, texts
from experiments import settings as settings_module
from experiments.blocks import MixtureSettings
from experiments.settings import Settings
from experiments.stages import corpus

Titled = list[tuple[str, list[int]]]


def main() -> int:
    """Builds the mixture of params.yaml; exit status 1 and the reason where it cannot be built."""
    try:
        manifest = build(settings_module.load())
    except ValueError as error:
        print(f"mixture: {error}", file=sys.stderr)
        return 1
    for name, tokens in manifest["tokens"].items():
        print(f"mixture: {name}: {tokens:,} tokens")
    return 0


def build(settings: Settings) -> dict[str, Any]:
    """Writes the mixture; what corpus.json holds.

    Raises:
        ValueError: a source cannot be had, or has too little text.
    """
    how, listed = settings.mixture, sources.sources()
    tokenizer = models.load_tokenizer(settings.model.name)
    out = held_out(settings)
    pieces: Titled = []
    counts = {}
    for name in how.sources:
        if name == settings.corpus.source:
            documents = [(each.title, each.tokens.tolist()) for each in data.load_split("train")]
        else:
            source = sources.find(name, listed)
            sources.fetch(source, allow_unpinned=settings.fetch.allow_unpinned)
            documents = training_side(source, settings, tokenizer, out)
        taken = cut(documents, how, name)
        counts[name] = sum(len(tokens) for _, tokens in taken)
        pieces.extend((f"{name}: {title}", tokens) for title, tokens in taken)
    data.MIXTURE.mkdir(parents=True, exist_ok=True)
    data.save_split(data.MIXTURE / "train.npz", pieces)
    digest = hashlib.sha256((data.MIXTURE / "train.npz").read_bytes()).hexdigest()
    manifest = {"tokens": counts, "tokenizer": settings.model.name, "train_sha256": digest}
    record.write_json(data.MIXTURE / "corpus.json", manifest)
    return manifest


def training_side(source: sources.Source, settings: Settings,
                  tokenizer: PreTrainedTokenizerBase, out: list[texts.Text]) -> Titled:  # fmt: skip
    """Training documents of a source, none of them a book of ``out``, in a fixed order, as many as
    are needed."""
    found = texts.read(sources.ROOT / source.name, source.layout)
    sides = any(text.split for text in found)
    found = [text for text in found if not sides or text.split == "train"]
    stay, _, _ = texts.distinct(found, settings.corpus.max_overlap)
    stay = texts.without(stay, out, settings.corpus.max_overlap)
    ordered = sorted(stay, key=corpus.fingerprint)
    if not sides:
        every = settings.corpus.test_every
        ordered = [text for n, text in enumerate(ordered, 1) if n % every]
    return list(tokenised(ordered, settings.mixture, tokenizer, source.name))


def held_out(settings: Settings) -> list[texts.Text]:
    """What the corpus stage put on the validation and test sides."""
    sides = data.manifest().get("splits", {})
    files = {row["file"] for name in ("validation", "test") if name in sides
             for row in sides[name]["list"]}  # fmt: skip
    if not files:
        return []
    source = sources.find(settings.corpus.source, sources.sources())
    found = texts.read(sources.ROOT / source.name, source.layout)
    return [text for text in found if text.file in files]


def tokenised(ordered: list[texts.Text], how: MixtureSettings, tokenizer: PreTrainedTokenizerBase,
              name: str) -> Iterable[tuple[str, list[int]]]:  # fmt: skip
    """Documents of at least a piece, until there is enough for :func:`cut`."""
    most = how.tokens // how.piece
    for text in track(ordered, f"mixture: tokenising {name}", disable=not sys.stderr.isatty()):
        tokens = tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) >= how.piece:
            most -= 1
            yield text.title, tokens
        if most == 0:
            return


def cut(documents: Titled, how: MixtureSettings, name: str) -> Titled:
    """The first tokens of every document, whole pieces, evenly, ``how.tokens`` in all.

    Raises:
        ValueError: there is too little text.
    """
    taken = [0] * len(documents)
    wanted = how.tokens // how.piece
    room = [len(tokens) // how.piece for _, tokens in documents]
    if sum(room) < wanted:
        raise ValueError(
            f"mixture.tokens: {how.tokens} asked for, {name} has {sum(room) * how.piece} in "
            f"training documents of at least {how.piece} tokens; lower it"
        )
    while wanted:
        for number, most in enumerate(room):
            if wanted and taken[number] < most:
                taken[number], wanted = taken[number] + 1, wanted - 1
    return [(title, tokens[: n * how.piece])
            for (title, tokens), n in zip(documents, taken, strict=True) if n]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
