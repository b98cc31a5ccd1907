"""Result files of ablations, and of what groups are and hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from tests.analysis.result_files import NOTHING, PAPER, ROUTERS, losses, record, write_read

DEFAULT = {**PAPER, "num_groups": 8}  # the rest is the library's
JOINT = {"name": "joint", "steps": 24, "context": 256, "weights": True, "mitigation": "sinkhorn"}


def write_ablation(root: Path, block: str, change: float, largest: float, *,
                   against: Sequence[str] = ("pretrained",), wobble: float = 1e-4,
                   regime: Any = ROUTERS, model: str = "smollm2-135m-instruct",
                   **fields: Any) -> None:  # fmt: skip
    """One setting of the paper's setup: its loss under the training gate, and its groups."""
    method = DEFAULT | fields
    known: dict[str, Any] = {"method": method, "regime": regime, "against": against,
                             "model": model}  # fmt: skip
    write_read(root, block, losses("soft", change=change, wobble=wobble), **known)
    write_groups(root, block, largest, wobble=1000 * wobble, **known)


def write_groups(root: Path, block: str, largest: float, *, wobble: float = 0.1, seed: int = 0,
                 **how: Any) -> None:  # fmt: skip
    """Percent of the tokens in the largest group, in two layers and six documents."""
    rows = [
        {"seed": seed, "condition": "soft", "budget": "own", "document": f"book {n}",
         "sha": f"{n:012x}", "layer": layer, "confidence": 0.9, "one_plus_cv2": 1.1,
         "largest_group": (largest + wobble * (n % 2 - 0.5)) / 100}
        for n in range(6) for layer in range(2)
    ]  # fmt: skip
    write_read(root, block, rows, reading="groups", kind="groups", **how)


def write_cure(root: Path, mitigation: str, largest: float, *, weights: bool = True,
               steps: int = 60, apart: float = 0.01, base: str = "stable",
               model: str = "smollm2-135m-instruct", **last: float) -> None:  # fmt: skip
    """A joint training that was watched: its groups on documents, and its trace."""
    block = base if mitigation == "sinkhorn" else f"{base}_softmax"
    block = block if weights else f"{base}_routers"
    cell = f"{block}-mitigation{mitigation}"
    regime = JOINT | {"mitigation": mitigation, "weights": weights, "steps": steps}
    known = {"method": DEFAULT, "regime": regime, "against": [base], "model": model}
    write_groups(root, block, largest, cell=cell, **known)
    folder = root / block / "train" / "seed0" / cell
    record(folder, texts="plays", seed=0, **known)
    first = {"largest_group": 0.2, "one_plus_cv2": 1.1, "alive": 8, "confidence": 0.9,
             "agreement": 0.95, "drift": 0.0, "shift": 0.0, "rank": 10.0}  # fmt: skip
    end = first | {"drift": 0.5, "shift": 0.5, "rank": 5.0} | last
    rows = [{"step": step, "layer": layer, **{name: value * (1 + apart * (layer - 1.5))
             for name, value in each.items()}}
            for step, each in ((1, first), (steps, end)) for layer in range(4)]  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "groups.csv", index=False)


CATEGORIES = ("punctuation", "determiners", "prepositions", "connectives", "verbs and pronouns",
              "content nouns", "modifiers", "other")  # fmt: skip


def write_contents(root: Path, pure: float, kmeans: float = 0.3, top: str = ", .",
                   category: str = "punctuation", even: int = 0, block: str = "held",
                   last: float | None = None, same: bool = False,
                   regime: Any = NOTHING) -> None:  # fmt: skip
    """Eight groups in each of three layers, the first of which holds a category, and that of the
    first layer its most frequent tokens; on both sides. ``last``: what k-means' group of the last
    layer holds of it; ``same``: other ways' groups have the tokens, too."""
    known = {"method": DEFAULT, "regime": regime}
    for reading in ("contents_search", "contents"):
        rows = []
        ways = {"groups": pure, "kmeans": kmeans, "token": 0.2, "permuted": 0.2}
        for n, layer in product(range(4), range(3)):
            for by, own in ways.items():
                for group in range(8):
                    members = 1000 + (even if group == 0 else 0)
                    pure_here = last if last and by == "kmeans" and layer == 2 else own
                    share = pure_here + 0.01 * (n % 2)
                    held = dict.fromkeys(CATEGORIES, 0)
                    held["other"] = round(members * (1 - share))
                    held[category if group == 0 else "content nouns"] += members - held["other"]
                    row = {"seed": 0, "condition": "soft", "budget": "own", "layer": layer,
                           "document": f"play {n}", "sha": f"{n:012x}", "by": by,
                           "group": group, "members": members,
                           "top": top if has_top(by, layer, group, same) else "of in"}  # fmt: skip
                    rows.append(row | held)
        write_read(root, block, rows, reading=reading, kind="contents", **known)


