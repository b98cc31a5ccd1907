"""The past of one attention layer: sinks and recent tokens in order, older ones in grouped pages.

"Commit on exit": a token joins its page only after it has left the window of every query to come,
so pages need no mask, and the recent tokens, the sinks beside them, are one short masked call.

Shape suffixes: B batch, Hk key heads, R routings (1 or Hk), N tokens, D head dimension, K groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from focus.attention.checks import for_query_heads
from focus.attention.native import step
from focus.attention.pages import Page, Pages
from focus.attention.recent import Block, Recent

MARGIN = 32  # recent tokens beyond the window, so that a short crop undoes no commit
SLACK = 128  # further ones that gather before the next commit
# Reading so many bytes takes as long as one more call (with the compiled step: as one more run of
# keys in the same call): below it, pages do not pay.
CALL_BYTES = {"compiled": 64 * 2**10, "cpu": 256 * 2**10, "cuda": 16 * 2**20}


@dataclass(frozen=True)
class Rule:
    """What the hard mask keeps, as far as the past needs to know.

    window, sinks: as in :func:`focus.dense_attention`; limit: the model's own sliding window, or
    None; groups: K; query_groups, key_groups: how many a query and a key belong to; together: query
    heads that read a key head's pages each on its own; extra: whether queries may be given further
    keys, which must then be found in the pages; capped: whether logits are soft-capped, which the
    compiled step does not do.
    """

    window: int
    sinks: int
    limit: int | None
    groups: int
    query_groups: int
    key_groups: int
    together: int = 1
    extra: bool = False
    capped: bool = False

    @property
    def always_meet(self) -> bool:
        """Whether any query shares a group with any key."""
        return self.query_groups + self.key_groups > self.groups

    def pages_met(self) -> tuple[int, float]:
        """How many sets of key groups meet a query's, and their share of all sets."""
        total = math.comb(self.groups, self.key_groups)
        met = total - math.comb(self.groups - self.query_groups, self.key_groups)
        return met, met / total


