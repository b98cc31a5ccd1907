"""Attention of new tokens to a filed past: sinks and recent tokens under a mask, and the pages met.

A step reads about k*T/K + window keys where they lie, by one compiled call, or one call a part and
a merge; nothing is gathered or sorted, and no key is copied but the new one. Several tokens at once
(a chunk of a prompt) take the same parts, with the queries that meet a page side by side.

Shape suffixes: B batch, H query heads, Hk key heads, R routings of queries (1, Hk or H), M queries,
N keys, D head dimension, K groups, U splits of a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from focus.attention.groups import merge_rows
from focus.attention.kernels import cpu_forward
from focus.attention.native import step
from focus.attention.paged_extra import PagedKey, chunk_extra, find_extra
from focus.attention.past import Past
from focus.attention.reads import Reads, Stretch
from focus.attention.recent import Recent

Part = tuple[Tensor, Tensor]  # out and lse of a call

STRETCH = 512  # queries of one masked call
# Keys up to which the CPU kernel is faster when every query head is a head of its own (float32).
UNFOLDED = 1024


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_groups: Tensor,
    key_groups: Tensor,
    past: Past,
    *,
    scale: float | None = None,
    real: Tensor | None = None,
    softcap: float | None = None,
    extra_keys: Tensor | None = None,
) -> tuple[Tensor, Reads]:
    """Appends new tokens to a past and attends from them, exactly as the hard mask says.

    Args:
        query: (B, H, M, D) floating point.
        key, value: (B, Hk, M, D) of the same tokens.
        query_groups: (B, R, M, K) bool, their groups as queries, as many as ``past.rule`` says.
        key_groups: (B, R, M, K) or, where query heads have groups of their own, (B, Hk, M, K),
            likewise as keys.
        past: what was seen before; the tokens are added to it.
        scale: factor of the logits; None means 1/sqrt(D).
        real: (B, M) bool, False for padding; None: all are real.
        softcap: see :func:`focus.dense_attention`.
        extra_keys: (B, M, E) int64, positions of a few further keys of each query, counted from the
            first token of the past, each once, none in the query's window; -1: none.

    Returns:
        (B, H, M, D), with zeros for padding; and what was read.

    Raises:
        ValueError: a gradient is asked for, groups do not fit the heads, the past has another
            dtype or does not expect further keys, or a real token's query, key or value is not
            finite.
    """
    _check_routings(query_groups.shape[1], key_groups.shape[1], query.shape[1], key.shape[1])
    new = (query, key, value)
    if torch.is_grad_enabled() and any(each.requires_grad for each in new):
        raise ValueError(
            "past_key_values: no gradient flows through a key/value cache of Focus; continue "
            "from it under torch.no_grad(), or pass the whole sequence with use_cache=False"
        )
    _check_dtypes(new, past)
    if extra_keys is not None and not past.rule.extra:
        raise ValueError("extra_keys: this past was begun without; set Rule.extra")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    rule, size = past.rule, 2 * key.shape[3] * key.element_size()
    reads = Reads(len(query), query_groups.shape[1], rule.window, rule.sinks, rule.limit, size)
    if real is not None:
        query_groups = query_groups & real[:, None, :, None]
    if query.shape[2] == 1:
        past.append(key, value, key_groups, real)
        out = _step(query, query_groups, extra_keys, past, scale, softcap, reads)
    else:
        outs = []
        for start in range(0, query.shape[2], STRETCH):
            own = slice(start, start + STRETCH)
            own_real = None if real is None else real[:, own]
            past.append(key[:, :, own], value[:, :, own], key_groups[:, :, own], own_real)
            extra = None if extra_keys is None else extra_keys[:, own]
            outs.append(
                _chunk(query[:, :, own], query_groups[:, :, own], extra, past, scale, softcap,
                       reads)
            )  # fmt: skip
        out = torch.cat(outs, 2)
    # What comes in too: an infinite key can leave every weight finite.
    checked = [out, *new]
    if real is not None:
        checked = [x.masked_fill(~real[:, None, :, None], 0.0) for x in checked]
        out = checked[0]
    if query.shape[2] == 1:  # few numbers: fewer calls
        total = torch.cat([x.flatten() for x in checked]).sum(dtype=torch.float32)
    else:
        total = torch.stack([x.sum(dtype=torch.float32) for x in checked]).sum()
    if not math.isfinite(float(total)):  # one wait for a GPU
        raise ValueError(
            "query: holds NaN or infinity at a real token (or its key or value does); find where "
            "it arises before attention"
        )
    return out, reads


def _check_dtypes(new: tuple[Tensor, ...], past: Past) -> None:
    dtypes = {each.dtype for each in new} | ({past.dtype} if past.seen else set())
    if len(dtypes) > 1:
        raise ValueError(
            f"past_key_values: {', '.join(sorted(map(str, dtypes)))} together; a cache goes on in "
            "the dtype it was begun in, the same for queries, keys and values"
        )


def _check_routings(queries: int, keys: int, heads: int, key_heads: int) -> None:
    apart = queries == heads and keys == key_heads
    if not apart and not queries == keys in (1, key_heads):
        raise ValueError(
            f"key_groups: {keys} routings of keys and {queries} of queries for {key_heads} key "
            f"heads and {heads} query heads; give 1 or {key_heads} of both, or {heads} of queries "
            f"and {key_heads} of keys"
        )


def _step(query: Tensor, groups: Tensor, extra: Tensor | None, past: Past, scale: float,
          softcap: float | None, reads: Reads) -> Tensor:  # fmt: skip
    recent = past.near()
    batch, heads, _, dim = query.shape
    key_heads, span = recent.key.shape[1], slice(recent.low, recent.high)
    chosen = _chosen(groups)
    mask = _step_mask(past, groups, chosen, extra)
    single = find_extra(past, chosen, extra)
    count = span.stop - span.start
    near = batch * groups.shape[1] * count if mask is None else mask
    if past.real is not None and mask is not None:
        near = int(((mask == 0) & past.real[:, None, None, -1:]).sum())
    stretch = Stretch(past.seen - 1, past.seen, near, 0, batch * key_heads * count, past.real)
    reads.stretches.append(stretch)
    if step.computes(query, softcap):
        read = [*_near_parts(recent, mask, heads), *_page_parts(chosen, past, heads, stretch),
                *_extra_parts(single, heads, stretch)]  # fmt: skip
        return step.attend(query, read, scale)
    # The query heads of a key head are rows of one call, so its keys are read once.
    folded = query.reshape(batch, key_heads, heads // key_heads, dim)
    apart = groups.shape[1] > key_heads  # every query head reads groups of its own
    if mask is not None and apart:
        mask = mask.reshape(batch, key_heads, -1, mask.shape[-1])
    out, lse = _rows(folded, recent.key[:, :, span], recent.value[:, :, span], scale, mask, softcap)
    if past.paged:
        if apart:
            folded, out, lse = (each.flatten(1, 2).unsqueeze(2) for each in (folded, out, lse))
        parts = _step_pages(folded, chosen, single, past, scale, softcap, stretch)
        out = _merge_step(out, lse, parts)
    return out.view(batch, heads, 1, dim)


def _near_parts(recent: Recent, mask: Tensor | None, heads: int) -> Iterator[step.KeyRun]:
    """Sinks and recent tokens of every key head; mask: (B, R, 1, N) or None."""
    batch, key_heads = recent.key.shape[:2]
    together = heads // key_heads
    if mask is not None:
        mask = mask.to(torch.float32).contiguous().squeeze(2)
    for b in range(batch):
        for h in range(key_heads):
            own = None
            if mask is not None and mask.shape[1] > key_heads:
                own = mask[b, h * together : (h + 1) * together]
            elif mask is not None:
                own = mask[b, h * mask.shape[1] // key_heads]
            start = (b * key_heads + h) * recent.key.shape[2] + recent.low
            yield step.KeyRun(b * heads + h * together, together, recent.key, recent.value, start,
                              recent.high - recent.low, own)  # fmt: skip


def _page_parts(chosen: list[list[list[int]]], past: Past, heads: int,
                stretch: Stretch) -> Iterator[step.KeyRun]:  # fmt: skip
    """The pages that each routing's queries meet."""
    for b, row in enumerate(chosen if past.paged else ()):
        together = heads // len(row)
        for r, groups in enumerate(row):
            for page in past.pages_met(b, past.key_routing(r, len(row)), groups, 1):
                key_heads, rows = page.key.shape[:2]
                stretch.paged += len(page)
                stretch.keys += key_heads * len(page)
                own = together // key_heads  # query heads of a key head
                for h in range(key_heads):
                    first = b * heads + r * together + h * own
                    start = h * rows + page.start
                    yield step.KeyRun(first, own, page.key, page.value, start, len(page))


