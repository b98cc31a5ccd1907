"""Kernels of a decoding step: new tokens are filed, each query reads the keys that it keeps where
they lie, in several programs, and what these found is combined.

Shape suffixes: B batch, M new tokens, H query heads, Hk key heads, R routings of keys (1 or Hk), Rq
of queries (1, Hk or H), D head dimension, K groups, N rows of the buffer, L positions of a list, S
sinks, E further keys of a query, C keys of a step, P programs of a query.
"""

# No `from __future__ import annotations`: Triton reads the annotations of its kernels.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["start", "first", "seen", "M", "HK", "R", "K", "S", "N", "L"])
def file(
    key, value, groups, real, sinks, rows, bits, lists, lengths,
    start, first, seen, M, HK, R, K, S, N, L,
    D: tl.constexpr, PADDED: tl.constexpr, LISTED: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """key, value (B, Hk, M, D) into rows (B, Hk, N, 2, D); groups (B, R, M, K) into bits (B, R, N)
    and lists (B, R, K, L) with lengths (B, R, K), but for sinks (B, S) and padding."""
    batch, head = tl.program_id(0), tl.program_id(1)
    dims_D, group_K = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_K)
    held_D, held_K = dims_D < D, group_K < K
    own, routing = (batch * HK + head).to(tl.int64), (batch * R + head).to(tl.int64)
    if head < HK:
        for number in range(M):
            at = (own * M + number) * D
            key_D = tl.load(key + at + dims_D, held_D, 0.0)
            value_D = tl.load(value + at + dims_D, held_D, 0.0)
            if PADDED:  # 0 * NaN is NaN: what stands in padding must not reach a real row
                is_real = tl.load(real + batch * seen + start + number) != 0
                key_D, value_D = tl.where(is_real, key_D, 0.0), tl.where(is_real, value_D, 0.0)
            to = (own * N + start + number - first) * (2 * D)
            tl.store(rows + to + dims_D, key_D, held_D)
            tl.store(rows + to + D + dims_D, value_D, held_D)
    if head < R:
        bit_K = tl.full([BLOCK_K], 1, tl.int64) << group_K.to(tl.int64)
        length_K = tl.zeros([BLOCK_K], tl.int32)
        if LISTED:
            length_K = tl.load(lengths + routing * K + group_K, held_K, 0)
        for number in range(M):
            member_K = tl.load(groups + (routing * M + number) * K + group_K, held_K, 0) != 0
            if PADDED:
                member_K &= tl.load(real + batch * seen + start + number + 0 * group_K) != 0
            for sink in range(S):
                member_K &= tl.load(sinks + batch * S + sink + 0 * group_K) != start + number
            tl.store(bits + routing * N + start + number - first,
                     tl.sum(tl.where(member_K, bit_K, 0), 0))  # fmt: skip
            if LISTED:
                to_K = (routing * K + group_K) * L + length_K
                tl.store(lists + to_K, tl.zeros([BLOCK_K], tl.int32) + (start + number), member_K)
                length_K += member_K.to(tl.int32)
        if LISTED:
            tl.store(lengths + routing * K + group_K, length_K, held_K)


@triton.jit
def _read(rows, start, position_C, kept_C, query_D, dims_D, softcap, out_D, total, most, count,
          D: tl.constexpr, SOFTCAP: tl.constexpr):  # fmt: skip
    """The softmax after the keys at ``start`` + position, where they count."""
    at_CD = (start + position_C.to(tl.int64))[:, None] * (2 * D) + dims_D[None, :]
    held_CD = kept_C[:, None] & (dims_D < D)[None, :]
    key_CD = tl.load(rows + at_CD, held_CD, 0.0).to(tl.float32)
    score_C = tl.sum(query_D[None, :] * key_CD, 1)
    if SOFTCAP:
        score_C = softcap * (2.0 * tl.sigmoid(2.0 * score_C / softcap) - 1.0)
    score_C = tl.where(kept_C, score_C * LOG2_E, -float("inf"))
    new = tl.maximum(most, tl.max(score_C, 0))
    level = tl.where(new == -float("inf"), 0.0, new)
    weight_C, shrink = tl.exp2(score_C - level), tl.exp2(most - level)
    value_CD = tl.load(rows + at_CD + D, held_CD, 0.0).to(tl.float32)
    out_D = out_D * shrink + tl.sum(weight_C[:, None] * value_CD, 0)
    total = total * shrink + tl.sum(weight_C, 0)
    return out_D, total, new, count + tl.sum(kept_C.to(tl.int32), 0)


@triton.jit(do_not_specialize=["seen", "first", "reach", "limit", "M", "H", "HK", "R", "RQ", "K",
                               "S", "E", "N", "L"])  # fmt: skip
