"""Whether distant words that belong together share a group: mentions of one name, expressions of
time; beside any longer word that comes again, and any two longer words; each beside random pairs
at the same distances.

Shapes: P pairs, H query heads, Hk key heads, T tokens, K groups.
"""

from __future__ import annotations

import numpy as np
import torch

import focus
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Affinity
from experiments.texts import links
from focus.routing import Memberships
from focus.state import attached

AXES = ("texts", "conditions")
DRAWS = 8  # random pairs beside each


@torch.no_grad()
def rows(subject: Subject, reading: Affinity, name: str, how: Condition) -> Rows:
    """A row a window, layer and link: the pairs, and the share of them, and of the random ones,
    that lie in a shared group, the mean over heads."""
    window, made = attached(subject.model).config.window, []
    every_window = [({**which, "part": part}, ids) for which, windows in subject.documents(name)
                    for part, ids in enumerate(windows)]  # fmt: skip
    for which, ids in every_window:
        with subject.entered(how):
            subject.model(ids[None].to(subject.model.device), use_cache=False)
            layers = sorted(focus.memberships(subject.model).items())
        words = links.found(subject.tokenizer, ids.tolist())
        for link in links.LINKS:
            own = links.pairs(link, words, window)
            others = links.moved(own, len(ids), DRAWS)
            for layer, members in layers if len(own) else ():
                share = {"shared": shared(members, own), "chance": shared(members, others)}
                told = {"layer": layer, "link": link, "pairs": len(own), **share}
                made.append(subject.row(how, **which, **told))
    return made


def shared(members: Memberships, pairs: np.ndarray) -> float:
    """Share of the pairs (P, 2), a query and a key each, that lie in a shared group; over heads."""
    asking = members.query[0].cpu()[:, pairs[:, 0]]
    keys = members.of_keys[0].cpu()[:, pairs[:, 1]]
    heads = max(len(asking), len(keys))
    asking, keys = (each.repeat_interleave(heads // len(each), 0) for each in (asking, keys))
    return float((asking & keys).any(-1).float().mean())
