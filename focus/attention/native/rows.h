// Rows of the caller's tensors as float32, and panels of keys as the tiles read them.
#pragma once

#include "lists.h"

static inline const char *row_of(const void *base, const int64_t *strides, int b, int h, int64_t t,
                                 int size) {
    return (const char *)base + (b * strides[0] + h * strides[1] + t * strides[2]) * size;
}

// Copies a row as float32 times `scale`; what it returns is 0, or NaN where the row is not finite.
static inline float read_row(const char *from, int bfloat16, int dim, float scale, float *to) {
    Vec bad = {};
    for (int d = 0; d < dim; d += LANES) {
        Vec x;
        if (bfloat16)
            for (int i = 0; i < LANES; i++) x[i] = from_bfloat16(((const uint16_t *)from)[d + i]);
        else
            x = load((const float *)from + d);
        bad += x * 0.0f;
        store(to + d, x * scale);
    }
    return total(bad);
}

// PANEL rows of a key head's tensor, where there is room as they are and transposed: those at positions
// `at` (or from `first` on), -1 is none. What it returns is 0, or NaN where a row is not finite.
static float pack_rows(const Problem &p, const void *base, const int64_t *strides, int b, int head,
                       int start, const int *at, int first, int count, float *panel, float *rows) {
    float bad = 0, row[MOST_DIM];
    for (int j = 0; j < PANEL; j++) {
        const int t = j >= count ? -1 : at ? at[j] : first + j;
        if (t < 0) {
            for (int d = 0; panel && d < p.dim; d++) panel[d * PANEL + j] = 0;
            continue;
        }
        float *to = rows ? rows + (ptrdiff_t)j * p.dim : row;
        bad += read_row(row_of(base, strides, b, head, start + t, p.bfloat16 ? 2 : 4), p.bfloat16, p.dim, 1, to);
        for (int d = 0; panel && d < p.dim; d++) panel[d * PANEL + j] = to[d];
    }
    return bad;
}

// A key head's rows of one tensor as the tiles read them: its tokens' and those of its lists, as they
// are and in panels; null where a pass reads no such thing, or the tensor serves.
struct Packed {
    float *near_panels, *near_rows, *far_panels, *far_rows;
};

// Packs a panel of tokens, and one of the lists; false where a token is not finite.
static bool pack(const Call &c, const void *base, const int64_t *strides, int which, int panel,
                 const Packed &to) {
    const Problem &p = c.p;
    const int b = which / p.key_heads, head = which % p.key_heads, first = panel * PANEL;
    const Unit &unit = c.keys_of(b, head);
    const auto at = [&](float *rows) { return rows ? rows + (ptrdiff_t)first * p.dim : NULL; };
    float bad = 0;
    if (first < unit.tokens)
        bad = pack_rows(p, base, strides, b, head, unit.start, NULL, first, unit.tokens - first,
                        at(to.near_panels), at(to.near_rows));
    if (c.far && first < unit.slots)
        pack_rows(p, base, strides, b, head, unit.start, unit.key_at.data() + first, 0, PANEL,
                  at(to.far_panels), at(to.far_rows));
    return bad == 0;
}
