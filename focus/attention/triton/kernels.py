"""The kernels of a whole sequence: ``masked``, all earlier keys under the mask, or sinks and the
window alone, and then ``distant``, those that groups keep; then ``further``. Each goes on with the
softmax of the one before: what it left in ``out`` and ``lse`` is the next one's start, so nothing
is merged.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, S sinks, R
routings, Hm of a sequence, K groups, N keys of all lists, Hs key heads of a routing, E queries of
all lists, G blocks of queries, M queries of a block, C keys of a step.
"""

# No `from __future__ import annotations`: Triton reads the annotations of its kernels.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _take(out_MD, total_M, most_M, scores_MC, value_CD):
    """The softmax, as sums relative to 2^most, after further scores in base 2."""
    new_M = tl.maximum(most_M, tl.max(scores_MC, 1))
    # A row that has met no key yet has no level to compare with.
    level_M = tl.where(new_M == -float("inf"), 0.0, new_M)
    weights_MC = tl.exp2(scores_MC - level_M[:, None])
    shrink_M = tl.exp2(most_M - level_M)
    out_MD = out_MD * shrink_M[:, None]
    out_MD = tl.dot(weights_MC.to(value_CD.dtype), value_CD, out_MD)
    return out_MD, total_M * shrink_M + tl.sum(weights_MC, 1), new_M


@triton.jit
def _meet(query_MD, key, value, at_CD, held_CD, kept_MC, factor, out_MD, total_M, most_M):
    """The softmax after further keys and values, of rows at these places; kept_MC: None: all."""
    key_CD, value_CD = tl.load(key + at_CD, held_CD, 0.0), tl.load(value + at_CD, held_CD, 0.0)
    scores_MC = tl.dot(query_MD, tl.trans(key_CD), input_precision="ieee") * factor
    if kept_MC is not None:
        scores_MC = tl.where(kept_MC, scores_MC, -float("inf"))
    return _take(out_MD, total_M, most_M, scores_MC, value_CD)


@triton.jit
def _store(out, lse, out_MD, total_M, most_M, row_M, valid_M, dims_D, D: tl.constexpr):
    some_M = tl.where(total_M > 0, total_M, 1.0)
    found_MD = out_MD / some_M[:, None]
    held_MD = valid_M[:, None] & (dims_D < D)[None, :]
    tl.store(out + row_M[:, None] * D + dims_D[None, :], found_MD.to(out.dtype.element_ty), held_MD)
    tl.store(lse + row_M, (most_M + tl.log2(some_M)) * LN_2, valid_M)


