"""The near past of one attention layer: sinks and recent tokens in one buffer.

Shape suffixes: B batch, Hk key heads, R routings (1 or Hk), N tokens, D head dimension, K groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention.checks import for_query_heads

ROOM = 128  # free rows of a new buffer


@dataclass
class Block:
    """Tokens in order: key, value (B, Hk, N, D); groups (B, R, N, K) bool, as keys; readable
    (B, N) bool, false for padding and for what was dropped; sink (B, N) bool. Sinks are in every
    group, padding in none."""

    key: Tensor
    value: Tensor
    groups: Tensor
    readable: Tensor
    sink: Tensor

    def __len__(self) -> int:
        return self.key.shape[2]

    def part(self, start: int, stop: int) -> Block:
        """Tokens start..stop-1, as views."""
        own = slice(start, stop)
        return Block(self.key[:, :, own], self.value[:, :, own], self.groups[:, :, own],
                     self.readable[:, own], self.sink[:, own])  # fmt: skip

    def select(self, rows: Tensor) -> Block:
        """The sequences named."""
        return Block(*(x.index_select(0, rows) for x in vars(self).values()))

    def then(self, other: Block) -> Block:
        """These tokens and those that follow."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Block(*(torch.cat([a, b], 2 if a.dim() == 4 else 1) for a, b in pairs))

    def empty(self, count: int) -> Block:
        """As many unreadable tokens of the same kind."""
        shapes = [(x, [*x.shape[: x.dim() // 2], count, *x.shape[3:]]) for x in vars(self).values()]
        return Block(*(x.new_zeros(shape) for x, shape in shapes))


class Recent:
    """Sinks, then tokens in order, in one buffer that grows by doubling.

    Rows ``low:high`` are in use: ``low:slots`` hold sinks whose tokens have been committed, in any
    order, ``slots:high`` the tokens from position ``first`` on. ``bias`` (B, rows) is -inf where a
    sequence has nothing to read, and ``shut`` (B, R, K, rows) where a query of that group may not:
    there, rows up to ``left`` are outside the window and open to their own groups alone.
    """

    def __init__(self, block: Block, first: int, slots: int) -> None:
        batch, heads, count, dim = block.key.shape
        rows, device = slots + 2 * count + ROOM, block.key.device
        self.slots, self.low, self.high, self.first = slots, slots, slots, first
        self.key = block.key.new_zeros(batch, heads, rows, dim)
        self.value = torch.zeros_like(self.key)
        routings, groups = block.groups.shape[1], block.groups.shape[3]
        self.groups = block.groups.new_zeros(batch, routings, rows, groups)
        dtype = torch.float64 if block.key.dtype == torch.float64 else torch.float32
        self.bias = torch.zeros(batch, rows, dtype=dtype, device=device)
        self.shut = self.bias.new_zeros(batch, routings, groups, rows)
        self.bias[:, :slots], self.shut[..., :slots] = -torch.inf, -torch.inf
        self.left = slots
        self.sink_position = torch.zeros(batch, slots, dtype=torch.int64, device=device)
        self.append(block.key, block.value, block.groups, block.readable)

    def __len__(self) -> int:
        return self.high - self.slots

    def append(self, key: Tensor, value: Tensor, groups: Tensor,
               readable: Tensor | None) -> None:  # fmt: skip
        """Adds the tokens that follow; readable None: all of them."""
        stop = self.high + key.shape[2]
        if stop > self.key.shape[2]:
            self._grow(stop)
        rows = slice(self.high, stop)
        self.key[:, :, rows], self.value[:, :, rows] = key, value
        self.groups[:, :, rows] = groups
        if readable is not None:
            self.bias[:, rows].masked_fill_(~readable, -torch.inf)
            self.shut[..., rows] = self.bias[:, None, None, rows]
        self.high = stop

    def mask(self, groups: Tensor, window: int, chosen: list[list[list[int]]]) -> Tensor:
        """What one query may not read: additive (B, R, 1, N).

        groups: (B, R or H, 1, K) bool, the query's; chosen: the same, as lists.
        """
        outside = self.high - window
        if outside > self.left:
            rows = slice(self.left, outside)
            own = self.groups[:, :, rows].transpose(-1, -2)
            self.shut[..., rows].masked_fill_(~own, -torch.inf)
            self.left = outside
        heads, held = groups.shape[1], {len(own) for row in chosen for own in row}
        if len(held) > 1 or 0 in held:
            shut = for_query_heads(self.shut[..., self.low : self.high], heads)
            closed = torch.zeros_like(groups, dtype=shut.dtype).masked_fill_(~groups, -torch.inf)
            return (shut + closed.transpose(-1, -2)).amax(2, keepdim=True)
        _, routings, count, _ = self.shut.shape
        places = [
            (b * routings + r * routings // heads) * count + group
            for b, row in enumerate(chosen) for r, own in enumerate(row) for group in own
        ]  # fmt: skip
        index = torch.tensor(places, device=self.shut.device)
        shut = self.shut.flatten(0, 2)[:, self.low : self.high].index_select(0, index)
        shut = shut.view(len(groups), heads, -1, shut.shape[-1])
        return shut if shut.shape[2] == 1 else shut.amax(2, keepdim=True)

    def block(self) -> Block:
        """The tokens, as views; none of them is flagged as a sink here."""
        rows = slice(self.slots, self.high)
        readable = self.bias[:, rows] == 0
        return Block(self.key[:, :, rows], self.value[:, :, rows], self.groups[:, :, rows],
                     readable, torch.zeros_like(readable))  # fmt: skip

    def drop(self, count: int) -> None:
        """Forgets the first tokens, which were committed or have expired."""
        kept = slice(self.slots + count, self.high)
        rows = slice(self.slots, self.high - count)
        for buffer in (self.key, self.value, self.groups):
            buffer[:, :, rows] = buffer[:, :, kept].clone()
        for buffer in (self.bias, self.shut):
            buffer[..., rows] = buffer[..., kept].clone()
            buffer[..., rows.stop :] = 0.0
        self.first, self.high = self.first + count, rows.stop
        self.left = max(self.slots, self.left - count)

    def crop(self, count: int) -> None:
        """Forgets the last tokens."""
        self.high -= count
        self.bias[:, self.high :] = 0.0
        # Some of the tokens that are left may be back in the window.
        self.shut[..., self.slots :] = self.bias[:, None, None, self.slots :]
        self.left = self.slots

    def hold_sinks(self, block: Block, first: int) -> None:
        """Puts the sinks of a block that is committed into the slots, from the last one down."""
        for row in block.sink.any(1).nonzero().flatten().tolist():
            index = block.sink[row].nonzero().flatten()
            stop = self.slots - int((self.bias[row, : self.slots] == 0).sum())
            own = slice(stop - len(index), stop)
            self.key[row, :, own] = block.key[row].index_select(1, index)
            self.value[row, :, own] = block.value[row].index_select(1, index)
            self.groups[row, :, own] = True
            self.bias[row, own], self.shut[row, ..., own] = 0.0, 0.0
            self.sink_position[row, own] = index + first
            self.low = min(self.low, own.start)

    def restore_sinks(self, far: Block) -> None:
        """Puts the sinks of the slots back to their places in a block that starts at 0."""
        for row in range(len(far.sink)):
            slots = (self.bias[row, : self.slots] == 0).nonzero().flatten()
            at = self.sink_position[row, slots]
            far.key[row][:, at] = self.key[row][:, slots]
            far.value[row][:, at] = self.value[row][:, slots]
            far.groups[row][:, at] = True
            far.readable[row, at] = True
            far.sink[row, at] = True

    def select(self, rows: Tensor) -> None:
        """Keeps the sequences named, in that order."""
        for name in ("key", "value", "groups", "bias", "shut", "sink_position"):
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def _grow(self, needed: int) -> None:
        more = 2 * needed - self.key.shape[2]
        for name in ("key", "value", "groups"):
            setattr(self, name, pad(getattr(self, name), (0, 0, 0, more)))
        self.bias, self.shut = pad(self.bias, (0, more)), pad(self.shut, (0, more))
