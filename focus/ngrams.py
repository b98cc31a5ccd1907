"""Keys that a query meets word for word: those that follow an earlier reading of its last tokens.

Learned groups find what is alike; a passage that is being copied, a name that comes again, needs
the very place. A key goes by the n-gram before it, a query by the n-gram that it ends: where the
two are equal, the key follows an earlier reading of what the query has just read (what induction
heads look for). Not in the paper.

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
    """The token ids of a cache, and for each n-gram the keys that follow it, kept up to date.

    A step then looks up a few words where :func:`keys_after_ngrams` would look through the whole
    text; what it finds is the same. On a device other than the CPU, where asking for ids would wait
    for it, and for many tokens at once, that function is what looks.
    """

    def __init__(self) -> None:
        self.ids: Tensor | None = None  # (B, T)
        self.real: Tensor | None = None  # (B, T) bool; None: all are
        self.rows: list[_Row] = []

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return 0 if self.ids is None else self.ids.shape[1]

    def extend(self, ids_BM: Tensor, real_BM: Tensor | None, longest: int, count: int,
               window: int) -> Tensor:  # fmt: skip
        """Appends tokens and finds what each of them meets, as :func:`keys_after_ngrams` of all
        tokens so far."""
        self._append(ids_BM, real_BM)
        if self.ids is None:
            raise RuntimeError("nothing was appended")
        batch, queries = ids_BM.shape
        if queries > FEW or ids_BM.device.type != "cpu" or self.seen <= window:
            return keys_after_ngrams(self.ids, longest, count, window, queries, self.real)
        if not self.rows or self.rows[0].longest < longest:
            self.rows = [_Row(longest) for _ in range(batch)]
        found = []
        for b, row in enumerate(self.rows):
            real = None if self.real is None else self.real[b, row.seen :].tolist()
            row.extend(self.ids[b, row.seen :].tolist(), real)
            ends = range(self.seen - queries, self.seen)
            found.append([row.keys_after(end, longest, count, window) for end in ends])
        return torch.tensor(found, device="cpu")

    def _append(self, ids: Tensor, real: Tensor | None) -> None:
        if real is not None or self.real is not None:
            new = torch.ones_like(ids, dtype=torch.bool) if real is None else real
            before = new.new_ones(len(ids), self.seen) if self.real is None else self.real
            self.real = torch.cat([before, new], 1)
        self.ids = ids.clone() if self.ids is None else torch.cat([self.ids, ids], 1)

    def crop(self, seen: int) -> None:
        """Forgets all but the first ``seen`` tokens."""
        if self.ids is None or seen >= self.seen:
            return
        if seen == 0:
            self.ids, self.real, self.rows = None, None, []
            return
        self.ids = self.ids[:, :seen]
        self.real = None if self.real is None else self.real[:, :seen]
        for row in self.rows:
            row.crop(seen)

    def select(self, index: Tensor) -> None:
        """Keeps the sequences named, in that order; one may be named several times."""
        if self.ids is None:
            return
        index = index.to(self.ids.device)
        self.ids = self.ids.index_select(0, index)
        self.real = None if self.real is None else self.real.index_select(0, index)
        if self.rows:
            held, named = self.rows, index.tolist()
            self.rows = [held[b] if named.index(b) == at else held[b].copy()
                         for at, b in enumerate(named)]  # fmt: skip


class _Row:
    """One sequence: of each n-gram the latest key after it, and of each key the one before."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.ids: list[int] = []
        self.run: list[int] = []  # real tokens up to each, itself among them
        self.latest: dict[tuple[int, ...], int] = {}
        self.before: list[list[int]] = [[] for _ in range(longest)]

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return len(self.ids)

    def copy(self) -> _Row:
        """One that goes on by itself."""
        other = _Row(self.longest)
        other.ids, other.run, other.latest = self.ids[:], self.run[:], self.latest.copy()
        other.before = [each[:] for each in self.before]
        return other

    def extend(self, ids: list[int], real: list[bool] | None) -> None:
        """Appends tokens."""
        for at, token in enumerate(ids):
            position = self.seen
            is_real = real is None or real[at]
            run = self.run[-1] if self.run else 0
            for order, before in enumerate(self.before, 1):
                if not is_real or run < order:
                    before.append(NONE)
                    continue
                words = tuple(self.ids[position - order :])
                before.append(self.latest.get(words, NONE))
                self.latest[words] = position
            self.ids.append(token)
            self.run.append(run + 1 if is_real else 0)

    def crop(self, seen: int) -> None:
        """Forgets all but the first ``seen`` tokens."""
        while self.seen > seen:
            run, position = self.run.pop(), self.seen - 1
            self.ids.pop()
            for order, before in enumerate(self.before, 1):
                former = before.pop()
                if run <= order:  # no key after so many words
                    continue
                words = tuple(self.ids[position - order :])
                if former == NONE:
                    del self.latest[words]
                else:
                    self.latest[words] = former

    def keys_after(self, end: int, longest: int, count: int, window: int) -> list[int]:
        """What the token at ``end`` meets, ``count`` positions."""
        found: dict[int, None] = {}
        for order in range(min(longest, self.run[end]), 0, -1):
            at = self.latest.get(tuple(self.ids[end + 1 - order : end + 1]), NONE)
            while at > max(NONE, end - window):
                at = self.before[order - 1][at]
            for _ in range(count):
                if at == NONE:
                    break
                found[at] = None
                at = self.before[order - 1][at]
        return [*found, *[NONE] * count][:count]