def _extra_parts(single: list[PagedKey], heads: int, stretch: Stretch) -> Iterator[step.KeyRun]:
    """The further keys of each routing's queries, one by one."""
    for each in single:
        page, met, together = each.page, each.last - each.first, heads // each.routings
        key_heads, rows = page.key.shape[:2]
        stretch.paged += met
        stretch.keys += key_heads
        own = met * together // key_heads  # query heads of a key head
        for h in range(key_heads):
            first = each.sequence * heads + each.first * together + h * own
            yield step.KeyRun(first, own, page.key, page.value, h * rows + each.row, 1)


def _chosen(groups: Tensor) -> list[list[list[int]]]:
    """The groups of one query (B, R, 1, K), as lists of each sequence and routing."""
    return [
        [[group for group, on in enumerate(own[0]) if on] for own in row] for row in groups.tolist()
    ]


def _step_pages(folded: Tensor, chosen: list[list[list[int]]], single: list[PagedKey],
                past: Past, scale: float, softcap: float | None,
                stretch: Stretch) -> list[list[list[Part]]]:  # fmt: skip
    """What each routing's pages say: out (U, R, G, D) and lse (U, R, G) of each page."""
    routings = len(chosen[0])
    heads = folded.shape[1] // routings
    found: list[list[list[Part]]] = []
    for b, row in enumerate(chosen):
        queries = folded[b : b + 1].split(heads, 1) if routings > 1 else (folded[b : b + 1],)
        found.append([])
        for r, groups in enumerate(row):
            parts = []
            for page in past.pages_met(b, past.key_routing(r, routings), groups, 1):
                key, value, mask, tokens = page.view()
                query = queries[r].expand(len(key), -1, -1, -1)
                parts.append(_rows(query, key, value, scale, mask, softcap))
                stretch.paged += tokens
                stretch.keys += heads * tokens
            for each in single:
                if each.sequence == b and each.first <= r < each.last:
                    at = slice(each.row, each.row + 1)
                    key, value = each.page.key[:, at], each.page.value[:, at]
                    parts.append(_rows(queries[r], key[None], value[None], scale, None, softcap))
                    stretch.paged += 1
                    stretch.keys += heads
            found[b].append(parts)
    return found


