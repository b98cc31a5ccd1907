"""A decoding step on CUDA: three kernels, and nothing that the host waits for.

Shape suffixes: B batch, M new tokens, H query heads, Hk key heads, D head dimension, K groups, E
further keys of a query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.attention.past import Past
from focus.attention.triton.call import MOST_DIM, MOST_GROUPS, installed, power

FEW = 8  # new tokens: more are a prompt, whose keys are read together
KEYS = 64  # of a step
PROGRAMS = 512  # that a device is to be busy with
FAR = 2**30  # a reach or limit beyond any text
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def computes(query: Tensor, key_groups: Tensor) -> bool:
    """Whether the kernels take new tokens of this device, dtype, number and size."""
    fits = query.shape[-1] <= MOST_DIM and key_groups.shape[-1] <= MOST_GROUPS
    known = query.is_cuda and query.dtype in DTYPES and installed()
    return known and fits and query.shape[2] <= FEW and not torch.compiler.is_compiling()


def attend(query: Tensor, key: Tensor, value: Tensor, query_groups: Tensor, key_groups: Tensor,
           past: Past, extra: Tensor | None, real: Tensor | None, scale: float,
           softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`focus.attention.decode.decode_attention`, for what :func:`computes` allows; beside
    the output the pairs that were kept, of all query routings, to be summed."""
    from focus.attention.triton import decoding

    start = past.make_room(key, key_groups, real)
    rows, bits, sinks = past.filed()
    rule, padded, listed = past.rule, past.real is not None, past.lists is not None
    (batch, heads, new, dim), (_, routings, _, groups) = query.shape, key_groups.shape
    key_heads, block_k = key.shape[1], power(groups)
    query, key, value, query_groups, key_groups = (
        each.detach().contiguous() for each in (query, key, value, query_groups, key_groups)
    )
    none = sinks  # in place of what is not read
    known = none if past.real is None else past.real.view(torch.uint8)
    lists = none if past.lists is None else past.lists
    lengths = none if past.lengths is None else past.lengths
    length = 0 if past.lists is None else past.lists.shape[3]
    with torch.cuda.device_of(query):
        decoding.file[(batch, max(key_heads, routings))](
            key, value, key_groups, known, sinks, rows, bits, lists, lengths, start, past.first,
            past.seen, new, key_heads, routings, groups, sinks.shape[1], rows.shape[2], length,
            D=dim, PADDED=padded, LISTED=listed, BLOCK_D=power(dim), BLOCK_K=block_k,
        )  # fmt: skip
        queries, programs = batch * heads * new, _programs(batch * heads * new, past)
        parts = query.new_empty(queries, programs, dim, dtype=torch.float32)
        levels = parts.new_empty(queries, programs)
        counts = levels.new_empty(queries, programs, dtype=torch.int32)
        decoding.step[(queries, programs)](
            query, rows, bits, lists, lengths, sinks, query_groups,
            none if extra is None else extra.contiguous(), known, parts, levels, counts,
            past.seen, past.first, min(rule.reach, FAR), FAR if rule.limit is None else rule.limit,
            new, heads, key_heads, routings, query_groups.shape[1], groups, sinks.shape[1],
            0 if extra is None else extra.shape[2], rows.shape[2], length, scale, softcap or 1.0,
            D=dim, PADDED=padded, LISTED=listed, SOFTCAP=softcap is not None,
            REPEATED=rule.query_groups > 1 and rule.key_groups > 1, BLOCK_D=power(dim),
            BLOCK_K=block_k, BLOCK_C=KEYS, P=programs,
        )  # fmt: skip
        out = torch.empty_like(query)
        decoding.combine[(queries,)](parts, levels, out, D=dim, BLOCK_D=power(dim), P=programs)
    return out, counts


def _programs(queries: int, past: Past) -> int:
    """Of each query, a power of two: enough for the device, none without keys to read."""
    keys = min(past.rule.reach, past.rule.limit or past.seen, past.seen)
    if past.lists is not None:
        keys += past.rule.query_groups * past.longest
    wanted = min(PROGRAMS // queries, keys // KEYS, 64)
    return 1 << max(0, wanted.bit_length() - 1)