def step(
    query, rows, bits, lists, lengths, sinks, groups, extra, real, parts, levels, counts,
    seen, first, reach, limit, M, H, HK, R, RQ, K, S, E, N, L, scale, softcap,
    D: tl.constexpr, PADDED: tl.constexpr, LISTED: tl.constexpr, REPEATED: tl.constexpr,
    SOFTCAP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """query (B, H, M, D), groups (B, Rq, M, K), extra (B, M, E) over what :func:`file` wrote; parts
    (B, H, M, P, D) of the output, their levels in base 2, and the pairs kept, (B, H, M, P)."""
    number, program = tl.program_id(0) % M, tl.program_id(1)
    head, batch = tl.program_id(0) // M % H, tl.program_id(0) // M // H
    dims_D, some_C, group_K = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_K)
    position = seen - M + number
    low = tl.maximum(first, position - limit + 1)
    near = tl.maximum(low, position - reach + 1)
    key_head, routing = head // (H // HK), head * RQ // H
    start = (batch * HK + key_head).to(tl.int64) * N - first
    of_keys = (batch * R + key_head * R // HK).to(tl.int64)
    of_query = ((batch * RQ + routing) * M + number) * K
    query_D = tl.load(query + tl.program_id(0).to(tl.int64) * D + dims_D, dims_D < D, 0.0)
    query_D = query_D.to(tl.float32) * scale
    out_D, total = tl.zeros([BLOCK_D], tl.float32), 0.0
    most, count = -float("inf"), 0
    for begin in range(near + program * BLOCK_C, position + 1, P * BLOCK_C):
        key_C = begin + some_C
        kept_C = key_C <= position
        if PADDED:
            kept_C &= tl.load(real + batch * seen + key_C, kept_C, 0) != 0
        out_D, total, most, count = _read(rows, start, key_C, kept_C, query_D, dims_D, softcap,
                                          out_D, total, most, count, D, SOFTCAP)  # fmt: skip
    if program == 0:
        for begin in range(0, S, BLOCK_C):
            key_C = tl.load(sinks + batch * S + begin + some_C, begin + some_C < S, -1)
            kept_C = (key_C >= low) & (key_C < near)
            out_D, total, most, count = _read(rows, start, key_C, kept_C, query_D, dims_D, softcap,
                                              out_D, total, most, count, D, SOFTCAP)  # fmt: skip
    before = tl.zeros([1], tl.int64)
    if LISTED:
        for group in range(K):
            if tl.load(groups + of_query + group) != 0:
                length = tl.load(lengths + of_keys * K + group)
                for begin in range(program * BLOCK_C, length, P * BLOCK_C):
                    held_C = begin + some_C < length
                    at_C = (of_keys * K + group) * L + begin + some_C
                    key_C = tl.load(lists + at_C, held_C, -1)
                    kept_C = (key_C >= low) & (key_C < near)
                    if REPEATED:
                        bits_C = tl.load(bits + of_keys * N - first + key_C, kept_C, 0)
                        kept_C &= (bits_C & before) == 0
                    out_D, total, most, count = _read(rows, start, key_C, kept_C, query_D, dims_D,
                                                      softcap, out_D, total, most, count, D,
                                                      SOFTCAP)  # fmt: skip
                before |= tl.full([1], 1, tl.int64) << group
    if program == P - 1:
        member_K = tl.load(groups + of_query + group_K, group_K < K, 0) != 0
        bit_K = tl.full([BLOCK_K], 1, tl.int64) << group_K.to(tl.int64)
        own = tl.sum(tl.where(member_K, bit_K, 0), 0)
        for begin in range(0, E, BLOCK_C):
            held_C = begin + some_C < E
            key_C = tl.load(extra + (batch * M + number) * E + begin + some_C, held_C, -1)
            kept_C = (key_C >= low) & (key_C < near)
            if PADDED:
                kept_C &= tl.load(real + batch * seen + key_C, kept_C, 0) != 0
            for sink in range(S):
                kept_C &= tl.load(sinks + batch * S + sink) != key_C
            kept_C &= (tl.load(bits + of_keys * N - first + key_C, kept_C, 0) & own) == 0
            out_D, total, most, count = _read(rows, start, key_C, kept_C, query_D, dims_D, softcap,
                                              out_D, total, most, count, D, SOFTCAP)  # fmt: skip
    if PADDED:
        is_real = tl.load(real + batch * seen + position) != 0
        total, count = tl.where(is_real, total, 0.0), tl.where(is_real, count, 0)
    if head % (H // RQ) > 0:  # a routing's pairs count once
        count = 0
    some = tl.where(total > 0, total, 1.0)
    to = tl.program_id(0).to(tl.int64) * P + program
    tl.store(parts + to * D + dims_D, out_D / some, dims_D < D)
    tl.store(levels + to, tl.where(total > 0, most + tl.log2(some), -float("inf")))
    tl.store(counts + to, count)


@triton.jit
def combine(parts, levels, out, D: tl.constexpr, BLOCK_D: tl.constexpr, P: tl.constexpr):
    """out (B, H, M, D): parts by their levels; zeros where none has any key."""
    own = tl.program_id(0).to(tl.int64)
    dims_D, program_P = tl.arange(0, BLOCK_D), tl.arange(0, P)
    level_P = tl.load(levels + own * P + program_P)
    most = tl.max(level_P, 0)
    weight_P = tl.exp2(level_P - tl.where(most == -float("inf"), 0.0, most))
    at_PD = (own * P + program_P)[:, None] * D + dims_D[None, :]
    part_PD = tl.load(parts + at_PD, (dims_D < D)[None, :], 0.0)
    part_PD = tl.where((weight_P > 0)[:, None], part_PD, 0.0)
    total = tl.sum(weight_P, 0)
    out_D = tl.sum(weight_P[:, None] * part_PD, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + own * D + dims_D, out_D.to(out.dtype.element_ty), dims_D < D)
