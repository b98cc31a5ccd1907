"""Pages: keys and values that share their groups, contiguous, growing.

A key is stored once, in the page of its set of groups; a query reads the pages whose sets meet its
own groups, so no key is read twice, for any number of groups a key.

Shape suffixes: R key heads of one routing, N tokens, D head dimension, K groups, U splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

GROWTH = 1.25
SPARE = 16  # rows beyond the last one, so that a page divides into equal splits
SPLIT_TOKENS = 256  # the fewest of a split
MAX_SPLITS = 16


class PageView(NamedTuple):
    """A page as equal splits: key and value (U, R, N/U, D), an additive mask (U, 1, 1, N/U) that
    hides the rows beyond the last one (None: there are none), and the number of keys."""

    key: Tensor
    value: Tensor
    mask: Tensor | None
    tokens: int


class Page:
    """Keys of one set of groups, in the order of their positions."""

    def __init__(self, key_RND: Tensor, value_RND: Tensor, position_N: Tensor) -> None:
        self.number = 0  # among its routing's
        self.start, self.count = 0, key_RND.shape[1]
        rows = _capacity(self.count)
        heads, _, dim = key_RND.shape
        self.key = key_RND.new_zeros(heads, rows, dim)
        self.value = value_RND.new_zeros(heads, rows, dim)
        self.position = position_N.new_zeros(rows)
        self._write(0, key_RND, value_RND, position_N)
        self.shared = False
        self.gone = 0  # rows that moves left behind
        self.dropped = -1
        self._oldest = 0  # positions below it have expired
        self._view: PageView | None = None

    def __len__(self) -> int:
        return self.count - self.start

    def append(self, key_RND: Tensor, value_RND: Tensor, position_N: Tensor,
               keep: bool = False) -> None:  # fmt: skip
        """Adds later tokens; the page moves when it is full or another sequence uses it too, and
        leaves expired tokens behind unless it is told to keep them."""
        total = self.count + key_RND.shape[1]
        if self.shared or total + SPARE > self.key.shape[1]:
            self._move(key_RND.shape[1], keep)
            total = self.count + key_RND.shape[1]
        self._write(self.count, key_RND, value_RND, position_N)
        self.count, self._view = total, None

    def expire(self, before: int) -> None:
        """Leaves tokens at positions below ``before`` unread; the next move drops them."""
        if before <= self._oldest:
            return
        alive = self.position[self.start : self.count]
        expired = int(torch.searchsorted(alive, before))
        self._oldest = before
        if expired:
            self.start, self._view = self.start + expired, None

    def revive(self) -> None:
        """Takes back :meth:`expire`, as far as nothing was dropped."""
        self.start, self._oldest, self._view = 0, 0, None

    def alive(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key and value (R, N, D) and positions (N,) of the tokens that are read."""
        kept = slice(self.start, self.count)
        return self.key[:, kept], self.value[:, kept], self.position[kept]

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key and value (R, N, D) and positions (N,) of everything that is kept."""
        kept = slice(0, self.count)
        return self.key[:, kept], self.value[:, kept], self.position[kept]

    def view(self) -> PageView:
        """What a call reads; made once after each change."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def share(self) -> Page:
        """The same page for another sequence; whichever is written to first moves away."""
        twin = object.__new__(Page)
        self.shared = True
        twin.__dict__.update(self.__dict__)
        return twin

    def _make_view(self) -> PageView:
        count = len(self)
        splits = _splits(count, self.key.shape[0]) if self.key.device.type == "cpu" else 1
        size = -(-count // splits)
        span = slice(self.start, self.start + splits * size)
        key, value = (
            x[:, span].unflatten(1, (splits, size)).transpose(0, 1) for x in (self.key, self.value)
        )
        if splits * size == count:
            return PageView(key, value, None, count)
        dtype = torch.float64 if key.dtype == torch.float64 else torch.float32
        mask = torch.zeros(splits * size, dtype=dtype, device=key.device)
        mask[count:] = -torch.inf
        return PageView(key, value, mask.view(splits, 1, 1, size), count)

    def _write(self, at: int, key: Tensor, value: Tensor, position: Tensor) -> None:
        span = slice(at, at + key.shape[1])
        self.key[:, span], self.value[:, span], self.position[span] = key, value, position

    def _move(self, more: int, keep: bool) -> None:
        first = 0 if keep else self.start
        if first:
            self.dropped = int(self.position[first - 1])
            self.gone += first
        count = self.count - first
        rows = _capacity(count + more)
        for name in ("key", "value"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], rows, old.shape[2])
            new[:, :count] = old[:, first : self.count]
            setattr(self, name, new)
        position = self.position.new_zeros(rows)
        position[:count] = self.position[first : self.count]
        self.position = position
        self.start, self.count, self.shared, self._view = self.start - first, count, False, None


def _splits(count: int, heads: int) -> int:
    """Parts of a page that keep every thread busy, two for each: a power of two."""
    splits = 1
    while (
        splits * heads < 2 * torch.get_num_threads()
        and splits < MAX_SPLITS
        and 2 * splits * SPLIT_TOKENS <= count
    ):
        splits *= 2
    return splits


def _capacity(needed: int) -> int:
    return int(needed * GROWTH) + 2 * SPARE


