// What the training gate is asked, what one head reads, and products of its tiles.
#pragma once

#include <initializer_list>

#include "vectors.h"

enum { ROWS = 8 * STRIP, SPAN = 192, WHOLE = 48 };  // queries of a tile, keys of a block; both by 6 and 16
static_assert(SPAN % PANEL == 0 && SPAN % WHOLE == 0 && WHOLE % STRIP == 0 && WHOLE % LANES == 0, "");

extern "C" struct GateProblem {
    const float *query, *key, *value, *query_groups, *key_groups;
    float *out, *lse;  // lse in base 2, (batch, heads, tokens)
    const float *d_out;
    float *d_query, *d_key, *d_value, *d_query_groups, *d_key_groups;
    const int32_t *spans;  // first and last + 1 real token of every sequence
    int32_t batch, heads, key_heads, query_routings, key_routings, tokens, dim, groups;
    int32_t window, sinks, threads;
    float scale;
};

// to (strips * STRIP, width) = or += from times rows, whatever the width, a multiple of LANES.
template <Start START>
static void multiply(const float *from, ptrdiff_t row, ptrdiff_t step, const float *rows,
                     ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, int strips, int width) {
    for (int c = 0; c < width; c += PANEL)
        for (int s = 0; s < strips; s++)
            product<STRIP, COLUMNS, START>(from + s * STRIP * row, row, step, rows + c, stride, n,
                                           to + s * STRIP * to_row + c, to_row, STRIP,
                                           min_of(COLUMNS, (width - c) / LANES));
}

// What one head reads: rows padded to whole blocks and columns to whole vectors, and panels of keys.
struct Head {
    int start, length;              // the real tokens; rows below count from the first of them
    int tokens, dim, groups, wide;  // tokens: those before the first that is not finite; wide: groups in whole vectors
    float *query, *query_groups;             // (tokens up, dim), scaled to base 2; (tokens up, wide)
    float *key, *value, *key_groups;    // rows, likewise
    float *key_panels, *value_panels, *group_panels;  // by PANEL keys: (dim or groups, PANEL)
    float *d_out;
};

static void copy_rows(const float *from, int from_width, int rows, int width, float factor, float *to,
                      int to_width) {
    for (int t = 0; t < rows; t++)
        for (int d = 0; d < width; d++)
            to[(ptrdiff_t)t * to_width + d] = from[(ptrdiff_t)t * from_width + d] * factor;
}

static bool finite(const float *x, ptrdiff_t count) {
    uint32_t bad = 0;
    for (ptrdiff_t n = 0; n < count; n++) {
        uint32_t bits;
        memcpy(&bits, x + n, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

// Rows before the first that is not finite. A logit that is not a number compares with nothing, and
// would count as a pair of no weight.
static int finite_rows(const float *x, int rows, int width) {
    if (finite(x, (ptrdiff_t)rows * width)) return rows;
    int good = 0;
    while (finite(x + (ptrdiff_t)good * width, width)) good++;
    return good;
}

static void copy_panels(const float *from, int rows, int width, float *to) {
    for (int t = 0; t < rows; t++)
        for (int d = 0; d < width; d++)
            to[((ptrdiff_t)(t / PANEL) * width + d) * PANEL + t % PANEL] = from[(ptrdiff_t)t * width + d];
}

static size_t head_room(const GateProblem &p) {
    const size_t rows = up(p.tokens, SPAN) + ROWS, wide = up(p.groups, LANES);
    return rows * (6 * (size_t)p.dim + 2 * wide + p.groups);
}

static Head read_head(const GateProblem &p, int b, int h, float *at) {
    const int rows = up(p.tokens, SPAN) + ROWS, wide = up(p.groups, LANES);
    memset(at, 0, head_room(p) * sizeof(float));
    const int start = p.spans[2 * b], length = p.spans[2 * b + 1] - start;
    Head x = {start, length, length, p.dim, p.groups, wide};
    float **parts[] = {&x.query, &x.key, &x.value, &x.key_panels, &x.value_panels, &x.d_out};
    for (float **part : parts) *part = at, at += (size_t)rows * p.dim;
    x.query_groups = at, at += (size_t)rows * wide;
    x.key_groups = at, at += (size_t)rows * wide;
    x.group_panels = at;
    const auto rows_of = [&](const float *from, int heads, int width) {
        const ptrdiff_t head = (ptrdiff_t)b * heads + (int64_t)h * heads / p.heads;
        return from + (head * p.tokens + start) * width;
    };
    const float *query = rows_of(p.query, p.heads, p.dim), *key = rows_of(p.key, p.key_heads, p.dim),
                *value = rows_of(p.value, p.key_heads, p.dim),
                *query_groups = rows_of(p.query_groups, p.query_routings, p.groups),
                *key_groups = rows_of(p.key_groups, p.key_routings, p.groups);
    if (!p.d_out) {
        for (const float *each : {query, key, value}) x.tokens = min_of(x.tokens, finite_rows(each, length, p.dim));
        for (const float *each : {query_groups, key_groups})
            x.tokens = min_of(x.tokens, finite_rows(each, length, p.groups));
    }
    copy_rows(query, p.dim, x.tokens, p.dim, p.scale / LN2, x.query, p.dim);
    copy_rows(key, p.dim, x.tokens, p.dim, 1, x.key, p.dim);
    copy_rows(value, p.dim, x.tokens, p.dim, 1, x.value, p.dim);
    copy_panels(key, x.tokens, p.dim, x.key_panels);
    copy_rows(query_groups, p.groups, x.tokens, p.groups, 1, x.query_groups, wide);
    copy_rows(key_groups, p.groups, x.tokens, p.groups, 1, x.key_groups, wide);
    copy_panels(key_groups, x.tokens, p.groups, x.group_panels);
    if (p.d_out) {
        copy_panels(value, x.tokens, p.dim, x.value_panels);
        copy_rows(rows_of(p.d_out, p.heads, p.dim), p.dim, x.tokens, p.dim, 1, x.d_out, p.dim);
    }
    return x;
}

// Rows of left (times panels of `depth` x PANEL) into a tile of ROWS x SPAN, `keys` columns of it.
static void meet(const float *left, int width, int depth, const float *panels, int block, int keys,
                 float *tile) {
    for (int a = 0; a < keys; a += PANEL)
        multiply<SET>(left, width, 1, panels + (ptrdiff_t)(block + a) * depth, PANEL, depth,
                        tile + a, SPAN, ROWS / STRIP, min_of(PANEL, keys - a));
}
