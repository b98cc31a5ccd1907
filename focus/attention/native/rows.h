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

// A panel of keys, transposed, and their values: positions `at` (or from `first` on), -1 is none.
static float pack_panel(const Problem &p, int b, int head, int start, const int *at, int first,
                        int count, float *panel, float *values) {
    const int size = p.bfloat16 ? 2 : 4, dim = p.dim;
    float bad = 0, row[MOST_DIM];
    for (int j = 0; j < PANEL; j++) {
        const int t = j >= count ? -1 : at ? at[j] : first + j;
        if (t < 0) {
            for (int d = 0; d < dim; d++) panel[d * PANEL + j] = 0;
            continue;
        }
        bad += read_row(row_of(p.key, p.key_strides, b, head, start + t, size), p.bfloat16, dim, 1,
                        row);
        for (int d = 0; d < dim; d++) panel[d * PANEL + j] = row[d];
        bad += read_row(row_of(p.value, p.value_strides, b, head, start + t, size), p.bfloat16, dim,
                        1, values ? values + (ptrdiff_t)j * dim : row);
    }
    return bad;
}