def has_top(by: str, layer: int, group: int, same: bool) -> bool:
    """Whether a group is the one whose most frequent tokens are the category's."""
    return layer == group == 0 and (same or by == "groups")


def write_information(root: Path, block: str, *by_document: str) -> None:
    """What groups tell of tokens, and the groups of each document, alike in two layers."""
    rows = [
        {"seed": 0, "condition": "soft", "budget": "own", "document": f"play {n}",
         "sha": f"{n:012x}", "layer": layer, "speech": 0.2 + 0.1 * n, "token": 0.3,
         "frequency": 0.1, "position": 0.0, "groups": groups}
        for n, groups in enumerate(by_document) for layer in (0, 1)
    ]  # fmt: skip
    write_read(root, block, rows, reading="information", kind="information")


def write_induction(root: Path, found: float, dearer: float, *, wobble: float = 0.01,
                    **how: Any) -> None:  # fmt: skip
    """Pairs that copying needs, without n-gram keys, in two layers: the share of full attention's
    weight that groups keep of them, and what a token costs more where they keep less."""
    rows = [
        {"seed": 0, "condition": "hard", "budget": "k2.multi_probe.causal", "K": 18, "top_k": 2,
         "probe": "multi_probe", "ngram": 0, "document": f"play {n}", "sha": f"{n:012x}",
         "apart": apart, "layer": layer, "shared": 0.13, "chance": 0.12, "weight": 0.1,
         "weight_shared": found + wobble * (n % 2), "weight_chance": 0.2, "by_word": 0.0,
         "met_nats": 1.0, "missed_nats": 1.0 + dearer + wobble * (n % 2), "tokens": 248,
         "nll": 500.0, "full_nll": 248.0}
        for n in range(6) for apart in (512, 1536) for layer in ("all", 0, 1)
    ]  # fmt: skip
    write_read(root, "recipe", rows, reading="induction", kind="induction", **how)


def write_affinity(root: Path, shared: dict[str, float], *, wobble: float = 0.01,
                   **how: Any) -> None:  # fmt: skip
    """Share of pairs in a shared group by link, where it is 0.1 by chance, in two layers."""
    rows = [
        {"seed": 0, "condition": "hard", "budget": "k2.multi_probe.causal", "K": 18, "top_k": 2,
         "probe": "multi_probe", "ngram": 0, "document": f"book {n}", "sha": f"{n:012x}",
         "part": part, "layer": layer, "link": link, "pairs": 20 + n, "chance": 0.1,
         "shared": share + wobble * (n % 2)}
        for n in range(6) for part in (0, 1) for layer in (0, 1) for link, share in shared.items()
    ]  # fmt: skip
    write_read(root, "recipe", rows, reading="affinity", kind="affinity", **how)


def write_picture(root: Path, keys: str, queries: str, further: str, **how: Any) -> None:
    """Which keys a head sees, in two layers, beside a window of two tokens and one sink."""
    rows = [
        {"seed": 0, "condition": "hard", "budget": "0.125", "K": 18, "top_k": 2, "ngram": 3,
         "window": 2, "sinks": 1, "document": "play 0", "sha": "0", "layer": layer, "head": 0,
         "tokens": len(keys), "keys": keys, "queries": queries, "further": further}
        for layer in (0, 1)
    ]  # fmt: skip
    write_read(root, "recipe", rows, reading="picture", kind="picture", **how)
