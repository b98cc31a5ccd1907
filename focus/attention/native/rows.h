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
        const Vec x = bfloat16 ? load_bfloat16((const uint16_t *)from + d) : load((const float *)from + d);
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

// The same in bfloat16 for tile_pairs.h, half as large: two dimensions of a key beside each other in a
// panel, and two rows.
static float pack_pairs(const Problem &p, const void *base, const int64_t *strides, int b, int head,
                        int start, const int *at, int first, int count, uint32_t *panel, uint32_t *rows) {
    static const uint16_t none[MOST_DIM] = {};
    float bad = 0, unused[MOST_DIM];
    for (int j = 0; j < PANEL; j += 2) {
        const uint16_t *from[2];
        for (int i = 0; i < 2; i++) {
            const int t = j + i >= count ? -1 : at ? at[j + i] : first + j + i;
            from[i] = t < 0 ? none : (const uint16_t *)row_of(base, strides, b, head, start + t, 2);
            bad += read_row((const char *)from[i], 1, p.dim, 1, unused);
            for (int d = 0; panel && d < p.dim; d += 2)
                memcpy(panel + d / 2 * PANEL + j + i, from[i] + d, 4);
        }
        for (int d = 0; rows && d < p.dim; d++)
            rows[j / 2 * p.dim + d] = from[0][d] | (uint32_t)from[1][d] << 16;
    }
    return bad;
}

// A key head's rows of one tensor as the tiles read them: its tokens' and those of its lists, as they
// are and in panels, or in pairs; null where a pass reads no such thing, or the tensor serves.
struct Packed {
    float *near_panels, *near_rows, *far_panels, *far_rows;
    bool pairs;

    const float *at(const float *rows, ptrdiff_t place) const { return rows + (pairs ? place / 2 : place); }
};

// Packs a panel of tokens, and one of the lists; false where a token is not finite.
static bool pack(const Call &c, const void *base, const int64_t *strides, int which, int panel,
                 const Packed &to) {
    const Problem &p = c.p;
    const int b = which / p.key_heads, head = which % p.key_heads, first = panel * PANEL;
    const Unit &unit = c.keys_of(b, head);
    const auto packed = [&](const int *at, int count, float *panels, float *rows) {
        const auto own = [&](float *all) {
            return all ? (float *)to.at(all, (ptrdiff_t)first * p.dim) : NULL;
        };
        if (to.pairs)
            return pack_pairs(p, base, strides, b, head, unit.start, at, first, count,
                              (uint32_t *)own(panels), (uint32_t *)own(rows));
        return pack_rows(p, base, strides, b, head, unit.start, at, first, count, own(panels), own(rows));
    };
    float bad = 0;
    if (first < unit.tokens) bad = packed(NULL, unit.tokens - first, to.near_panels, to.near_rows);
    if (c.far && first < unit.slots)
        packed(unit.key_at.data() + first, PANEL, to.far_panels, to.far_rows);
    return bad == 0;
}
