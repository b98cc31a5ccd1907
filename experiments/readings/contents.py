"""What groups hold: tokens by part of speech, beside k-means of the hidden states, groups by token
identity and groups at random (paper: Section 5).

Shapes: D documents, T tokens, E model dimension, K groups.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from scipy.cluster.vq import kmeans2, vq
from torch import Tensor

from experiments import trained
from experiments.readings.subject import SOFT, Rows, Subject
from experiments.settings import Contents
from experiments.texts import speech

AXES = ("texts",)
TOP = 6  # tokens that are named
Layer = tuple[Tensor, Tensor]  # groups (D, T), hidden states (D, T, E)


def rows(subject: Subject, reading: Contents, name: str) -> Rows:
    """A row a document, layer, way to group and group: how many tokens of each category."""
    documents = subject.documents(name)
    ids = torch.cat([windows[:1] for _, windows in documents])
    spoken = [speech.categories(subject.tokenizer, row.tolist()) for row in ids]
    learnt_on = torch.cat(trained.calibration(subject.cell, subject.seed, subject.chosen))
    found, known = [], states(subject, learnt_on)
    for layer, (groups, hidden) in enumerate(states(subject, ids)):
        count = subject.method.config.num_groups
        clusters = nearest(hidden, known[layer][1], count)
        for by, grouping in ways(groups, clusters, ids, count).items():
            for place, (which, _) in enumerate(documents):
                for group, own in held(grouping[place], spoken[place], ids[place], subject).items():
                    row = {**which, "layer": layer, "by": by, "group": group, **own}
                    found.append(subject.row(SOFT, **row))
    return found


def states(subject: Subject, ids: Tensor) -> list[Layer]:
    """Groups (of keys, of the first key head) and router inputs of every layer, of documents
    (D, T)."""
    return [(logits[:, -1, 0].argmax(-1), hidden) for logits, hidden in subject.routed(ids)]


def nearest(hidden: Tensor, learnt_on: Tensor, count: int) -> np.ndarray:
    """K-means clusters (D, T) of hidden states, whose means are those of training windows: the same
    clusters for every reading."""
    points, theirs = (torch.nn.functional.layer_norm(each, each.shape[-1:]).flatten(0, 1).numpy()
                      for each in (hidden, learnt_on))  # fmt: skip
    means, _ = kmeans2(theirs, count, minit="++", rng=np.random.default_rng(0))
    return vq(points, means)[0].reshape(hidden.shape[:2])


def ways(groups: Tensor, clusters: np.ndarray, ids: Tensor, count: int) -> dict[str, np.ndarray]:
    """Ways to put the same tokens into as many groups, each (D, T)."""
    learnt = groups.numpy()
    return {
        "groups": learnt,
        "kmeans": clusters,
        "token": (ids % count).numpy(),
        "permuted": np.random.default_rng(0).permuted(learnt, axis=1),
    }


def held(grouping: np.ndarray, spoken: list[str], ids: Tensor,
         subject: Subject) -> dict[int, dict[str, Any]]:  # fmt: skip
    """By group: tokens, those of each category, and the most frequent ones."""
    found = {}
    for group in np.unique(grouping):
        members = np.flatnonzero(grouping == group)
        counts = Counter(spoken[place] for place in members)
        common = Counter(int(ids[place]) for place in members).most_common(TOP)
        named = " ".join(subject.tokenizer.decode([each]).strip() for each, _ in common)
        found[int(group)] = {"members": len(members), "top": named,
                             **{name: counts.get(name, 0) for name in speech.NAMES}}  # fmt: skip
    return found