def _merge_step(near: Tensor, near_lse: Tensor, parts: list[list[list[Part]]]) -> Tensor:
    """Merges the near part (B, Hk, G, D), lse (B, Hk, G), with those of the pages."""
    merged = []
    for b, row in enumerate(parts):
        if len(row) > 1 and all(
            len(own) == 1 and len(own[0][0]) == len(row[0][0][0]) for own in row
        ):  # one page a routing, split alike: all heads together
            outs, lses = zip(*(own[0] for own in row), strict=True)
            row = [[(torch.cat(outs, 1), torch.cat(lses, 1))]]
        heads = near.shape[1] // len(row)
        for r, own in enumerate(row):
            rows = slice(r * heads, (r + 1) * heads)
            every = [(near[b : b + 1, rows], near_lse[b : b + 1, rows]), *own]
            weight = torch.softmax(torch.cat([lse for _, lse in every]), 0).unsqueeze(-1)
            merged.append((torch.cat([out for out, _ in every]) * weight).sum(0))
    out = merged[0] if len(merged) == 1 else torch.cat(merged)
    return out.view(near.shape).to(near.dtype)


def _step_mask(past: Past, groups: Tensor, chosen: list[list[list[int]]],
               extra: Tensor | None) -> Tensor | None:  # fmt: skip
    """Additive mask (B, R, 1, N) of the near keys of one query; None where it reads them all."""
    rule, recent = past.rule, past.near()
    if rule.limit is not None and past.seen > rule.limit:
        return _additive(past.near_kept(groups, extra), recent.bias.dtype)
    if past.real is None and (len(recent) <= rule.window or rule.always_meet):
        return None
    mask = recent.mask(groups, rule.window, chosen)
    if extra is not None:
        for b, positions in enumerate(extra[:, 0].tolist()):
            for each in positions:
                if each >= recent.first:
                    mask[b, :, 0, each - recent.first + recent.slots - recent.low] = 0.0
    return mask


