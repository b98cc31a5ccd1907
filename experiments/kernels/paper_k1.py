"""The paper's decomposition as it is written: for one group a token, in two calls and a merge.

Tokens are sorted by group, each group is a causal call, the result is put back in order; pairs of
the window that share no group go to a second call with a mask of its own; log-sum-exp merges both.

On CUDA both calls are FlashAttention's own, which takes no such mask: a pair of the window that
shares a group counts twice there. So what is timed costs no more than the paper's.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, P blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention import flash
from focus.attention.flash import Segments

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def paper_k1_attention(query: Tensor, key: Tensor, value: Tensor, group: Tensor,
                       window: int) -> Tensor:  # fmt: skip
    """Forward only, one sequence.

    Args:
        query: (1, H, T, D); key, value: (1, Hk, T, D).
        group: (T,) the group of every token.
        window: tokens of the local window; also the block of the second call.

    Returns:
        (1, H, T, D)
    """
    if query.is_cuda:
        return two_calls(query, key, value, group, window)
    order = torch.argsort(group, stable=True)
    q, k, v = (x[:, :, order] for x in (query, key, value))
    sizes = torch.bincount(group).tolist()
    parts = [
        _flash(*each, 0.0, True)
        for each in zip(q.split(sizes, 2), k.split(sizes, 2), v.split(sizes, 2), strict=True)
        if each[0].shape[2]
    ]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    group_out = torch.cat([out for out, _ in parts], 2)[:, :, back]
    group_lse = torch.cat([lse for _, lse in parts], 2)[:, :, back]
    local_out, local_lse = _local(query, key, value, group, window)
    lse = torch.logaddexp(group_lse, local_lse)
    return (
        group_out * torch.exp(group_lse - lse).unsqueeze(-1)
        + local_out * torch.exp(local_lse - lse).unsqueeze(-1)
    ).to(query.dtype)


def two_calls(query: Tensor, key: Tensor, value: Tensor, group: Tensor,
              window: int) -> Tensor:  # fmt: skip
    """As :func:`paper_k1_attention`, by FlashAttention's variable-length kernel; near pairs of one
    group count twice."""
    scale, tokens = query.shape[-1] ** -0.5, query.shape[2]
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    order = torch.argsort(group, stable=True)
    ends = torch.bincount(group).cumsum(0)
    groups = Segments(pad(ends, (1, 0)).to(torch.int32), tokens)
    whole = Segments(ends.new_tensor([0, tokens], dtype=torch.int32), tokens, min(window, tokens))
    part, part_lse = flash.forward(*(x[order] for x in rows), groups, scale, "varlen")
    group_out = torch.empty_like(part).index_copy_(0, order, part)
    group_lse = torch.empty_like(part_lse).index_copy_(1, order, part_lse)
    out, lse = flash.forward(*(x.contiguous() for x in rows), whole, scale, "varlen")
    weight = torch.sigmoid(group_lse - lse).T.unsqueeze(-1)
    return out.lerp_(group_out, weight.to(out.dtype)).transpose(0, 1).unsqueeze(0)


def _local(query: Tensor, key: Tensor, value: Tensor, group: Tensor,
           window: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Window pairs of different groups: blocks of w queries beside 2 w keys, under a mask."""
    tokens = query.shape[2]
    more = -tokens % window
    blocks = (tokens + more) // window
    q = pad(query, (0, 0, 0, more))[0].unflatten(1, (blocks, window)).transpose(0, 1)
    k, v = (
        pad(x, (0, 0, window, more))[0].unfold(1, 2 * window, window).permute(1, 0, 3, 2)
        for x in (key, value)
    )
    own = pad(group, (0, more), value=-1).view(blocks, window, 1)
    near = pad(group, (window, more), value=-1).unfold(0, 2 * window, window).unsqueeze(1)
    distance = torch.arange(window)[:, None] + window - torch.arange(2 * window)
    kept = (own != near) & (near >= 0) & (distance >= 0) & (distance < window)
    mask = torch.zeros(kept.shape, dtype=torch.promote_types(query.dtype, torch.float32))
    mask.masked_fill_(~kept, -torch.inf)
    out, lse = _flash(q, k, v, 0.0, False, attn_mask=mask.unsqueeze(1))
    lse = lse.masked_fill(~kept.any(-1).unsqueeze(1), -torch.inf)
    out, lse = out.transpose(0, 1).flatten(1, 2), lse.transpose(0, 1).flatten(1, 2)
    return out[None, :, :tokens], lse[None, :, :tokens]