@triton.jit(do_not_specialize=["tokens", "window", "H", "HK", "HM", "S"])
def masked(
    query, key, value, query_bits, key_bits, sinks, real, out, lse, tokens, window, scale, H, HK,
    HM, S, D: tl.constexpr, SINK: tl.constexpr, LISTED: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Pairs of the window, and of one group beyond it; where these are LISTED, sinks alone.
    query, out (B, T, H, D), key and value (B, T, Hk, D), bits (B, Hm, T) as of ``pack``, sinks
    (B, S) positions, T where there are fewer, real (B, T), lse (B, T, H)."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the most work first
    batch, head = tl.program_id(1) // H, tl.program_id(1) % H
    token_M, dims_D = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    valid_M, held_D, text = token_M < tokens, dims_D < D, batch.to(tl.int64) * tokens
    row_M = (text + token_M) * H + head
    query_MD = tl.load(query + row_M[:, None] * D + dims_D[None, :],
                       valid_M[:, None] & held_D[None, :], 0.0)  # fmt: skip
    bits = (batch * HM + head * HM // H).to(tl.int64) * tokens
    if not LISTED:
        bits_M = tl.load(query_bits + bits + token_M, valid_M, 0)
        bits_M |= (tl.full([BLOCK_M], 1, tl.int64) << SINK).to(bits_M.dtype)
    start, factor = text * HK + head // (H // HK), scale * LOG2_E
    out_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total_M = tl.zeros([BLOCK_M], tl.float32)
    most_M = tl.full([BLOCK_M], -float("inf"), tl.float32)
    low = tl.maximum(first - window + 1, 0) // BLOCK_N * BLOCK_N
    if LISTED:
        for first_sink in range(0, S, BLOCK_S):
            at_C = first_sink + tl.arange(0, BLOCK_S)
            key_C = tl.load(sinks + batch * S + at_C, at_C < S, tokens)
            found_C = key_C < tokens
            at_CD = (start + key_C.to(tl.int64) * HK)[:, None] * D + dims_D[None, :]
            kept_MC = found_C[None, :] & (token_M[:, None] - key_C[None, :] >= window)
            held_CD = found_C[:, None] & held_D[None, :]
            out_MD, total_M, most_M = _meet(query_MD, key, value, at_CD, held_CD, kept_MC, factor,
                                            out_MD, total_M, most_M)  # fmt: skip
    else:
        for first_key in range(0, low, BLOCK_N):
            key_C = first_key + tl.arange(0, BLOCK_N)
            held_CD = held_D[None, :]
            if PADDED:  # 0 * NaN is NaN: what stands in padding must not be read
                held_CD = (tl.load(real + text + key_C) != 0)[:, None] & held_CD
            at_CD = (start + key_C.to(tl.int64) * HK)[:, None] * D + dims_D[None, :]
            kept_MC = (bits_M[:, None] & tl.load(key_bits + bits + key_C)[None, :]) != 0
            out_MD, total_M, most_M = _meet(query_MD, key, value, at_CD, held_CD, kept_MC, factor,
                                            out_MD, total_M, most_M)  # fmt: skip
    for first_key in range(low, tl.minimum(first + BLOCK_M, tokens), BLOCK_N):
        key_C = first_key + tl.arange(0, BLOCK_N)
        found_C = key_C < tokens
        if PADDED:
            found_C &= tl.load(real + text + key_C, found_C, 0) != 0
        at_CD = (start + key_C.to(tl.int64) * HK)[:, None] * D + dims_D[None, :]
        behind_MC = token_M[:, None] - key_C[None, :]
        kept_MC = behind_MC < window
        if not LISTED:
            bits_C = tl.load(key_bits + bits + key_C, found_C, 0)
            kept_MC |= (bits_M[:, None] & bits_C[None, :]) != 0
        kept_MC &= found_C[None, :] & (behind_MC >= 0)
        held_CD = found_C[:, None] & held_D[None, :]
        out_MD, total_M, most_M = _meet(query_MD, key, value, at_CD, held_CD, kept_MC, factor,
                                        out_MD, total_M, most_M)  # fmt: skip
    if PADDED:  # zeros for padding: as where there is no key
        real_M = tl.load(real + text + token_M, valid_M, 0) != 0
        out_MD = tl.where(real_M[:, None], out_MD, 0.0)
        total_M, most_M = tl.where(real_M, total_M, 1.0), tl.where(real_M, most_M, 0.0)
    _store(out, lse, out_MD, total_M, most_M, row_M, valid_M, dims_D, D)


@triton.jit(do_not_specialize=["tokens", "H", "HM", "HS", "K"])
def distant(
    query, key, value, out, lse, token_E, allowed_E, bits_E, bits_N, starts, first_G, stop_G,
    list_G, tokens, scale, H, HM, HS, K,
    D: tl.constexpr, REPEATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Each query's pairs with the first ``allowed`` keys of its list. query, out (B, T, H, D), lse
    (B, T, H); key and value (N, Hs, D), list after list, of which each begins at ``starts``;
    token_E, allowed_E and, where pairs may repeat, bits_E of the groups before this one that
    queries are in, and bits_N of all that keys are; queries first_G..stop_G of list_G = routing * K
    + group make a block."""
    first, stop = tl.load(first_G + tl.program_id(0)), tl.load(stop_G + tl.program_id(0))
    if first < stop:
        own = tl.load(list_G + tl.program_id(0))
        batch, routing = own // K // HM, own // K % HM
        head = routing * (H // HM) + tl.program_id(1)
        at_M, dims_D = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        valid_M, held_D = at_M < stop, dims_D < D
        token_M = tl.load(token_E + at_M, valid_M, 0)
        allowed_M = tl.load(allowed_E + at_M, valid_M, 0)
        row_M = (batch.to(tl.int64) * tokens + token_M) * H + head
        held_MD = valid_M[:, None] & held_D[None, :]
        query_MD = tl.load(query + row_M[:, None] * D + dims_D[None, :], held_MD, 0.0)
        out_MD = tl.load(out + row_M[:, None] * D + dims_D[None, :], held_MD, 0.0).to(tl.float32)
        most_M = tl.load(lse + row_M, valid_M, 0.0) * LOG2_E
        total_M = tl.full([BLOCK_M], 1.0, tl.float32)
        before = tl.load(starts + own)
        start = before * HS + tl.program_id(1) // (H // HM // HS)
        if REPEATED:
            bits_M = tl.load(bits_E + at_M, valid_M, 0)
        most = tl.max(allowed_M, 0)
        least = tl.min(tl.where(valid_M, allowed_M, most), 0)
        factor = scale * LOG2_E
        whole = least // BLOCK_N * BLOCK_N
        for first_key in range(0, whole, BLOCK_N):
            key_C = first_key + tl.arange(0, BLOCK_N)
            at_CD = (start + key_C.to(tl.int64) * HS)[:, None] * D + dims_D[None, :]
            kept_MC = None
            if REPEATED:
                kept_MC = (bits_M[:, None] & tl.load(bits_N + before + key_C)[None, :]) == 0
            out_MD, total_M, most_M = _meet(query_MD, key, value, at_CD, held_D[None, :], kept_MC,
                                            factor, out_MD, total_M, most_M)  # fmt: skip
        for first_key in range(whole, most, BLOCK_N):
            key_C = first_key + tl.arange(0, BLOCK_N)
            found_C = key_C < most
            at_CD = (start + key_C.to(tl.int64) * HS)[:, None] * D + dims_D[None, :]
            held_CD = found_C[:, None] & held_D[None, :]
            kept_MC = key_C[None, :] < allowed_M[:, None]
            if REPEATED:
                bits_C = tl.load(bits_N + before + key_C, found_C, 0)
                kept_MC &= (bits_M[:, None] & bits_C[None, :]) == 0
            out_MD, total_M, most_M = _meet(query_MD, key, value, at_CD, held_CD, kept_MC, factor,
                                            out_MD, total_M, most_M)  # fmt: skip
        _store(out, lse, out_MD, total_M, most_M, row_M, valid_M, dims_D, D)


@triton.jit(do_not_specialize=["tokens", "window", "H", "HK", "HM", "E"])
def further(
    query, key, value, extra, query_bits, key_bits, real, out, lse, tokens, window, scale, H, HK,
    HM, E, D: tl.constexpr, SINK: tl.constexpr, PADDED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Keys of single queries that the mask does not keep, each once. query, out (B, T, H, D), key,
    value (B, T, Hk, D), extra (B, T, E) positions or -1, bits (B, Hm, T), lse (B, T, H)."""
    batch, head = tl.program_id(1) // H, tl.program_id(1) % H
    token_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims_D, valid_M = tl.arange(0, BLOCK_D), token_M < tokens
    held_D = dims_D < D
    place_M = batch.to(tl.int64) * tokens + token_M
    row_M = place_M * H + head
    held_MD = valid_M[:, None] & held_D[None, :]
    at_MD = row_M[:, None] * D + dims_D[None, :]
    query_MD = tl.load(query + at_MD, held_MD, 0.0).to(tl.float32) * (scale * LOG2_E)
    out_MD = tl.load(out + at_MD, held_MD, 0.0).to(tl.float32)
    most_M = tl.load(lse + row_M, valid_M, 0.0) * LOG2_E
    total_M = tl.full([BLOCK_M], 1.0, tl.float32)
    bits, text = (batch * HM + head * HM // H).to(tl.int64) * tokens, batch.to(tl.int64) * tokens
    own_M = tl.load(query_bits + bits + token_M, valid_M, 0)
    own_M |= (tl.full([BLOCK_M], 1, tl.int64) << SINK).to(own_M.dtype)
    if PADDED:
        valid_M &= tl.load(real + place_M, valid_M, 0) != 0
    for number in range(E):
        key_M = tl.load(extra + place_M * E + number, valid_M, -1)
        found_M = (key_M >= 0) & (token_M - key_M >= window)
        for other in range(number):
            found_M &= tl.load(extra + place_M * E + other, valid_M, -1) != key_M
        if PADDED:
            found_M &= tl.load(real + text + key_M, found_M, 0) != 0
        found_M &= (tl.load(key_bits + bits + key_M, found_M, 0) & own_M) == 0
        start_M = (batch.to(tl.int64) * tokens + key_M) * HK + head // (H // HK)
        from_MD, kept_MD = (
            start_M[:, None] * D + dims_D[None, :],
            found_M[:, None] & held_D[None, :],
        )
        key_MD = tl.load(key + from_MD, kept_MD, 0.0).to(tl.float32)
        score_M = tl.where(found_M, tl.sum(query_MD * key_MD, 1), -float("inf"))
        new_M = tl.maximum(most_M, score_M)
        level_M = tl.where(new_M == -float("inf"), 0.0, new_M)
        weight_M, shrink_M = tl.exp2(score_M - level_M), tl.exp2(most_M - level_M)
        value_MD = tl.load(value + from_MD, kept_MD, 0.0).to(tl.float32)
        out_MD = out_MD * shrink_M[:, None] + weight_M[:, None] * value_MD
        total_M, most_M = total_M * shrink_M + weight_M, new_M
    _store(out, lse, out_MD, total_M, most_M, row_M, valid_M, dims_D, D)
