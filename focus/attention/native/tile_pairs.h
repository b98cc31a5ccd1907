// The same tiles in bfloat16 on a processor that multiplies it (pairs.h). Softmax and sums are float32
// as elsewhere; queries, keys and values enter as they are, weights rounded to bfloat16, as in torch's
// own attention.
#pragma once

#include "pairs.h"
#include "rows.h"
#include "tile.h"

#ifdef HAS_PAIRS

enum { TOGETHER = 4, SPAN = 256 };  // rows that are softened together; keys whose weights are held at
                                    // once, of SIDE queries
static_assert(SIDE * SPAN <= TILE * BLOCK, "weights have no room");

// A pair that is not kept, at NOTHING, has no weight unless all scores are scaled to nothing.
static bool pairs_run(const Problem &p) {
    return p.bfloat16 && p.dim % DEPTH == 0 && p.scale > 1e-30f && can_pair();
}

// 2^x for x up to 0, for weights that are rounded: relative error below 5e-6.
static inline __m512 exp2_roughly(__m512 x) {
    const __m512 whole = _mm512_roundscale_ps(x, 0), f = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(9.6181291e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

// As kept(), a bit a key.
template <Rule RULE>
static inline __mmask16 kept_bits(const Tile &tile, const Keys &keys, int row, int first) {
    const auto whole = [](int x) { return _mm512_set1_epi32(x); };
    const __m512i at = _mm512_add_epi32((__m512i)counting(), whole(first));
    __mmask16 in = _mm512_cmplt_epi32_mask(at, whole(tile.high[row]));
    in = _mm512_mask_cmpge_epi32_mask(in, at, whole(tile.low[row]));
    if constexpr (RULE == RANGE) return in;
    const uint64_t asked = RULE == FIRST ? tile.groups[row] & tile.earlier : tile.groups[row];
    __mmask16 shared = _mm512_test_epi32_mask(_mm512_loadu_si512(keys.groups + first), whole((int)asked));
    if (keys.more)
        shared |= _mm512_test_epi32_mask(_mm512_loadu_si512(keys.more + first), whole((int)(asked >> 32)));
    if constexpr (RULE == FIRST) return in & ~shared;
    shared |= _mm512_cmpgt_epi32_mask(at, whole(tile.position[row] - tile.window));
    return in & (shared | _mm512_cmplt_epi32_mask(at, whole(tile.sinks)));
}

// As soften(), of TOGETHER rows, so that one need not wait for another: from scores of queries that are
// not scaled, as `most` is here, to weights in bfloat16, which are zero from there to whole steps of
// DEPTH; what the rows have summed so far fades at once. Differences are scaled, not scores: of great
// ones rounding would be all that is left.
template <Rule RULE>
static inline void soften_pairs(Tile &tile, const Keys &keys, int row, int block, int start, int stop) {
    float *scores = tile.weights + row % SIDE * SPAN - block;
    uint16_t *weights = tile.narrow_weights + row % SIDE * SPAN - block;
    const __m512 none = _mm512_set1_ps(NOTHING);
    __m512 most[TOGETHER], shift[TOGETHER], sum[TOGETHER];
    int low = 0, high = INT32_MAX;  // between them nothing needs to be asked under RANGE
    for (int r = 0; r < TOGETHER; r++) {
        most[r] = none, sum[r] = _mm512_setzero_ps();
        low = max_of(low, tile.low[row + r]), high = min_of(high, tile.high[row + r]);
    }
    for (int j = start; j < stop; j += LANES) {
        const bool asks = RULE != RANGE || j < low || j + LANES > high;
        for (int r = 0; r < TOGETHER; r++) {
            __m512 x = (__m512)load(scores + r * SPAN + j);
            if (asks) {
                x = _mm512_mask_blend_ps(kept_bits<RULE>(tile, keys, row + r, j), none, x);
                store(scores + r * SPAN + j, (Vec)x);
            }
            most[r] = _mm512_max_ps(x, most[r]);
        }
    }
    float faded[TOGETHER];
    for (int r = 0; r < TOGETHER; r++) {
        const float top = highest((Vec)most[r]), before = tile.most[row + r];
        const float now = top > before ? top : before;
        shift[r] = _mm512_set1_ps(now > -1e38f ? now : -1e38f);
        tile.most[row + r] = now;
        faded[r] = before == now ? 1.0f : exp2f((before - now) * tile.base2);
    }
    const __m512 base2 = _mm512_set1_ps(tile.base2);
    for (int j = down(start, DEPTH); j < up(stop, DEPTH); j += LANES)
        for (int r = 0; r < TOGETHER; r++) {
            __m256bh narrow = {};
            if (j >= start && j < stop) {
                const __m512 score = (__m512)load(scores + r * SPAN + j);
                const __m512 weight = exp2_roughly(_mm512_mul_ps(_mm512_sub_ps(score, shift[r]), base2));
                narrow = _mm512_cvtneps_pbh(weight), sum[r] = _mm512_add_ps(sum[r], weight);
            }
            memcpy(weights + r * SPAN + j, &narrow, sizeof(narrow));
        }
    for (int r = 0; r < TOGETHER; r++) {
        float *sums = tile.sums + (row + r) * tile.dim;
        tile.norm[row + r] = tile.norm[row + r] * faded[r] + _mm512_reduce_add_ps(sum[r]);
        for (int d = 0; faded[r] != 1 && d < tile.dim; d += LANES)
            store(sums + d, load(sums + d) * faded[r]);
    }
}

template <Rule RULE>
static void attend_pairs(Tile &tile, const Keys &keys, int rows) {
    const int dim = tile.dim;
    const Strips<TILE / SIDE, SIDE> strips(tile, rows);
    const auto *panels = (const uint32_t *)keys.panels, *values = (const uint32_t *)keys.values;
    for (int block = down(tile.begin, PANEL); block < strips.last; block += SPAN) {
        const int end = min_of(block + SPAN, strips.last);
        for (int s = 0; s < strips.count; s++) {
            const int a = max_of(block, strips.from[s]), b = min_of(end, strips.to[s]);
            if (a >= b) continue;
            const int first = s * SIDE, stop = a + up(b - a, LANES);
            float *sums = tile.sums + first * dim;
            for (int panel = down(a, PANEL); panel < b; panel += PANEL) {
                const int from = max_of(a, panel), to = min_of(stop, panel + PANEL);
                pairs_product<false>(tile.narrow_query + first * dim, dim,
                                     panels + (ptrdiff_t)panel * dim / 2 + (from - panel), PANEL, dim,
                                     tile.weights + (from - block), SPAN, (to - from) / SIDE);
            }
            for (int i = first; i < first + SIDE; i += TOGETHER)
                soften_pairs<RULE>(tile, keys, i, block, a, stop);
            const int key = down(a, DEPTH);
            for (int d = 0; d < dim; d += 4 * SIDE)
                pairs_product<true>(tile.narrow_weights + (key - block), SPAN, values + (ptrdiff_t)key / 2 * dim + d,
                                    dim, up(stop, DEPTH) - key, sums + d, dim,
                                    min_of(4, (dim - d) / SIDE));
        }
    }
}

#else

static bool pairs_run(const Problem &) { return false; }
template <Rule RULE>
static void attend_pairs(Tile &, const Keys &, int) {}

#endif
