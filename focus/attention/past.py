"""The past of one attention layer: keys and values in order, and where each group's tokens lie.

Keys and values stand side by side in one buffer that grows by a quarter, so that a token read by
itself is one run of memory. Each token's groups are kept as bits, and each group's tokens as a list
of positions; both are filed when a token comes, so a step sorts nothing and copies no key but its
own. Sinks and padding are in no list: every query reads the ones and none the others.

While the window holds all tokens nobody asks for their groups, and every query sees every key:
torch's own attention is all it takes, as in the pretrained model. Their hidden states are kept, and
once the window leaves a token behind, one call routes them all.

Shape suffixes: B batch, H query heads, Hk key heads, R routings (1 or Hk), T tokens seen, M new
tokens, N rows of a buffer, D head dimension, E model dimension, K groups, W words of 64 bits, L
positions a list, S sinks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from focus.attention.bits import pack, unpack
from focus.attention.pages import in_large_pages, owned
from focus.attention.rule import Rule

ROOM = 128  # free rows of a new buffer, beside a quarter of what it holds
REFRESH = 256  # tokens after which a device is asked again for the length of its longest list


class Past:
    """Everything that a layer has seen; rule: which holds of it.

    The first tokens are kept as they came and filed when others follow, so a forward pass that
    nobody continues costs no copy.
    """

    rule: Rule

    def __init__(self, rule: Rule | None = None) -> None:
        if rule is not None:  # else it comes with the first tokens
            self.rule = rule
        self.record = False  # keep what the model's own window has passed, for a crop to come
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.seen = 0
        self.first = 0  # position of the buffers' first row; what was before it is dropped
        self.real: Tensor | None = None  # (B, seen) bool; None while every token is real
        self.prompt: tuple[Tensor, Tensor, Tensor | None] | None = None  # unfiled: see begin
        self.hidden: list[Tensor] = []  # (B, M, E) each, of a prompt that has no groups yet
        self.rows: Tensor | None = None  # (B, Hk, N, 2, D)
        self.bits: Tensor | None = None  # (B, R, N, W) int64
        self.sinks: Tensor | None = None  # (B, S) int64, -1 where there are fewer
        self.lists: Tensor | None = None  # (B, R, K, L) int32, sorted; None before they are needed
        self.lengths: Tensor | None = None  # (B, R, K) int32
        self.longest = 0  # no list is longer; known without asking the device

    @property
    def dtype(self) -> torch.dtype | None:
        """Of keys and values; None before the first."""
        some = self._some()
        return None if some is None else some.dtype

    @property
    def batch(self) -> int:
        """Sequences."""
        some = self._some()
        return 0 if some is None else len(some)

    def _some(self) -> Tensor | None:
        return self.rows if self.prompt is None else self.prompt[0]

    def begin(self, key: Tensor, value: Tensor, groups: Tensor | None, real: Tensor | None,
              hidden: Tensor | None = None) -> None:  # fmt: skip
        """Takes the first tokens: key, value (B, Hk, M, D), groups (B, R, M, K) bool as keys, real
        (B, M) bool or None. They are filed when others follow. Where groups are put off, hidden
        (B, M, E) takes their place until :meth:`route`."""
        self.clear()
        self.prompt = owned(key), owned(value), groups
        if hidden is not None:  # the model may use it again
            self.hidden = [hidden.detach().clone()]
        self.real, self.seen = None if real is None else real.clone(), key.shape[2]

    def extend(self, query: Tensor, hidden: Tensor, key: Tensor, value: Tensor,
               scale: float) -> Tensor:  # fmt: skip
        """Appends one token whose groups are put off, too, and attends from its query (B, H, 1, D)
        to all so far; where it fails, they are as before."""
        before = self.ordered()
        keys, values = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        out = scaled_dot_product_attention(query, keys, values, scale=scale, enable_gqa=True)
        self.hidden.append(hidden.clone())
        self.prompt, self.seen = (keys, values, None), keys.shape[2]
        return out

    def route(self, groups: Tensor) -> None:
        """Brings the groups that were put off, (B, R, T, K) of all tokens so far."""
        self.prompt, self.hidden = (*self.ordered(), groups), []

    def append(self, key: Tensor, value: Tensor, groups: Tensor, real: Tensor | None,
               listed: bool = True) -> None:  # fmt: skip
        """Files tokens that follow, as :meth:`begin` takes them; without ``listed`` new lists wait
        for those after them."""
        start = self.make_room(key, groups, real, listed)
        if self.real is not None:
            hidden = ~self.real[:, None, start:, None]
            # 0 * NaN is NaN: what stands in padding must not reach a real row.
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
        rows, bits, sinks = self.filed()
        own = slice(start - self.first, self.seen - self.first)
        rows[:, :, own, 0], rows[:, :, own, 1] = key, value
        position = torch.arange(start, self.seen, device=key.device)
        if self.real is not None:
            groups = groups & self.real[:, None, start:, None]
        if sinks.shape[1]:
            groups = groups & (position[:, None] != sinks[:, None, :]).all(-1)[:, None, :, None]
        bits[:, :, own] = pack(groups)
        self._list(groups, position)

    def make_room(self, key: Tensor, groups: Tensor, real: Tensor | None,
                  listed: bool = True) -> int:  # fmt: skip
        """Readies buffers for the tokens of :meth:`append` and counts them as seen, so that only
        their rows, bits and places in lists are left to fill in.

        Returns:
            The first one's position.
        """
        self._file_prompt()
        self._thaw()
        start, count = self.seen, key.shape[2]
        if self.rows is None or start + count - self.first > self.rows.shape[2]:
            self._grow(key, groups, count)
        if self.lists is not None:
            self._lengthen(count)
        elif listed and start + count > self.rule.reach and self.bits is not None:
            self._make_lists(self.bits, groups.shape[3], count)
        self.seen += count
        if real is not None or self.real is not None:
            real = key.new_ones(len(key), count, dtype=torch.bool) if real is None else real
            before = real.new_ones(len(real), start) if self.real is None else self.real
            self.real = torch.cat([before, real], 1)
        if self.real is not None or start < self.rule.sinks or self.sinks is None:
            self._find_sinks(key)
        return start

    def filed(self) -> tuple[Tensor, Tensor, Tensor]:
        """rows, bits and sinks; something must have been filed."""
        if self.rows is None or self.bits is None or self.sinks is None:
            raise RuntimeError("nothing was filed yet")
        return self.rows, self.bits, self.sinks

    def _file_prompt(self) -> None:
        if self.prompt is None:
            return
        prompt, real, seen = self.prompt, self.real, self.seen
        key, value, groups = prompt
        if groups is None:
            raise RuntimeError("the groups of the first tokens were put off, and not brought since")
        self.clear()
        try:
            # Lists made now would have room for every token in each group.
            self.append(key, value, groups, real, listed=False)
        except BaseException:
            self.clear()
            self.prompt, self.real, self.seen = prompt, real, seen
            raise

    def _thaw(self) -> None:
        """Buffers that were made under inference_mode can be written only there: copies instead."""
        if self.rows is None or torch.is_inference_mode_enabled():
            return
        for name in ("rows", "bits", "lists", "lengths"):
            held = self.__dict__[name]
            if held is not None and held.is_inference():
                setattr(self, name, held.clone())

    def _grow(self, key: Tensor, groups: Tensor, count: int) -> None:
        """Larger buffers, without what the model's own window has passed."""
        batch, heads, _, dim = key.shape
        first, limit = self.first, self.rule.limit
        if limit is not None and not self.record:
            self.first = max(first, self.seen - limit + 1)
        held = self.seen - self.first
        number = (held + count) * 5 // 4 + ROOM
        rows = in_large_pages(key.new_empty(batch, heads, number, 2, dim))
        words = -(-groups.shape[3] // 64)
        bits = rows.new_zeros(batch, groups.shape[1], number, words, dtype=torch.int64)
        if self.rows is not None and self.bits is not None:
            kept = slice(self.first - first, self.seen - first)
            rows[:, :, :held], bits[:, :, :held] = self.rows[:, :, kept], self.bits[:, :, kept]
        self.rows, self.bits = rows, bits
        if self.first > first:
            self.lists = None  # to be made again, without the dropped

    def _make_lists(self, bits: Tensor, groups: int, room: int) -> None:
        """Lists of what has been filed, from the bits."""
        kept = unpack(bits[:, :, : self.seen - self.first], groups)
        self.longest = int(kept.sum(2).max()) if kept.numel() else 0
        size = (self.longest + room) * 5 // 4 + ROOM
        self.lists = bits.new_zeros(*bits.shape[:2], groups, size, dtype=torch.int32)
        self.lengths = self.lists.new_zeros(self.lists.shape[:3])
        self._list(kept, torch.arange(self.first, self.seen, device=bits.device))
        self.longest += room

    def _lengthen(self, count: int) -> None:
        if self.lists is None or self.lengths is None:
            return
        if self.seen // REFRESH != (self.seen + count) // REFRESH:
            self.longest = int(self.lengths.max())
        self.longest += count
        if self.longest >= self.lists.shape[3]:
            self.lists = pad(self.lists, (0, self.longest // 4 + count + ROOM))

    def _list(self, groups: Tensor, position: Tensor) -> None:
        """Appends tokens (M) to the lists of their groups (B, R, M, K), without asking a device."""
        if self.lists is None or self.lengths is None or not len(position):
            return
        member = groups.transpose(2, 3)
        after = member.cumsum(3) + self.lengths.unsqueeze(3)
        # What is not a member goes behind the end, where the next member will overwrite it.
        place = torch.where(member, after - 1, after[..., -1:])
        self.lists.scatter_(3, place, position.int().expand_as(place))
        self.lengths.copy_(after[..., -1])

    def _find_sinks(self, rows: Tensor) -> None:
        found = torch.arange(self.rule.sinks, device=rows.device).expand(len(rows), -1)
        if self.real is not None:
            found = torch.searchsorted(self.real.cumsum(1), found + 1)
        self.sinks = found.masked_fill(found >= self.seen, -1)

    def ordered(self) -> tuple[Tensor, Tensor]:
        """All keys and values in order, (B, Hk, T, D) each; zeros for padding once filed, and for
        what was dropped."""
        if self.prompt is not None:
            return self.prompt[:2]
        rows = self.filed()[0][:, :, : self.seen - self.first]
        key, value = (pad(each, (0, 0, self.first, 0)) for each in rows.unbind(3))
        return key, value

    def crop(self, count: int) -> None:
        """Forgets the last ``count`` tokens; refuses where tokens that would come back into the
        model's own sliding window were dropped."""
        left = max(0, self.seen - count)
        if left == 0:
            self.clear()
            return
        if self.rule.limit is not None and self.first > max(0, left - self.rule.limit + 1):
            raise ValueError(
                f"crop: tokens outside the model's sliding window of {self.rule.limit} were "
                "dropped and cannot come back; call cache.activate_past_recording() before the "
                "tokens that may be cropped"
            )
        if self.hidden:
            key, value = self.ordered()
            self.prompt, self.seen = (key[:, :, :left], value[:, :, :left], None), left
            self.hidden = [torch.cat(self.hidden, 1)[:, :left]]
            return
        self._file_prompt()
        self._cut(left)
        if self.lists is not None and self.lengths is not None:
            held = torch.arange(self.lists.shape[3], device=self.lists.device)
            kept = (self.lists < left) & (held < self.lengths.unsqueeze(-1))
            self.lengths = kept.sum(-1, dtype=torch.int32)

    def undo(self, seen: int) -> None:
        """Forgets tokens that were being filed when something failed."""
        if seen == 0 or self.prompt is not None:
            self.seen = seen
            return
        self.lists = None
        self._cut(seen)

    def _cut(self, seen: int) -> None:
        self.seen, self.real = seen, None if self.real is None else self.real[:, :seen]
        self._find_sinks(self.filed()[0])

    def select(self, index: Tensor) -> None:
        """Keeps the sequences named, in that order; one may be named several times."""
        if self.hidden:
            held = (*self.ordered(), torch.cat(self.hidden, 1))
            key, value, hidden = (_rows(each, index) for each in held)
            self.prompt, self.hidden = (key, value, None), [hidden]
            return
        self._file_prompt()
        for name in ("real", "rows", "bits", "sinks", "lists", "lengths"):
            held = getattr(self, name)
            if held is not None:
                setattr(self, name, _rows(held, index))


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor.index_select(0, index.to(tensor.device))