def _chunk(query: Tensor, groups: Tensor, extra: Tensor | None, past: Past, scale: float,
           softcap: float | None, reads: Reads) -> Tensor:  # fmt: skip
    recent = past.near()
    batch, heads, count, _ = query.shape
    routings, span = groups.shape[1], slice(recent.low, recent.high)
    kept = past.near_kept(groups, extra)
    mask = _additive(kept, recent.bias.dtype)
    if routings > 1:
        mask = mask.repeat_interleave(heads // routings, 1)
    out, lse = forward(
        query, recent.key[:, :, span], recent.value[:, :, span], scale, mask, softcap
    )
    keys = batch * recent.key.shape[1] * (span.stop - span.start)
    if past.real is not None:
        kept = kept & past.real[:, None, -count:, None]
    stretch = Stretch(past.seen - count, past.seen, int(kept.sum()), 0, keys, past.real)
    if past.paged:
        for b in range(batch):
            for r in range(routings):
                own = slice(r * heads // routings, (r + 1) * heads // routings)
                keys_of = b, past.key_routing(r, routings)
                _chunk_pages(query[b, own], groups[b, r], past, keys_of, scale, softcap,
                             out[b, own], lse[b, own], stretch)  # fmt: skip
        if extra is not None:
            chunk_extra(query, groups, extra, past, scale, softcap, out, lse, stretch)
    reads.stretches.append(stretch)
    return out


def _chunk_pages(query: Tensor, groups: Tensor, past: Past, routing: tuple[int, int], scale: float,
                 softcap: float | None, out: Tensor, lse: Tensor,
                 stretch: Stretch) -> None:  # fmt: skip
    """Merges one routing's pages into out (h, M, D) and lse (h, M)."""
    count = len(groups)
    wanted = groups.any(0).nonzero().flatten().tolist()
    for page, own in past.sets_met(*routing, wanted, count):
        rows = groups[:, list(own)].any(-1).nonzero().flatten()
        key, value, position = page.alive()
        mask = _limit_mask(past, rows, count, position)
        part, part_lse = forward(
            query.index_select(1, rows).unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0),
            scale, mask, softcap,
        )  # fmt: skip
        if mask is not None:
            part_lse = part_lse.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
        merge_rows(out, lse, rows, part[0], part_lse[0])
        kept = len(rows) * len(page) if mask is None else int((mask == 0).sum())
        stretch.paged += kept
        stretch.keys += key.shape[0] * len(page)


def _limit_mask(past: Past, rows: Tensor, count: int, position: Tensor) -> Tensor | None:
    """(1, 1, M, N) where the model's own window hides a part of a page from later queries."""
    limit = past.rule.limit
    if limit is None or int(position[0]) > past.seen - 1 - limit:
        return None
    query = rows + past.seen - count
    mask = torch.zeros(len(rows), len(position), device=rows.device, dtype=past.near().bias.dtype)
    return mask.masked_fill_(query[:, None] - position >= limit, -torch.inf)[None, None]


def _rows(folded: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None,
          softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:func:`forward` of (U, Hk, G, D) rows, by whichever form the kernel is faster in."""
    splits, key_heads, rows, dim = folded.shape
    half = folded.dtype in (torch.bfloat16, torch.float16)
    per_head = mask is not None and max(mask.shape[1:3]) > 1
    if half or per_head or key.shape[2] > UNFOLDED or softcap is not None:
        return forward(folded, key, value, scale, mask, softcap)
    query = folded.reshape(splits, key_heads * rows, 1, dim)
    out, lse = forward(query, key, value, scale, mask, None)
    return out.view(folded.shape), lse.view(splits, key_heads, rows)


def _additive(kept: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(kept, dtype=dtype).masked_fill_(~kept, -torch.inf)


def forward(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None,
            softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """query (B, H, M, D) over key and value (B, Hk, N, D) -> out like query, lse (B, H, M).

    mask: additive, broadcastable to (B, H, M, N). A soft-cap, or another device than the CPU,
    takes the plain formula.
    """
    if softcap is None and query.device.type == "cpu":
        return cpu_forward(query, key, value, scale, mask=mask)
    batch, heads, count, dim = query.shape
    key_heads = key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = query.to(wide).reshape(batch, key_heads, -1, dim)
    logits = (grouped @ key.to(wide).transpose(-1, -2) * scale).view(batch, heads, count, -1)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if mask is not None:
        if mask.shape[1] == key_heads != heads:
            mask = mask.repeat_interleave(heads // key_heads, 1)
        logits = logits + mask
    lse = torch.logsumexp(logits, -1)
    weight = torch.exp(logits - lse.masked_fill(torch.isneginf(lse), 0.0).unsqueeze(-1))
    out = weight.view(batch, key_heads, -1, weight.shape[-1]) @ value.to(wide)
    return out.view(batch, heads, count, dim).to(query.dtype), lse
