"""Keys that a query meets word for word: those that follow an earlier reading of its last tokens.

Learned groups find what is alike; a passage that is being copied, a name that comes again, needs
the very place. A key goes by the n-gram before it, a query by the n-gram that it ends: where the
two are equal, the key follows an earlier reading of what the query has just read (what induction
heads look for). Not in the paper.

Shape suffixes: B batch, T tokens, M queries, E keys of a query, N candidates.
"""

from __future__ import annotations

import numpy as np
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
    find = _as_one if torch.compiler.is_compiling() else _keys_after_ngrams
    found: Tensor = find(ids_BT, longest, count, window, queries, real_BT)
    return found


def _keys_after_ngrams(ids_BT: Tensor, longest: int, count: int, window: int, queries: int,
                       real_BT: Tensor | None) -> Tensor:  # fmt: skip
    if ids_BT.shape[1] <= window:
        return ids_BT.new_full((len(ids_BT), queries, count), NONE, dtype=torch.int64)
    real = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
    if queries > FEW:
        found = _of_many(ids_BT, real, longest, count, window, queries)
    else:
        ends = range(ids_BT.shape[1] - queries + 1, ids_BT.shape[1] + 1)
        one = [_of_one(ids_BT[:, :end], real[:, :end], longest, count, window) for end in ends]
        found = torch.cat(one, 1)
    return _first_different(found, count)


# Sizes within depend on ids, at each of which torch.compile would break its graph.
_as_one = torch.library.custom_op("focus::keys_after_ngrams", _keys_after_ngrams, mutates_args=())


@_as_one.register_fake
def _(ids_BT: Tensor, longest: int, count: int, window: int, queries: int,
      real_BT: Tensor | None) -> Tensor:  # fmt: skip
    return ids_BT.new_empty((len(ids_BT), queries, count), dtype=torch.int64)


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
        own = _ranks(_before(ids, back))
        numbers = _ranks(numbers * own.numel() + own)
        candidates.append(_latest(numbers, whole, real, count, window, queries))
    return torch.cat(candidates[::-1], -1)


def _ranks(x: Tensor) -> Tensor:
    """Of each entry, how many different smaller values there are."""
    if x.is_cpu:
        return torch.unique(x, return_inverse=True)[1]
    return ranks_by_sorting(x)


def ranks_by_sorting(x: Tensor) -> Tensor:
    """The same without a wait for the device, which ``torch.unique`` makes to know its size."""
    values, order = x.flatten().sort()
    rank = pad((values[1:] != values[:-1]).cumsum(0), (1, 0))
    return torch.empty_like(rank).scatter_(0, order, rank).view_as(x)


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


class NgramIndex:
    """The token ids of a cache, for what its next tokens meet."""

    def __init__(self) -> None:
        self.ids: Tensor | None = None  # (B, T)
        self.real: Tensor | None = None  # (B, T) bool; None: all are

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return 0 if self.ids is None else self.ids.shape[1]

    def extend(self, ids_BM: Tensor, real_BM: Tensor | None, longest: int, count: int,
               window: int) -> Tensor:  # fmt: skip
        """Appends tokens and finds what each of them meets: :func:`keys_after_ngrams` of all tokens
        so far. A few on a CPU, where a look at an id waits for nothing, are looked up one by one.
        """
        if real_BM is not None or self.real is not None:
            new = torch.ones_like(ids_BM, dtype=torch.bool) if real_BM is None else real_BM
            before = new.new_ones(len(new), self.seen) if self.real is None else self.real
            self.real = torch.cat([before, new], 1)
        self.ids = ids_BM.clone() if self.ids is None else torch.cat([self.ids, ids_BM], 1)
        queries = ids_BM.shape[1]
        if queries > FEW or ids_BM.device.type != "cpu":
            return keys_after_ngrams(self.ids, longest, count, window, queries, self.real)
        real = [None] * len(ids_BM) if self.real is None else self.real.numpy()
        ends = range(self.seen - queries, self.seen)
        found = [[_of_word(*row, end, longest, count, window) for end in ends]
                 for row in zip(self.ids.numpy(), real, strict=True)]  # fmt: skip
        return torch.tensor(found, device="cpu")

    def crop(self, seen: int) -> None:
        """Forgets all but the first ``seen`` tokens."""
        if self.ids is None or seen >= self.seen:
            return
        self.ids = self.ids[:, :seen] if seen else None
        self.real = self.real[:, :seen] if seen and self.real is not None else None

    def select(self, index: Tensor) -> None:
        """Keeps the sequences named, in that order; one may be named several times."""
        if self.ids is None:
            return
        index = index.to(self.ids.device)
        self.ids = self.ids.index_select(0, index)
        self.real = None if self.real is None else self.real.index_select(0, index)


def _of_word(ids: np.ndarray, real: np.ndarray | None, end: int, longest: int, count: int,
             window: int) -> list[int]:  # fmt: skip
    """What the token at ``end`` of one text (T) meets: the few places of its last token are looked
    through, not the text again for each length."""
    at = np.flatnonzero(ids[: max(0, end - window)] == ids[end]) + 1  # keys after its last token
    found: list[int] = []
    if real is not None:
        at = at[real[at]]
    for back in range(min(longest, end + 1)):
        at = at[at > back]
        at = at[ids[at - 1 - back] == ids[end - back]]
        if real is not None:
            at = at[real[at - 1 - back] & real[end - back]]
        if not len(at):
            break
        found = [*at[: -count - 1 : -1].tolist(), *found]
    return [*dict.fromkeys(found), *[NONE] * count][:count]
