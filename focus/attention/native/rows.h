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
