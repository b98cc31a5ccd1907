"""Keys that a query meets word for word: those that follow an earlier reading of its last tokens.

Learned groups find what is alike; a passage that is being copied, a name that comes again, needs
the very place. A key goes by the n-gram before it, a query by the n-gram that it ends: where the
two are equal, the key follows an earlier reading of what the query has just read (what induction
heads look for). Each query takes a few such keys that have left its window, those of the longest
n-gram first and of these the latest, so that attention pays a constant a token for them, however
long the text. Not in the paper.

Shape suffixes: B batch, T tokens, M queries, E keys of a query, N candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

NONE = -1  # no such key
FEW = 8  # queries that are faster one by one than by sorting all that stands before them


def keys_after_ngrams(ids_BT: Tensor, longest: int, count: int, window: int, queries: int,
                      real_BT: Tensor | None = None) -> Tensor:  # fmt: skip
    """Positions (B, M, E) int64 of the keys that the last M tokens meet word for word; -1 where
    there are fewer.

    Of each length of n-gram, from the longest down to one token, the latest E keys are candidates;
    the first E different ones are taken (a back-off, as in models of n-grams).

    Args:
        ids_BT: token ids of all tokens so far, int64.
        longest: tokens of the longest n-gram that is looked for.
        count: E, the most keys of a query.
        window: keys nearer than this are left out: the mask keeps them anyway.
        queries: M.
        real_BT: bool, False for padding, which is in no n-gram; None: all are real.
    """
    real = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
    if queries > FEW:
        found = _of_many(ids_BT, real, longest, count, window, queries)
    else:
        ends = range(ids_BT.shape[1] - queries + 1, ids_BT.shape[1] + 1)
        one = [_of_one(ids_BT[:, :end], real[:, :end], longest, count, window) for end in ends]
        found = torch.cat(one, 1)
    return _first_different(found, count)


def _first_different(found_BMN: Tensor, count: int) -> Tensor:
    same = found_BMN.unsqueeze(-1) == found_BMN.unsqueeze(-2)
    again = same.tril(-1).any(-1)
    found = found_BMN.masked_fill(again, NONE)
    order = (found == NONE).int().argsort(dim=-1, stable=True)
    return found.gather(-1, order[..., :count])


def _before(tokens_BT: Tensor, back: int) -> Tensor:
    """(B, T + 1): what stands ``back`` places before the last one before each place, 0 if none."""
    return pad(tokens_BT, (back + 1, 0))[:, : tokens_BT.shape[1] + 1]


def _of_one(ids: Tensor, real: Tensor, longest: int, count: int, window: int) -> Tensor:
    """Candidates (B, 1, N) of the last token alone, without sorting."""
    tokens = ids.shape[1]
    position = torch.arange(tokens, device=ids.device)
    found, candidates = real & (position < tokens - window), []
    for back in range(longest):
        own, whole = _before(ids, back), _before(real, back)
        found = found & (own[:, :-1] == own[:, -1:]) & whole[:, :-1] & whole[:, -1:]
        taken = position.masked_fill(~found, NONE).topk(min(count, tokens)).values
        candidates.append(pad(taken, (0, count - taken.shape[1]), value=NONE))
    return torch.cat(candidates[::-1], -1).unsqueeze(1)


def _of_many(ids: Tensor, real: Tensor, longest: int, count: int, window: int,
             queries: int) -> Tensor:  # fmt: skip
    """Candidates (B, M, N) of the last M tokens."""
    numbers = torch.zeros_like(pad(ids, (1, 0)))
    whole, candidates = torch.ones_like(numbers, dtype=torch.bool), []
    for back in range(longest):
        whole = whole & _before(real, back)
        # Numbered anew for each length: small numbers, of which no two n-grams share one.
        own = torch.unique(_before(ids, back), return_inverse=True)[1]
        numbers = torch.unique(numbers * own.numel() + own, return_inverse=True)[1]
        candidates.append(_latest(numbers, whole, real, count, window, queries))
    return torch.cat(candidates[::-1], -1)


def _latest(numbers: Tensor, whole: Tensor, real: Tensor, count: int, window: int,
            queries: int) -> Tensor:  # fmt: skip
    """The latest E keys (B, M, E) for n-grams of one length: numbers (B, T + 1) of the n-gram
    before each token and of the last one, the same for the same; whole: whether there is one."""
    tokens = real.shape[1]
    position = torch.arange(tokens, device=real.device)
    # Keys in order of the n-gram before them, then of position; what nobody can ask for comes last.
    keys = numbers[:, :-1] * tokens + position
    keys = keys.masked_fill(~(whole[:, :-1] & real), torch.iinfo(keys.dtype).max).sort(1).values
    first = numbers[:, -queries:] * tokens
    left = position[tokens - queries :] - window  # the latest position that has left the window
    start = torch.searchsorted(keys, first)
    stop = torch.searchsorted(keys, first + left, right=True)
    at = stop.unsqueeze(-1) - 1 - torch.arange(count, device=real.device)
    found = keys.gather(1, at.clamp_min(0).flatten(1)).view_as(at) - first.unsqueeze(-1)
    none = (at < start.unsqueeze(-1)) | ~whole[:, -queries:, None] | (left < 0)[:, None]
    return found.masked_fill(none, NONE)
