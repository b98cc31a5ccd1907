"""Kernels of memberships: chosen from projections, and packed as bits.

Shape suffixes: B batch, T tokens, S sides (those of queries, then the keys'; one where both are the
same), Hq and Hr routings of queries and keys, Hm of either, R routing dimension, K groups, C those
and that of the heavy hitters, N sinks.
"""

# No `from __future__ import annotations`: Triton reads the annotations of its kernels.

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens", "query_top", "key_top", "HQ", "HR", "S", "K"])
def choose(
    projected, centroids, potentials, taken_at, heavy, query, key, tokens, query_top, key_top,
    HQ, HR, S, K, R: tl.constexpr, COSINE: tl.constexpr, ALLOCATED: tl.constexpr,
    HEAVY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """projected (B, T, S, Hr, R), centroids (S, Hr, R, K), potentials (S, Hr, K), taken_at (Hq, K),
    heavy (B, T, Hr) into query (B, Hq, T, C) and key (B, Hr, T, C); of equal scores the lower
    group's counts."""
    token_T, dims_R, group_K = (
        tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_R),
        tl.arange(0, BLOCK_K),
    )  # fmt: skip
    batch, routing = tl.program_id(1).to(tl.int64), tl.program_id(2)
    held_T, of_keys = token_T < tokens, routing >= HQ
    head = tl.where(of_keys, routing - HQ, routing * HR // HQ)
    side = tl.where(of_keys, S - 1, routing % (HQ // HR))
    unit, token = side * HR + head, batch * tokens + token_T
    at_TR = (token * (S * HR) + unit)[:, None] * R + dims_R[None, :]
    routed_TR = tl.load(projected + at_TR, held_T[:, None] & (dims_R < R)[None, :], 0.0)
    if COSINE:
        norm_T = tl.sqrt(tl.sum(routed_TR * routed_TR, 1))
        routed_TR = routed_TR / tl.maximum(norm_T, 1e-12)[:, None]  # as torch's normalize
    at_RK = (unit * R + dims_R)[:, None] * K + group_K[None, :]
    own_RK = tl.load(centroids + at_RK, (dims_R < R)[:, None] & (group_K < K)[None, :], 0.0)
    score_TK = tl.dot(routed_TR, own_RK, input_precision="ieee")
    score_TK += tl.load(potentials + unit * K + group_K, group_K < K, -float("inf"))[None, :]
    if ALLOCATED:
        own_K = group_K < tl.where(of_keys, 0, K)
        taken_K = tl.load(taken_at + routing * K + group_K, own_K, float("inf"))
        query_top = tl.sum((taken_K <= query_top).to(tl.int32), 0)
    top = tl.where(of_keys, key_top, query_top)
    member_TK = token_T[:, None] + group_K[None, :] < 0
    for _ in range(top):
        left_TK = tl.where(member_TK, -float("inf"), score_TK)
        best_TK = left_TK == tl.max(left_TK, 1)[:, None]
        first_T = tl.min(tl.where(best_TK, group_K[None, :], BLOCK_K), 1)
        member_TK |= group_K[None, :] == first_T[:, None]
    columns = K
    if HEAVY:
        columns += 1
        heavy_T = tl.load(heavy + token * HR + head, held_T, 0.0) > 0
        last_TK = (group_K == K)[None, :] & (heavy_T[:, None] | (routing < HQ))
        member_TK = last_TK | (member_TK & ~(heavy_T & of_keys)[:, None])
    kept_TK = held_T[:, None] & (group_K < columns)[None, :]
    if of_keys:
        at_T = (batch * HR + head) * tokens + token_T
        tl.store(key + at_T[:, None] * columns + group_K[None, :], member_TK, kept_TK)
    else:
        at_T = (batch * HQ + routing) * tokens + token_T
        tl.store(query + at_T[:, None] * columns + group_K[None, :], member_TK, kept_TK)


@triton.jit(do_not_specialize=["tokens", "HM", "K", "N", "of_batch", "of_head", "of_token"])
def pack(
    membership, sinks, bits, tokens, HM, K, N, of_batch, of_head, of_token, SINK: tl.constexpr,
    PADDED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """membership (B, Hm, T, K), by its strides, into bits (B, Hm, T): one for each group, and SINK
    for the N first tokens, or with padding those that ``sinks`` (B, N) names."""
    token_T, group_K = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    batch, head, held_T = tl.program_id(1) // HM, tl.program_id(1) % HM, token_T < tokens
    start = batch.to(tl.int64) * of_batch + head.to(tl.int64) * of_head
    at_TK = start + token_T.to(tl.int64)[:, None] * of_token + group_K[None, :]
    member_TK = tl.load(membership + at_TK, held_T[:, None] & (group_K < K)[None, :], 0) != 0
    bit_K = tl.full([BLOCK_K], 1, tl.int64) << group_K.to(tl.int64)
    bits_T = tl.sum(tl.where(member_TK, bit_K[None, :], 0), 1)
    one = tl.full([BLOCK_T], 1, tl.int64) << SINK
    if PADDED:
        for number in range(N):
            bits_T |= tl.where(token_T == tl.load(sinks + batch * N + number), one, 0)
    else:
        bits_T |= tl.where(token_T < N, one, 0)
    to = bits + tl.program_id(1).to(tl.int64) * tokens
    tl.store(to + token_T, bits_T.to(bits.dtype.element_ty), held_T)
