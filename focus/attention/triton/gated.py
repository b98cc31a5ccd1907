"""Kernels of the training gates, forward and backward: every pair is computed, none is kept.

Weights are exponentials of base 2. The gate ``log`` multiplies a distant weight by the affinity,
``eq2`` scales its logit, ``hard`` removes it where the affinity is 0.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hq and Hr routings of queries and
keys, D head dimension, K groups, M queries of a block, C keys of a block.
"""

# No `from __future__ import annotations`: Triton reads the annotations of its kernels.

import triton
import triton.language as tl

from focus.attention.triton.kernels import LN_2, LOG2_E, _take

REAL, SINK = tl.constexpr(1), tl.constexpr(2)  # bits of a token's flags
LOG, EQ2, HARD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # gates
STEEPNESS = tl.constexpr(8.0)  # of the gate eq2: focus.paper.EQ2_STEEPNESS
HIGHEST = tl.constexpr(126.0)  # log of an ungated weight over its row's sum, at most
PRECISION = tl.constexpr("tf32x3")  # of assignments: about that of float32
MEASURE = tl.constexpr(2.0**60)  # of an ungated weight, so that its gradient is a number


@triton.jit
def _rows(x, first, tokens, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Rows first.. of x (T, WIDTH), zeros beyond."""
    row, column = first + tl.arange(0, BLOCK), tl.arange(0, BLOCK_WIDTH)
    held = (row < tokens)[:, None] & (column < WIDTH)[None, :]
    return tl.load(x + row[:, None] * WIDTH + column[None, :], held, 0.0)


@triton.jit
def _put(x, first, tokens, found, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
         BLOCK_WIDTH: tl.constexpr):  # fmt: skip
    row, column = first + tl.arange(0, BLOCK), tl.arange(0, BLOCK_WIDTH)
    held = (row < tokens)[:, None] & (column < WIDTH)[None, :]
    tl.store(x + row[:, None] * WIDTH + column[None, :], found, held)


@triton.jit
def _of_head(query_groups, key_groups, flags, tokens, H, HK, HQ, HR, K: tl.constexpr):
    """The first row of a program's head in queries and in keys, and where its groups and flags
    begin."""
    batch, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    query_groups += (batch * HQ + head * HQ // H) * tokens * K
    key_groups += (batch * HR + head * HR // H) * tokens * K
    of_query, of_key = (batch * H + head) * tokens, (batch * HK + head * HK // H) * tokens
    return of_query, of_key, query_groups, key_groups, flags + batch * tokens


@triton.jit
def _pairs(query_MD, key_CD, query_MK, key_CK, flags, first, first_key, tokens, window, limit,
           factor, BLOCK_M: tl.constexpr,
           BLOCK_N: tl.constexpr):  # fmt: skip
    """Logits of base 2 before the gate, affinities, which pairs there are, and which of these are
    distant."""
    token_M, token_C = first + tl.arange(0, BLOCK_M), first_key + tl.arange(0, BLOCK_N)
    flag_M = tl.load(flags + token_M, token_M < tokens, 0)
    flag_C = tl.load(flags + token_C, token_C < tokens, 0)
    behind_MC = token_M[:, None] - token_C[None, :]
    kept_MC = (behind_MC >= 0) & (behind_MC < limit)
    kept_MC &= (flag_M & REAL != 0)[:, None] & (flag_C & REAL != 0)[None, :]
    distant_MC = kept_MC & (behind_MC >= window) & (flag_C & SINK == 0)[None, :]
    logit_MC = tl.dot(query_MD, tl.trans(key_CD), input_precision=PRECISION) * factor
    affinity_MC = tl.dot(query_MK, tl.trans(key_CK), input_precision=PRECISION)
    return logit_MC, affinity_MC, kept_MC, distant_MC


@triton.jit
def _gated(logit_MC, affinity_MC, kept_MC, distant_MC, GATE: tl.constexpr):
    """Logits after the gate."""
    if GATE == EQ2:
        gated_MC = logit_MC * tl.sigmoid(affinity_MC * STEEPNESS)
    elif GATE == LOG:
        gated_MC = logit_MC + tl.log2(affinity_MC)
    else:
        gated_MC = tl.where(affinity_MC > 0, logit_MC, -float("inf"))
    gated_MC = tl.where(distant_MC, gated_MC, logit_MC)
    return tl.where(kept_MC, gated_MC, -float("inf"))


@triton.jit
def _slopes(logit_MC, affinity_MC, kept_MC, distant_MC, lse_M, moved_MC, GATE: tl.constexpr):
    """Weights, and gradients of the logits (natural) and of the affinities, by those of the
    weights less their mean."""
    if GATE != LOG:
        gated_MC = _gated(logit_MC, affinity_MC, kept_MC, distant_MC, GATE)
        weight_MC = tl.exp2(gated_MC - lse_M[:, None])
        of_logit_MC, of_affinity_MC = weight_MC * moved_MC, tl.zeros_like(weight_MC)
        if GATE == EQ2:
            share_MC = tl.sigmoid(affinity_MC * STEEPNESS)
            of_affinity_MC = of_logit_MC * logit_MC * LN_2 * STEEPNESS * share_MC * (1.0 - share_MC)
            of_logit_MC = tl.where(distant_MC, of_logit_MC * share_MC, of_logit_MC)
    else:
        # Ungated, a distant pair may weigh more than all that is kept.
        above_MC = tl.minimum(logit_MC - lse_M[:, None], HIGHEST)
        ungated_MC = tl.where(kept_MC, tl.exp2(above_MC), 0.0)
        weight_MC = tl.where(distant_MC, ungated_MC * affinity_MC, ungated_MC)
        of_affinity_MC = tl.minimum(ungated_MC, MEASURE) * moved_MC
        of_logit_MC = weight_MC * moved_MC
    return weight_MC, of_logit_MC, tl.where(distant_MC, of_affinity_MC, 0.0)


@triton.jit(do_not_specialize=["tokens", "window", "limit", "H", "HK", "HQ", "HR"])
def attend(
    query, key, value, query_groups, key_groups, flags, out, lse, tokens, window, limit, scale, H,
    HK, HQ, HR, D: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """query (B, H, T, D), key, value (B, Hk, T, D), groups (B, Hq or Hr, T, K), flags (B, T); out
    as query, and the log-sum-exp (B, H, T) of base 2, both float32."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the most work first
    of_query, of_key, query_groups, key_groups, flags = _of_head(
        query_groups, key_groups, flags, tokens, H, HK, HQ, HR, K
    )
    query_MD = _rows(query + of_query * D, first, tokens, D, BLOCK_M, BLOCK_D)
    query_MK = _rows(query_groups, first, tokens, K, BLOCK_M, BLOCK_K)
    out_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total_M = tl.zeros([BLOCK_M], tl.float32)
    most_M = tl.full([BLOCK_M], -float("inf"), tl.float32)
    low = tl.maximum(first - limit + 1, 0) // BLOCK_N * BLOCK_N
    for first_key in range(low, tl.minimum(first + BLOCK_M, tokens), BLOCK_N):
        key_CD = _rows(key + of_key * D, first_key, tokens, D, BLOCK_N, BLOCK_D)
        key_CK = _rows(key_groups, first_key, tokens, K, BLOCK_N, BLOCK_K)
        logit_MC, affinity_MC, kept_MC, distant_MC = _pairs(
            query_MD, key_CD, query_MK, key_CK, flags, first, first_key, tokens, window, limit,
            scale * LOG2_E, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        gated_MC = _gated(logit_MC, affinity_MC, kept_MC, distant_MC, GATE)
        value_CD = _rows(value + of_key * D, first_key, tokens, D, BLOCK_N, BLOCK_D)
        out_MD, total_M, most_M = _take(out_MD, total_M, most_M, gated_MC, value_CD)
    token_M = first + tl.arange(0, BLOCK_M)
    some_M = tl.where(total_M > 0, total_M, 1.0)
    _put(out + of_query * D, first, tokens, out_MD / some_M[:, None], D, BLOCK_M, BLOCK_D)
    lse_M = tl.where(total_M > 0, most_M + tl.log2(some_M), float("inf"))  # weights of 0 backwards
    tl.store(lse + of_query + token_M, lse_M, token_M < tokens)


@triton.jit(do_not_specialize=["tokens", "window", "limit", "H", "HK", "HQ", "HR"])
def slopes_of_queries(
    query, key, value, query_groups, key_groups, flags, grad, lse, delta, d_query, d_groups, tokens,
    window, limit, scale, H, HK, HQ, HR, D: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As :func:`attend`, with the output's gradient (B, H, T, D) in the value's dtype and its
    products with the output, delta (B, H, T); d_query (B, H, T, D), d_groups (B, H, T, K), which
    the hard mask leaves unwritten."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    of_query, of_key, query_groups, key_groups, flags = _of_head(
        query_groups, key_groups, flags, tokens, H, HK, HQ, HR, K
    )
    token_M = first + tl.arange(0, BLOCK_M)
    query_MD = _rows(query + of_query * D, first, tokens, D, BLOCK_M, BLOCK_D)
    query_MK = _rows(query_groups, first, tokens, K, BLOCK_M, BLOCK_K)
    grad_MD = _rows(grad + of_query * D, first, tokens, D, BLOCK_M, BLOCK_D)
    lse_M = tl.load(lse + of_query + token_M, token_M < tokens, float("inf"))
    delta_M = tl.load(delta + of_query + token_M, token_M < tokens, 0.0)
    d_query_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    d_groups_MK = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    low = tl.maximum(first - limit + 1, 0) // BLOCK_N * BLOCK_N
    for first_key in range(low, tl.minimum(first + BLOCK_M, tokens), BLOCK_N):
        key_CD = _rows(key + of_key * D, first_key, tokens, D, BLOCK_N, BLOCK_D)
        key_CK = _rows(key_groups, first_key, tokens, K, BLOCK_N, BLOCK_K)
        logit_MC, affinity_MC, kept_MC, distant_MC = _pairs(
            query_MD, key_CD, query_MK, key_CK, flags, first, first_key, tokens, window, limit,
            scale * LOG2_E, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        value_CD = _rows(value + of_key * D, first_key, tokens, D, BLOCK_N, BLOCK_D)
        moved_MC = tl.dot(grad_MD, tl.trans(value_CD), input_precision=PRECISION) - delta_M[:, None]
        _, of_logit_MC, of_affinity_MC = _slopes(
            logit_MC, affinity_MC, kept_MC, distant_MC, lse_M, moved_MC, GATE
        )
        d_query_MD = tl.dot(of_logit_MC.to(key_CD.dtype), key_CD, d_query_MD,
                            input_precision=PRECISION)  # fmt: skip
        if GATE != HARD:
            d_groups_MK = tl.dot(of_affinity_MC, key_CK, d_groups_MK, input_precision=PRECISION)
    _put(d_query + of_query * D, first, tokens, d_query_MD * scale, D, BLOCK_M, BLOCK_D)
    if GATE != HARD:
        _put(d_groups + of_query * K, first, tokens, d_groups_MK, K, BLOCK_M, BLOCK_K)


@triton.jit(do_not_specialize=["tokens", "window", "limit", "H", "HK", "HQ", "HR"])
def slopes_of_keys(
    query, key, value, query_groups, key_groups, flags, grad, lse, delta, d_key, d_value, d_groups,
    tokens, window, limit, scale, H, HK, HQ, HR, D: tl.constexpr, K: tl.constexpr,
    GATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As :func:`slopes_of_queries`; d_key and d_value (B, H, T, D) and d_groups (B, H, T, K) are
    those of every query head, to be added up for heads that share."""
    first_key = tl.program_id(0) * BLOCK_N
    of_query, of_key, query_groups, key_groups, flags = _of_head(
        query_groups, key_groups, flags, tokens, H, HK, HQ, HR, K
    )
    key_CD = _rows(key + of_key * D, first_key, tokens, D, BLOCK_N, BLOCK_D)
    value_CD = _rows(value + of_key * D, first_key, tokens, D, BLOCK_N, BLOCK_D)
    key_CK = _rows(key_groups, first_key, tokens, K, BLOCK_N, BLOCK_K)
    d_key_CD = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_value_CD = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_groups_CK = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    # Without a limit it is more than all tokens: no sum with it may overflow.
    stop = tl.minimum(first_key + BLOCK_N + tl.minimum(limit, tokens), tokens)
    for first in range(first_key // BLOCK_M * BLOCK_M, stop, BLOCK_M):
        token_M = first + tl.arange(0, BLOCK_M)
        query_MD = _rows(query + of_query * D, first, tokens, D, BLOCK_M, BLOCK_D)
        query_MK = _rows(query_groups, first, tokens, K, BLOCK_M, BLOCK_K)
        logit_MC, affinity_MC, kept_MC, distant_MC = _pairs(
            query_MD, key_CD, query_MK, key_CK, flags, first, first_key, tokens, window, limit,
            scale * LOG2_E, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        grad_MD = _rows(grad + of_query * D, first, tokens, D, BLOCK_M, BLOCK_D)
        lse_M = tl.load(lse + of_query + token_M, token_M < tokens, float("inf"))
        delta_M = tl.load(delta + of_query + token_M, token_M < tokens, 0.0)
        moved_MC = tl.dot(grad_MD, tl.trans(value_CD), input_precision=PRECISION) - delta_M[:, None]
        weight_MC, of_logit_MC, of_affinity_MC = _slopes(
            logit_MC, affinity_MC, kept_MC, distant_MC, lse_M, moved_MC, GATE
        )
        d_value_CD = tl.dot(tl.trans(weight_MC).to(grad_MD.dtype), grad_MD, d_value_CD,
                            input_precision=PRECISION)  # fmt: skip
        d_key_CD = tl.dot(tl.trans(of_logit_MC).to(query_MD.dtype), query_MD, d_key_CD,
                          input_precision=PRECISION)  # fmt: skip
        if GATE != HARD:
            d_groups_CK = tl.dot(tl.trans(of_affinity_MC), query_MK, d_groups_CK,
                                 input_precision=PRECISION)  # fmt: skip
    _put(d_key + of_query * D, first_key, tokens, d_key_CD * scale, D, BLOCK_N, BLOCK_D)
    _put(d_value + of_query * D, first_key, tokens, d_value_CD, D, BLOCK_N, BLOCK_D)
    if GATE != HARD:
        _put(d_groups + of_query * K, first_key, tokens, d_groups_CK, K, BLOCK_N, BLOCK_K)
