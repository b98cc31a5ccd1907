"""What a token's group tells of the token: mutual information, beyond chance, with its part of
speech, the token itself, its place and how frequent it is (paper: Section 5). The groups are kept,
so that those of another seed or training can be held against them.

Shapes: D documents, T tokens.
"""

from __future__ import annotations

import string

import numpy as np
import torch
from sklearn.metrics import adjusted_mutual_info_score

from experiments.readings.contents import states
from experiments.readings.subject import SOFT, Rows, Subject
from experiments.settings import Information
from experiments.texts import speech

AXES = ("texts",)
CLASSES = 8  # equal spans of places, and of ranks
# Of groups, so that no reader takes them for a number; 336 more are of the extended Latin alphabet.
LETTERS = string.ascii_letters + "".join(map(chr, range(0x100, 0x250)))


def rows(subject: Subject, reading: Information, name: str) -> Rows:
    """A row a document and layer: adjusted mutual information of groups and labels (0 is chance, 1
    that each tells the other), and the groups of all tokens."""
    documents = subject.documents(name)
    ids = torch.cat([windows[:1] for _, windows in documents])
    known = [labels(subject, row.numpy()) for row in ids]
    found = []
    for layer, (groups, _) in enumerate(states(subject, ids)):
        for place, (which, _) in enumerate(documents):
            own = groups[place].numpy()
            told = {about: adjusted_mutual_info_score(each, own)
                    for about, each in known[place].items()}  # fmt: skip
            letters = "".join(LETTERS[group] for group in own)
            found.append(subject.row(SOFT, **which, layer=layer, **told, groups=letters))
    return found


def labels(subject: Subject, ids: np.ndarray) -> dict[str, np.ndarray]:
    """What a token of ids (T,) can be told apart by, each (T,).

    ``frequency`` are classes of the token's number: a byte-pair vocabulary is numbered by how
    frequent the pair was when it was merged.
    """
    named = np.unique(speech.categories(subject.tokenizer, ids.tolist()), return_inverse=True)[1]
    bounds = np.quantile(ids, np.arange(1, CLASSES) / CLASSES)
    return {"speech": named, "token": ids, "position": np.arange(len(ids)) * CLASSES // len(ids),
            "frequency": np.digitize(ids, bounds)}  # fmt: skip
