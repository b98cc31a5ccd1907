"""New tokens over a past on any device: the keys of a few queries gathered, or all under a mask.

Neither asks the device anything, so a step on a GPU waits for nothing.

Shape suffixes: B batch, H query heads, Hk key heads, R routings of queries (1, Hk or H), M queries,
N keys of a query or of all, D head dimension, K groups, L positions a list, E further keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus.attention.bits import pack, unpack
from focus.attention.checks import named_keys
from focus.attention.past import Past

MASK_ENTRIES = 2**24  # of one masked call


def most_keys(groups: Tensor, extra: Tensor | None, past: Past) -> int:
    """How many keys :func:`gathered` reads for a query (B, R, M, K) at most."""
    near = min(past.rule.reach, past.rule.limit or past.seen, past.seen)
    some = min(past.rule.query_groups, groups.shape[3])
    far = some * past.longest if past.lists is not None else 0
    return near + past.rule.sinks + far + (0 if extra is None else extra.shape[2])


def gathered(query: Tensor, groups: Tensor, extra: Tensor | None, past: Past, scale: float,
             softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of the last M tokens, (B, H, M, D), by gathering each one's keys; and the kept
    pairs of all routings, a number that is still on the device. Arguments as in
    :func:`focus.attention.decode.decode_attention`."""
    index, kept = positions(groups, extra, past)
    rows = past.filed()[0]
    batch, heads, count, _ = query.shape
    key_heads = rows.shape[1]
    apart = max(index.shape[1], key_heads)  # heads that read keys of their own
    b = torch.arange(batch, device=query.device)[:, None, None, None]
    h = (torch.arange(apart, device=query.device) * key_heads // apart)[:, None, None]
    index = (index - past.first).clamp_min(0).expand(-1, apart, -1, -1)
    key, value = rows[b, h, index].flatten(1, 2).unbind(3)
    folded = query.unflatten(1, (apart, heads // apart)).transpose(2, 3).flatten(1, 2)
    mask = kept.expand(-1, apart, -1, -1).flatten(1, 2).unsqueeze(2)
    out = _attend(folded, key, value, mask, scale, softcap)
    out = out.unflatten(1, (apart, count)).transpose(2, 3).flatten(1, 2)
    return out, kept.sum()


def positions(groups: Tensor, extra: Tensor | None, past: Past) -> tuple[Tensor, Tensor]:
    """Positions (B, R, M, N) of what each query keeps, and (B, R, M, N) bool, which of them count:
    each kept key once."""
    batch, routings, count, _ = groups.shape
    query, low, near = _spans(past, count, groups.device)
    reach = min(past.rule.reach, past.rule.limit or past.seen, past.seen)
    window = query - torch.arange(reach, device=groups.device)
    sinks = past.filed()[2][:, None, None, :]
    shape = (batch, routings, count, -1)
    found = [
        (window.expand(shape), _real(past, window.expand(batch, 1, count, -1)) & (window >= low)),
        (sinks, (sinks >= low) & (sinks < near)),
    ]
    if past.lists is not None:
        found += [_far(groups, past, low, near)]
    if extra is not None:
        found += [_further(groups, extra, past, low, near)]
    index = torch.cat([each.expand(shape) for each, _ in found], -1)
    kept = torch.cat([own.expand(shape) for _, own in found], -1)
    if past.real is not None:
        kept = kept & past.real[:, None, -count:, None]
    return index, kept


def _spans(past: Past, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(M, 1) each: the queries' positions, the first that they may read, the first of what they
    read whatever the groups."""
    query = torch.arange(past.seen - count, past.seen, device=device).unsqueeze(1)
    low = torch.full_like(query, past.first)
    if past.rule.limit is not None:
        low = (query - past.rule.limit + 1).clamp_min(past.first)
    return query, low, torch.maximum(low, query - past.rule.reach + 1)


def _far(groups: Tensor, past: Past, low: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """What the lists of each query's groups hold beyond the window."""
    if past.lists is None or past.lengths is None:
        raise RuntimeError("there are no lists")
    bits, lists = past.filed()[1], past.lists[..., : past.longest]
    member, chosen = groups.byte().topk(min(past.rule.query_groups, groups.shape[3]), -1)
    b, r = _key_routings(groups, lists)
    own, lengths = lists[b, r, chosen].long(), past.lengths[b, r, chosen].unsqueeze(-1)
    held = torch.arange(own.shape[-1], device=own.device) < lengths
    kept = held & member.bool().unsqueeze(-1) & (own >= low[..., None]) & (own < near[..., None])
    if past.rule.key_groups > 1 and chosen.shape[-1] > 1:
        # Of the groups that a query and a key share, the first alone counts the pair.
        before = pack(_one_hot(chosen, groups).cumsum(-2) - _one_hot(chosen, groups) > 0)
        at = (own - past.first).clamp(0, bits.shape[2] - 1)
        shared = bits[b.unsqueeze(-1), r.unsqueeze(-1), at] & before.unsqueeze(-2)
        kept = kept & (shared == 0).all(-1)
    return own.flatten(3), kept.flatten(3)


def _one_hot(chosen: Tensor, groups: Tensor) -> Tensor:
    number = torch.arange(groups.shape[3], device=groups.device)
    return ((chosen.unsqueeze(-1) == number) & groups.unsqueeze(-2)).byte()


def _further(groups: Tensor, extra: Tensor, past: Past, low: Tensor,
             near: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Further keys (B, M, E) that no group of a query finds."""
    bits, sinks = past.filed()[1:]
    own = extra.unsqueeze(1)
    kept = (own >= low) & (own < near) & (own.unsqueeze(-1) != sinks[:, None, None, None]).all(-1)
    b, r = _key_routings(groups, bits)
    at = (own - past.first).clamp_min(0).expand(-1, groups.shape[1], -1, -1)
    shared = bits[b, r, at] & pack(groups).unsqueeze(-2)
    return own, kept & _real(past, own) & (shared == 0).all(-1)


def _key_routings(groups: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (B, 1, 1, 1) and (R, 1, 1) of the key routing that each query routing reads."""
    batch, routings = groups.shape[:2]
    b = torch.arange(batch, device=groups.device)[:, None, None, None]
    r = torch.arange(routings, device=groups.device) * keys.shape[1] // routings
    return b, r[:, None, None]


def _real(past: Past, position: Tensor) -> Tensor:
    """Which positions (B, R, M, N) are of real tokens."""
    if past.real is None:
        return torch.ones_like(position, dtype=torch.bool)
    at = position.clamp(0, past.seen - 1)
    return past.real.gather(1, at.flatten(1)).view_as(at)


def masked(query: Tensor, groups: Tensor, extra: Tensor | None, past: Past, scale: float,
           softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`gathered`, by all keys under a mask: for many queries at once."""
    rows = past.filed()[0][:, :, : past.seen - past.first]
    batch, heads, count, _ = query.shape
    key, value = rows.unbind(3)
    step = max(1, MASK_ENTRIES // (batch * heads * rows.shape[2]))
    outs, total = [], torch.zeros((), dtype=torch.int64, device=query.device)
    for start in range(0, count, step):
        own = slice(start, start + step)
        kept = _pairs(groups, extra, past, own)
        total = total + kept.sum()
        if kept.shape[1] > 1:
            kept = kept.repeat_interleave(heads // kept.shape[1], 1)
        outs.append(_attend(query[:, :, own], key, value, kept, scale, softcap))
    return torch.cat(outs, 2), total


def _pairs(groups: Tensor, extra: Tensor | None, past: Past, own: slice) -> Tensor:
    """(B, R, M, N) bool: what some of the last tokens keep."""
    _, bits, sinks = past.filed()
    query, low, near = (each[own] for each in _spans(past, groups.shape[2], groups.device))
    position = torch.arange(past.first, past.seen, device=groups.device)
    key_groups = unpack(bits[:, :, : len(position)], groups.shape[3])
    if groups.shape[1] > key_groups.shape[1]:
        key_groups = key_groups.repeat_interleave(groups.shape[1] // key_groups.shape[1], 1)
    kept = groups[:, :, own].float() @ key_groups.float().transpose(-1, -2) > 0
    is_sink = (position == sinks.unsqueeze(-1)).any(1)[:, None, None]
    kept = kept | (position >= near) | is_sink
    if extra is not None:
        kept = kept | named_keys(extra[:, own], past.first, len(position))
    kept = kept & (position <= query) & (position >= low)
    if past.real is not None:
        real = past.real[:, -groups.shape[2] :][:, own]
        kept = kept & past.real[:, None, None, past.first :] & real[:, None, :, None]
    return kept


def _attend(query: Tensor, key: Tensor, value: Tensor, kept: Tensor, scale: float,
            softcap: float | None) -> Tensor:  # fmt: skip
    """Softmax over the kept keys; zeros where there are none."""
    # A step of a GPU goes the second way: cuDNN, which torch takes there, plans anew for every
    # number of keys, for milliseconds.
    if softcap is None and not (query.is_cuda and query.shape[2] == 1):
        out = scaled_dot_product_attention(query, key, value, attn_mask=kept, scale=scale,
                                           enable_gqa=query.shape[1] > key.shape[1])  # fmt: skip
    else:
        upcast = torch.promote_types(query.dtype, torch.float32)
        folded = query.to(upcast).unflatten(1, (key.shape[1], -1))
        logits = folded @ key.to(upcast).transpose(-1, -2).unsqueeze(2) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits.flatten(1, 2)
        weights = torch.softmax(logits.masked_fill(~kept, -torch.inf), -1)
        weights = weights.unflatten(1, (key.shape[1], -1))
        out = (weights @ value.to(upcast).unsqueeze(2)).flatten(1, 2).to(query.dtype)
    return out.masked_fill(~kept.any(-1, keepdim=True), 0.0)
