"""Books -> tokens: cleaned, split by book, tokenised once for all stages.

Reads data/sources/<corpus.source>/, writes data/corpus/{train,validation,test}.npz and
corpus.json, which tells every document's tokens and sha256, and what was left out and why.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.progress import track
from transformers import PreTrainedTokenizerBase

from experiments import data, models, record, sources, texts
from experiments import settings as settings_module
from experiments.settings import CorpusSettings, Settings
from experiments.texts import Dropped, Text

Tokenised = tuple[Text, list[int]]


def build(
    settings: Settings, root: Path = sources.ROOT, folder: Path = data.FOLDER
) -> dict[str, Any]:
    """Writes the corpus; what corpus.json holds.

    Raises:
        ValueError: files are missing, or too few books are long enough for the protocol.
    """
    source = sources.find(settings.corpus.source, sources.sources())
    found = texts.read(root / source.name, source.layout)
    stay, dropped, overlap = texts.distinct(found, settings.corpus.max_overlap)
    tokenizer = models.load_tokenizer(settings.model.name, root)
    long, short = tokenise(stay, tokenizer, settings.corpus.min_tokens)
    splits = split(long, settings.corpus)
    check(splits, settings)
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in splits.items():
        pairs = [(text.title, tokens) for text, tokens in documents]
        data.save_split(folder / f"{name}.npz", pairs)
    manifest = {
        "source": settings.corpus.source,
        "licence": source.licence,
        "tokenizer": settings.model.name,
        "documents_read": len(found),
        "largest_overlap_of_two_documents": round(overlap, 4),
        "splits": {name: describe(documents) for name, documents in splits.items()},
        "left_out": [vars(item) for item in (*dropped, *short)],
    }
    record.write_json(folder / "corpus.json", manifest)
    return manifest


def tokenise(
    found: Iterable[Text], tokenizer: PreTrainedTokenizerBase, min_tokens: int
) -> tuple[list[Tokenised], list[Dropped]]:
    """Tokens of every document that has at least `min_tokens`; and the others."""
    long: list[Tokenised] = []
    short: list[Dropped] = []
    for text in track(list(found), "corpus: tokenising", disable=not sys.stderr.isatty()):
        tokens = tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) < min_tokens:
            short.append(Dropped(text.title, f"{len(tokens)} tokens, fewer than {min_tokens}"))
        else:
            long.append((text, tokens))
    return long, short


def split(documents: list[Tokenised], how: CorpusSettings) -> dict[str, list[Tokenised]]:
    """Documents by side: the source's own where it has them, else by place in a fixed order.

    The order is that of the sha256 of the texts: it depends on neither names nor machine, and no
    side gets all the comedies because they come first in the alphabet.
    """
    ready: dict[str, list[Tokenised]] = {name: [] for name in data.SPLITS}
    ordered = sorted(documents, key=lambda item: fingerprint(item[0]))
    if any(text.split for text, _ in documents):
        for item in ordered:
            ready[item[0].split or "train"].append(item)
    else:
        held = ordered[how.test_every - 1 :: how.test_every]
        others = [item for item in ordered if item not in held]
        ready["test"] = held
        ready["validation"] = others[how.validation_every - 1 :: how.validation_every]
        ready["train"] = [item for item in others if item not in ready["validation"]]
    return {name: items[: how.max_documents] for name, items in ready.items()}


def fingerprint(text: Text) -> str:
    """sha256 of a document's cleaned text."""
    return hashlib.sha256(text.text.encode()).hexdigest()


def check(splits: dict[str, list[Tokenised]], settings: Settings) -> None:
    """Raises ValueError where a side lacks documents that the settings ask for."""
    held_out = max(settings.protocol.documents, settings.leak.documents)
    for name, wanted in (("train", 1), ("test", held_out)):
        if len(splits[name]) < wanted:
            raise ValueError(
                f"corpus.source: {settings.corpus.source} gives {len(splits[name])} {name} "
                f"documents of at least {settings.corpus.min_tokens} tokens, but {wanted} are "
                "needed; lower protocol.documents, leak.documents, corpus.min_tokens or "
                "corpus.test_every"
            )


def describe(documents: list[Tokenised]) -> dict[str, Any]:
    """A split's entry in corpus.json."""
    rows = [
        {"title": text.title, "file": text.file, "tokens": len(tokens),
         "characters": len(text.text), "sha256": fingerprint(text)}
        for text, tokens in documents
    ]  # fmt: skip
    return {"documents": len(rows), "tokens": sum(row["tokens"] for row in rows), "list": rows}


def main() -> int:
    """Builds the corpus of params.yaml; exit status 1 and the reason where it cannot be built."""
    try:
        manifest = build(settings_module.load())
    except ValueError as error:
        print(f"corpus: {error}", file=sys.stderr)
        return 1
    for name, part in manifest["splits"].items():
        print(f"corpus: {name}: {part['documents']} documents, {part['tokens']:,} tokens")
    for item in manifest["left_out"]:
        print(f"corpus: left out {item['title']}: {item['reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
