"""FlexAttention under the exact mask: one kernel with a block mask, for what packed calls lack.

The block mask has (T / 128)^2 entries a routing, made from the groups that occur in each block;
pairs are checked inside the kernel. Forward wherever FlexAttention runs (on CPU it is
not compiled and forms every logit: a check, not a path for long sequences); backward on CUDA only.

Shape suffixes: B batch, R routings (1 or Hk), T tokens, H query heads, D head dimension, K groups,
Q blocks of queries, N blocks of keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from focus.attention.checks import Inputs, sink_tokens

BLOCK = 128
MOST_EAGER = 8192  # tokens beyond which the uncompiled form, with all its logits, is refused


def flex_focus_attention(x: Inputs) -> Tensor:
    """Attention of validated inputs, (B, H, T, D).

    Raises:
        ValueError: a gradient is asked for on CPU, more than 62 groups, or a sequence too long for
            the uncompiled form.
    """
    tokens, groups = x.membership.shape[2:]
    if groups > 62:
        raise ValueError(f"membership: backend 'flex' takes at most 62 groups, got {groups}")
    wants_grad = torch.is_grad_enabled() and any(
        each.requires_grad for each in (x.query, x.key, x.value)
    )
    if not x.query.is_cuda and wants_grad:
        raise ValueError(
            "backend 'flex' has no backward pass on CPU; use backend='decomposed', or torch.no_grad"
        )
    if not x.query.is_cuda and tokens > MOST_EAGER:
        raise ValueError(
            f"backend 'flex' forms every logit on CPU: {tokens} tokens are above {MOST_EAGER}; use "
            "backend='decomposed'"
        )
    query, key, value = (_cleared(each, x.real) for each in (x.query, x.key, x.value))
    if not wants_grad:  # on CPU a tensor that could have a gradient is refused, wanted or not
        query, key, value = query.detach(), key.detach(), value.detach()
    out = _kernel(query.is_cuda)(
        query, key, value, block_mask=make_block_mask(x), scale=x.scale, enable_gqa=True
    )
    # A padding query sees nothing; its row is zero by definition.
    return _cleared(out, x.real)


def _cleared(x_BHTD: Tensor, real: Tensor | None) -> Tensor:
    return x_BHTD if real is None else x_BHTD.masked_fill(~real[:, None, :, None], 0.0)


@lru_cache(maxsize=2)
def _kernel(compiled: bool) -> Any:
    return torch.compile(flex_attention, dynamic=False) if compiled else flex_attention


def bits_of(membership_BRTK: Tensor) -> Tensor:
    """(B, R, T) int64: bit g is set where the token holds group g."""
    bit = torch.ones((), dtype=torch.int64, device=membership_BRTK.device) << torch.arange(
        membership_BRTK.shape[-1], device=membership_BRTK.device
    )
    return (membership_BRTK * bit).sum(-1)


def make_block_mask(x: Inputs) -> BlockMask:
    """The exact mask as a block mask, from (T / 128)^2 bits a routing."""
    batch, routings, tokens, _ = x.membership.shape
    heads = x.query.shape[1]
    sinks_BT = sink_tokens(x.real, batch, tokens, x.sinks, x.query.device)
    keys_BRTK = x.key_membership | sinks_BT[:, None, :, None]
    query_bits, key_bits = bits_of(x.membership), bits_of(keys_BRTK)
    window, real, extra = x.window, x.real, x.extra
    named = 0 if extra is None else extra.shape[2]

    def keeps(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        r = h * routings // heads
        shared = (query_bits[b, r, i] & key_bits[b, r, j]) != 0
        kept = ((i - j < window) | shared) & (j <= i)
        for n in range(named):
            kept = kept | (extra[b, i, n] == j)  # type: ignore[index]
        return kept if real is None else kept & real[b, i] & real[b, j]

    wanted = _blocks_wanted(x.membership, keys_BRTK, window)
    if extra is not None:
        wanted = wanted | _blocks_named(extra, wanted.shape[-1])
    if routings > 1:
        wanted = wanted.repeat_interleave(heads // routings, 1)
    counts = wanted.sum(-1, dtype=torch.int32)
    order = torch.argsort(wanted.int(), dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        counts, order, None, None, BLOCK_SIZE=BLOCK, mask_mod=keeps, seq_lengths=(tokens, tokens)
    )


def _blocks_wanted(membership_BRTK: Tensor, keys_BRTK: Tensor, window: int) -> Tensor:
    """(B, R, Q, N) bool: blocks that may hold a kept pair."""
    groups_of = [_any_in_block(each).float() for each in (membership_BRTK, keys_BRTK)]
    meet = groups_of[0] @ groups_of[1].transpose(-1, -2) > 0
    block = torch.arange(meet.shape[-1], device=meet.device)
    distance = block[:, None] - block
    near = (distance - 1) * BLOCK < window - 1
    return (meet | near) & (distance >= 0)


def _blocks_named(extra_BTE: Tensor, blocks: int) -> Tensor:
    """(B, 1, Q, N) bool: blocks that hold a further key of a query."""
    padded = pad(extra_BTE, (0, 0, 0, -extra_BTE.shape[1] % BLOCK), value=-1)
    block = padded.unflatten(1, (-1, BLOCK)).flatten(2).div(BLOCK, rounding_mode="floor")
    named = torch.zeros(*block.shape[:2], blocks + 1, dtype=torch.bool, device=block.device)
    return named.scatter_(2, block % (blocks + 1), True)[:, None, :, :blocks]  # -1 is the last


def _any_in_block(membership_BRTK: Tensor) -> Tensor:
    tokens = membership_BRTK.shape[2]
    padded = pad(membership_BRTK, (0, 0, 0, -tokens % BLOCK))
    return padded.unflatten(2, (-1, BLOCK)).any(3)