class Pages:
    """All pages of one routing of one sequence."""

    def __init__(self, groups: int) -> None:
        self.by_set: dict[tuple[int, ...], Page] = {}
        self._of_group: list[list[tuple[tuple[int, ...], Page]]] = [[] for _ in range(groups)]
        # (2, positions) int32, where somebody will ask: number of the page, -1: none; row.
        self._where: Tensor | None = None
        self._where_shared = False

    def add(self, key_RND: Tensor, value_RND: Tensor, groups_NK: Tensor, position_N: Tensor,
            keep: bool = False, note: bool = False) -> None:  # fmt: skip
        """Files later tokens under their sets of groups; each has at least one. ``note``: so that
        :meth:`find` finds them."""
        sets, set_of = _sets(groups_NK)
        order = torch.argsort(set_of, stable=True)
        counts = torch.bincount(set_of, minlength=len(sets)).tolist()
        key, value = key_RND.index_select(1, order), value_RND.index_select(1, order)
        position = position_N.index_select(0, order)
        at, where = 0, position.new_empty(2, len(position))
        for own, count in zip(sets, counts, strict=True):
            if count:
                rows = slice(at, at + count)
                page = self._put(own, key[:, rows], value[:, rows], position[rows], keep)
                last = page.gone + page.count
                where[0, rows] = page.number
                where[1, rows] = torch.arange(last - count, last, device=where.device)
                at += count
        if note:
            self._note(position, where.int())

    def _put(self, own: tuple[int, ...], key: Tensor, value: Tensor, position: Tensor,
             keep: bool) -> Page:  # fmt: skip
        page = self.by_set.get(own)
        if page is not None:
            page.append(key, value, position, keep)
            return page
        self.by_set[own] = page = Page(key, value, position)
        page.number = len(self.by_set) - 1
        for group in own:
            self._of_group[group].append((own, page))
        return page

    def _note(self, position_N: Tensor, where_2N: Tensor) -> None:
        """Keeps where the tokens are."""
        needed = int(position_N.max()) + 1
        if self._where is None:
            self._where = where_2N.new_full((2, int(needed * GROWTH)), -1)
        elif self._where.shape[1] < needed:
            more = int(needed * GROWTH) - self._where.shape[1]
            self._where = pad(self._where, (0, more), value=-1)
        elif self._where_shared:
            self._where = self._where.clone()
        self._where[:, position_N], self._where_shared = where_2N, False

    def gather(self, positions_N: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Of tokens at these positions, -1 for none: key, value (R, N, D) and groups (N, K) bool,
        and which are read from a page (N,), zero for the others; None where there is no page."""
        if self._where is None or not self.by_set:
            return None
        none = (positions_N < 0) | (positions_N >= self._where.shape[1])
        numbers, rows = self._where[:, positions_N.masked_fill(none, 0)].long()
        numbers = numbers.masked_fill(none, -1)
        some = next(iter(self.by_set.values()))
        key = some.key.new_zeros(len(some.key), len(positions_N), some.key.shape[2])
        value, found = torch.zeros_like(key), torch.zeros_like(none)
        groups = found.new_zeros(len(positions_N), len(self._of_group))
        for own, page in self.by_set.items():
            at = ((numbers == page.number) & (rows >= page.gone + page.start)).nonzero().flatten()
            if len(at):
                row = rows[at] - page.gone
                key[:, at], value[:, at] = page.key[:, row], page.value[:, row]
                groups[at[:, None], torch.tensor(own, device=at.device)] = True
                found[at] = True
        return key, value, groups, found

    def find(self, positions: list[int]) -> Iterator[tuple[tuple[int, ...], Page, int]]:
        """The set of groups, page and row of each token that is read from a page; the others, and
        -1 for none, are passed over."""
        if self._where is None or not self.by_set:
            return
        known = self._where.shape[1]
        places = [at for at in positions if 0 <= at < known]
        # A few numbers are read faster from numpy's view of the same memory.
        where = self._where.numpy() if self._where.device.type == "cpu" else self._where
        pages = list(self.by_set.items())
        for number, row in where[:, places].T.tolist():
            if number >= 0:
                own, page = pages[number]
                if row - page.gone >= page.start:
                    yield own, page, row - page.gone

    def meeting(self, groups: Iterable[int]) -> Iterator[tuple[tuple[int, ...], Page]]:
        """The sets that share a group with ``groups``, each once, and their pages."""
        seen: set[tuple[int, ...]] = set()
        for group in groups:
            for own, page in self._of_group[group]:
                if own not in seen:
                    seen.add(own)
                    yield own, page

    def share(self) -> Pages:
        """The same pages for another sequence, copied where either writes."""
        twin = Pages(len(self._of_group))
        for own, page in self.by_set.items():
            twin.by_set[own] = copy = page.share()
            for group in own:
                twin._of_group[group].append((own, copy))
        twin._where, twin._where_shared = self._where, True
        self._where_shared = True
        return twin


def _sets(groups_NK: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    """Distinct sets of groups and, for each token, the index of its own."""
    if bool((groups_NK.sum(-1) == 1).all()):
        names: list[tuple[int, ...]] = [(group,) for group in range(groups_NK.shape[-1])]
        return names, groups_NK.int().argmax(-1)
    patterns, index = torch.unique(groups_NK, dim=0, return_inverse=True)
    return [tuple(i for i, on in enumerate(row) if on) for row in patterns.tolist()], index
