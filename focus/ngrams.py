"""Keys that a query meets word for word: those that follow an earlier reading of its last tokens.

Learned groups find what is alike; a passage that is being copied, a name that comes again, needs
the very place. A key goes by the n-gram before it, a query by the n-gram that it ends: where the
two are equal, the key follows an earlier reading of what the query has just read (what induction
heads look for). N-grams are hashed into groups, which stand beside the learned ones; other n-grams
of the same group come along, one pair in ``ngram_groups``. Not in the paper.

Shape suffixes: B batch, T tokens, H query heads or routers, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.config import FocusConfig
from focus.routing import Memberships

NONE = -1  # stands before the first token, and for padding
# A polynomial of the ids, then Knuth's multiplicative hashing; the products stay below 2**63.
FACTOR, PRIME, BITS = 0x9E3779B1, 1_000_003, 31


def ngram_groups(ids_BT: Tensor, order: int, groups: int, real_BT: Tensor | None = None) -> Tensor:
    """Group (B, T + 1), int64 in [0, groups), of the n-gram that ends before each token and of the
    one that ends with the last: what a key joins is at its own place, what a query looks into at
    the next.

    Args:
        ids_BT: token ids, int64.
        order: tokens n of an n-gram.
        groups: groups that n-grams are hashed into.
        real_BT: bool, False for padding, whose id does not count; None: all are real.
    """
    ids = ids_BT if real_BT is None else ids_BT.masked_fill(~real_BT, NONE)
    padded = torch.nn.functional.pad(ids, (order, 0), value=NONE)
    mixed = torch.zeros_like(padded[:, : ids.shape[1] + 1])
    for place in range(order):
        part = padded[:, place : place + ids.shape[1] + 1] + 2
        mixed = (mixed * PRIME + part) % 2**BITS
    return ((mixed * FACTOR) % 2**32 >> 8) % groups


def with_ngrams(found: Memberships, ended_BT: Tensor, config: FocusConfig) -> Memberships:
    """The memberships with the groups of n-grams behind the learned ones.

    Args:
        found: learned groups of the tokens, (B, H, T, K).
        ended_BT: (B, T + 1), as :func:`ngram_groups` gives it for the same tokens.
        config: gives ``ngram_groups``.
    """
    keys = found.query if found.key is None else found.key
    looked, joined = ended_BT[:, 1:], ended_BT[:, :-1]
    return Memberships(_beside(found.query, looked, config.ngram_groups),
                       _beside(keys, joined, config.ngram_groups))  # fmt: skip


def _beside(learned_BHTK: Tensor, groups_BT: Tensor, count: int) -> Tensor:
    own = torch.nn.functional.one_hot(groups_BT, count).bool().unsqueeze(1)
    return torch.cat([learned_BHTK, own.expand(-1, learned_BHTK.shape[1], -1, -1)], -1)
