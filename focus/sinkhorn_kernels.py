"""Kernels of Sinkhorn's potentials: all iterations in one launch, forward and backward.

Shape suffixes: N sequences of a batch times sides times routers, I iterations, T tokens, K groups.
"""

# No `from __future__ import annotations`: Triton reads the annotations of its kernels.

import triton
import triton.language as tl


@triton.jit
def _read(scores, flags, start, tokens, K, scale, PADDED: tl.constexpr, BLOCK_T: tl.constexpr,
          BLOCK_K: tl.constexpr):  # fmt: skip
    """Logits of a block of tokens, minus infinity beyond K; which tokens take part; where they lie
    and which of them do."""
    token_T, group_K = start + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    counts_T = token_T < tokens
    held_TK = counts_T[:, None] & (group_K < K)[None, :]
    at_TK = token_T[:, None] * K + group_K[None, :]
    logit_TK = tl.load(scores + at_TK, held_TK, 0.0) * scale
    logit_TK = tl.where((group_K < K)[None, :], logit_TK, -float("inf"))
    if PADDED:
        counts_T &= tl.load(flags + token_T, counts_T, 0) != 0
    return logit_TK, counts_T, at_TK, held_TK


@triton.jit
def _shared(logit_TK, level_K):
    """Assignments of tokens under potentials, and the log of what they were divided by."""
    moved_TK = logit_TK + level_K[None, :]
    most_T = tl.max(moved_TK, 1)
    raised_TK = tl.exp(moved_TK - most_T[:, None])
    total_T = tl.sum(raised_TK, 1)
    return raised_TK / total_T[:, None], most_T + tl.log(total_T)


@triton.jit(do_not_specialize=["tokens", "K", "iterations", "routings"])
def find(scores, flags, levels, found, tokens, K, iterations, routings, scale, temperature,
         PADDED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """scores (N, T, K) into levels (N, I, K), the potentials after every iteration, and found
    (N, K), the last at mean zero; flags (B, T) of tokens that are no padding. A sequence has
    ``routings`` of N."""
    row, group_K = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    inside_K = group_K < K
    scores, flags = scores + row * tokens * K, flags + row // routings * tokens
    level_K = tl.zeros([BLOCK_K], tl.float32)
    for step in range(iterations):
        most_K = tl.full([BLOCK_K], -float("inf"), tl.float32)
        total_K = tl.zeros([BLOCK_K], tl.float32)
        for start in range(0, tokens, BLOCK_T):
            logit_TK, counts_T, _, _ = _read(
                scores, flags, start, tokens, K, scale, PADDED, BLOCK_T, BLOCK_K
            )
            _, share_T = _shared(logit_TK, level_K)
            share_T = tl.where(step == 0, 0.0, share_T)
            left_TK = tl.where(counts_T[:, None], logit_TK - share_T[:, None], -float("inf"))
            above_K = tl.maximum(most_K, tl.max(left_TK, 0))
            safe_K = tl.where(above_K == -float("inf"), 0.0, above_K)
            total_K = total_K * tl.exp(most_K - safe_K)
            total_K += tl.sum(tl.exp(left_TK - safe_K[None, :]), 0)
            most_K = above_K
        level_K = tl.where(inside_K, -(most_K + tl.log(total_K)), 0.0)
        tl.store(levels + (row * iterations + step) * K + group_K, level_K, inside_K)
    mean = tl.sum(level_K, 0) / K
    tl.store(found + row * K + group_K, (level_K - mean) * temperature, inside_K)


@triton.jit(do_not_specialize=["tokens", "K", "iterations", "routings"])
def slopes(scores, flags, levels, d_found, d_scores, tokens, K, iterations, routings, scale,
           temperature, PADDED: tl.constexpr, BLOCK_T: tl.constexpr,
           BLOCK_K: tl.constexpr):  # fmt: skip
    """Gradients d_scores (N, T, K) of d_found (N, K), through every iteration, the last first."""
    row, group_K = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    inside_K = group_K < K
    scores, flags = scores + row * tokens * K, flags + row // routings * tokens
    d_scores, levels = d_scores + row * tokens * K, levels + row * iterations * K + group_K
    slope_K = tl.load(d_found + row * K + group_K, inside_K, 0.0) * temperature
    slope_K = tl.where(inside_K, slope_K - tl.sum(slope_K, 0) / K, 0.0)
    for back in range(iterations):
        step = iterations - 1 - back
        level_K = tl.load(levels + step * K, inside_K, 0.0)
        former_K = tl.load(levels + (step - 1) * K, group_K < tl.where(step > 0, K, 0), 0.0)
        next_K = tl.zeros([BLOCK_K], tl.float32)
        for start in range(0, tokens, BLOCK_T):
            logit_TK, counts_T, at_TK, held_TK = _read(
                scores, flags, start, tokens, K, scale, PADDED, BLOCK_T, BLOCK_K
            )
            of_groups_TK, share_T = _shared(logit_TK, former_K)
            share_T = tl.where(step == 0, 0.0, share_T)
            of_tokens_TK = tl.exp(logit_TK - share_T[:, None] + level_K[None, :])
            moved_TK = tl.where(counts_T[:, None], of_tokens_TK * slope_K[None, :], 0.0)
            d_share_T = tl.where(step == 0, 0.0, tl.sum(moved_TK, 1))
            d_moved_TK = of_groups_TK * d_share_T[:, None]
            next_K += tl.sum(d_moved_TK, 0)
            written_TK = held_TK & (group_K < tl.where(back > 0, K, 0))[None, :]
            known_TK = tl.load(d_scores + at_TK, written_TK, 0.0)
            tl.store(d_scores + at_TK, known_TK + (d_moved_TK - moved_TK) * scale, held_TK)
        slope_K = next_K
        tl.debug_barrier()  # what other threads wrote is read again