class Past:
    """Everything that a layer has seen, filed for decoding.

    The first tokens are kept as they came (``prefix``) and filed when others follow, so a forward
    pass that nobody continues costs no copy.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.record = False  # keep what has expired, for a crop to come
        self.clear()

    @property
    def batch(self) -> int:
        """Sequences."""
        return 0 if self.seen == 0 else len(self._some_key())

    @property
    def device(self) -> torch.device:
        """Where keys and values are."""
        return self._some_key().device

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self._some_key().dtype

    def _some_key(self) -> Tensor:
        return self.near().key if self.prefix is None else self.prefix.key

    def clear(self) -> None:
        """Forgets everything."""
        self.seen = 0
        self.real: Tensor | None = None  # (B, seen) bool; None while every token is real
        self.prefix: Block | None = None
        self.recent: Recent | None = None
        self.pages: list[list[Pages]] = []  # of each sequence, of each routing
        self.paged = False
        self.dropped = -1  # greatest position that no crop can bring back

    def append(self, key: Tensor, value: Tensor, groups: Tensor, real: Tensor | None) -> None:
        """Adds tokens: key, value (B, Hk, N, D), groups (B, R, N, K), real (B, N) or None."""
        plain = real is None and self.real is None
        if plain and self.seen >= max(1, self.rule.sinks):
            self._file().append(key, value, groups, None)
        else:
            block = self._block(key, value, groups, real)
            if self.seen == 0:
                self.prefix = block
            else:
                self._file().append(block.key, block.value, block.groups, block.readable)
        self.seen += key.shape[2]

    def _block(self, key: Tensor, value: Tensor, groups: Tensor, real: Tensor | None) -> Block:
        batch, count = key.shape[0], key.shape[2]
        readable = key.new_ones(batch, count, dtype=torch.bool) if real is None else real
        if real is not None or self.real is not None:
            before = readable.new_ones(batch, self.seen) if self.real is None else self.real
            self.real = torch.cat([before, readable], 1)
            # 0 * NaN is NaN: what stands in padding must not reach a real row.
            hidden = ~readable[:, None, :, None]
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
            groups = groups & ~hidden
        sink = self._sinks(self.seen, self.seen + count, readable)
        return Block(key, value, groups | sink[:, None, :, None], readable, sink)

    def _sinks(self, start: int, stop: int, like: Tensor) -> Tensor:
        """(B, stop - start) bool: which tokens are sinks."""
        if self.real is None:
            position = torch.arange(start, stop, device=like.device)
            return (position < self.rule.sinks).expand(len(like), -1)
        sink = self.real & (self.real.cumsum(1) <= self.rule.sinks)
        return sink[:, start:stop]

    def _file(self) -> Recent:
        """Brings tokens that have left the window to their pages, once enough of them have."""
        if self.prefix is not None:
            self._file_prefix(self.prefix, self._ready())
        recent = self.near()
        exits, first = self._ready() - recent.first, recent.first
        if exits <= SLACK:
            return recent
        if self.paged or self._pays(recent.key, recent.groups, exits):
            block = recent.block()
            block.sink = self._sinks(first, self.seen, block.readable)
            self._commit(block.part(0, exits), first)
            recent.drop(exits)
        elif self._expired() - first > SLACK:
            self.dropped = self._expired() - 1
            recent.drop(self._expired() - first)
        return recent

    def near(self) -> Recent:
        """Sinks and recent tokens; the tokens appended last are always among them."""
        if self.prefix is not None:
            self._file_prefix(self.prefix, 0)
        if self.recent is None:
            raise RuntimeError("nothing was appended yet")
        return self.recent

    def _file_prefix(self, block: Block, exits: int) -> None:
        self.prefix = None
        batch, routings = block.groups.shape[:2]
        self.pages = [[Pages(self.rule.groups) for _ in range(routings)] for _ in range(batch)]
        if exits <= 0 or not self._pays(block.key, block.groups, exits):
            exits = 0
        self.recent = Recent(block.part(exits, len(block)), exits, self.rule.sinks)
        if exits:
            self._commit(block.part(0, exits), 0)

    def _ready(self) -> int:
        """Tokens that no query to come has in its window, with a margin."""
        return self.seen - self.rule.window - MARGIN

    def _expired(self) -> int:
        """Tokens that no query to come may read, for the model's own window, and may be dropped."""
        if self.rule.limit is None or self.record:
            return 0
        return max(0, self.seen - self.rule.limit + 1)

    def _pays(self, key: Tensor, groups: Tensor, count: int) -> bool:
        """Whether the calls that pages take cost less than reading ``count`` keys under a mask; key
        (B, Hk, N, D) and groups (B, R, N, K) for their shapes."""
        calls, share = (self.rule.together * each for each in self.rule.pages_met())
        size = 2 * key.shape[1] * key.shape[3] * key.element_size()
        compiled = not self.rule.capped and step.computes(key, None)
        price = CALL_BYTES["cuda" if key.is_cuda else "compiled" if compiled else "cpu"]
        if self.rule.limit is not None:
            count = min(count, self.rule.limit - self.rule.window)
        return count * (1 - share) * size > (1 + calls * groups.shape[1]) * price

    def _commit(self, block: Block, first: int) -> None:
        if self.recent is None:
            raise RuntimeError("a commit needs the recent tokens")
        self.paged = True
        self.recent.hold_sinks(block, first)
        paged = block.readable & ~block.sink
        expired = min(self._expired(), first + len(block))
        if expired > first:
            paged[:, : expired - first] = False
            self.dropped = max(self.dropped, expired - 1)
        heads = block.key.shape[1] // block.groups.shape[1]
        for b, routings in enumerate(self.pages):
            index = paged[b].nonzero().flatten()
            for r, pages in enumerate(routings if len(index) else ()):
                own = slice(r * heads, (r + 1) * heads)
                pages.add(block.key[b, own].index_select(1, index),
                          block.value[b, own].index_select(1, index),
                          block.groups[b, r].index_select(0, index), index + first,
                          self.record, self.rule.extra)  # fmt: skip

    def near_kept(self, groups: Tensor, extra: Tensor | None = None) -> Tensor:
        """Which near keys the last M tokens read: (B, R, M, N) bool, sinks first.

        groups: (B, R, M, K) bool, of the queries; R may be their heads. extra: (B, M, E) further
        keys of each, or None.
        """
        recent, rule = self.near(), self.rule
        query = torch.arange(self.seen - groups.shape[2], self.seen, device=groups.device)
        token = torch.arange(recent.first, self.seen, device=groups.device)
        distance = query[:, None] - token
        kept = (distance < rule.window).expand(*groups.shape[:2], -1, -1)
        if rule.always_meet:
            kept = torch.ones_like(kept)
        else:
            near = recent.groups[:, :, recent.slots : recent.high]
            near = for_query_heads(near, groups.shape[1])
            kept = kept | (groups.float() @ near.transpose(-1, -2).float() > 0)
        if extra is not None:
            kept = kept | (extra.unsqueeze(-1) == token).any(2).unsqueeze(1)
        kept = kept & (distance >= 0)
        slots = recent.sink_position[:, None, None, recent.low :]
        back = query[:, None] - slots
        sinks = torch.ones_like(back, dtype=torch.bool)
        if rule.limit is not None:
            kept, sinks = kept & (distance < rule.limit), back < rule.limit
        kept = torch.cat([sinks.expand(-1, groups.shape[1], -1, -1), kept], -1)
        return kept & (recent.bias[:, None, None, recent.low : recent.high] == 0)

    def key_routing(self, routing: int, routings: int) -> int:
        """Which routing of keys one of ``routings`` routings of queries reads."""
        return routing * len(self.pages[0]) // routings

    def sets_met(self, b: int, r: int, groups: list[int],
                 queries: int) -> Iterator[tuple[Page, tuple[int, ...]]]:  # fmt: skip
        """Pages that share a group with ``groups`` and are read by one of the last ``queries``
        tokens, with their sets of groups."""
        for own, page in self.pages[b][r].meeting(groups):
            if self.rule.limit is not None:
                page.expire(self.seen - queries - self.rule.limit + 1)
            if len(page):
                yield page, own

    def pages_met(self, b: int, r: int, groups: list[int], queries: int) -> Iterator[Page]:
        """As :meth:`sets_met`, the pages alone."""
        for page, _ in self.sets_met(b, r, groups, queries):
            yield page

    def ordered(self) -> Block:
        """Every token in order, as it was appended; padding and what was dropped is zero."""
        if self.prefix is not None:
            return self.prefix
        if self.recent is None:
            raise ValueError("cache: is empty")
        near, first = self.recent.block(), self.recent.first
        near.sink = self._sinks(first, self.seen, near.readable)
        far = near.empty(first)
        self.recent.restore_sinks(far)
        heads = far.key.shape[1] // far.groups.shape[1]
        for b, r, own, page in self._all_pages():
            key, value, at = page.rows()
            head = slice(r * heads, (r + 1) * heads)
            far.key[b, head][:, at], far.value[b, head][:, at] = key, value
            far.groups[b, r, at[:, None], torch.tensor(own, device=at.device)] = True
            far.readable[b, at] = True
        return far.then(near)

    def _all_pages(self) -> Iterator[tuple[int, int, tuple[int, ...], Page]]:
        for b, routings in enumerate(self.pages):
            for r, pages in enumerate(routings):
                for own, page in pages.by_set.items():
                    yield b, r, own, page

    def crop(self, count: int) -> None:
        """Forgets the last ``count`` tokens.

        Raises:
            ValueError: tokens that would come back into the model's own sliding window were
                dropped.
        """
        left = max(0, self.seen - count)
        if left == 0:
            self.clear()
            return
        self._check_dropped(left)
        if self.recent is not None and self.recent.first <= max(0, left - self.rule.window):
            self.recent.crop(self.seen - left)
            for _, _, _, page in self._all_pages():
                page.revive()
        else:
            self.prefix = self.ordered().part(0, left)
            self.recent, self.pages, self.paged = None, [], False
        self.seen = left
        self.real = None if self.real is None else self.real[:, :left]

    def _check_dropped(self, left: int) -> None:
        if self.rule.limit is None:
            return
        for _, _, _, page in self._all_pages():
            self.dropped = max(self.dropped, page.dropped)
        if self.dropped >= max(0, left - self.rule.limit + 1):
            raise ValueError(
                f"crop: tokens outside the model's sliding window of {self.rule.limit} were "
                "dropped and cannot come back; call cache.activate_past_recording() before the "
                "tokens that may be cropped"
            )

    def select(self, rows: Tensor) -> None:
        """Keeps the sequences named, in that order; one may be named several times."""
        if self.real is not None:
            self.real = self.real.index_select(0, rows)
        if self.prefix is not None:
            self.prefix = self.prefix.select(rows)
        if self.recent is not None:
            self.recent.select(rows)
            self.pages = [[own.share() for own in self.pages[row]] for row in rows.tolist()]
