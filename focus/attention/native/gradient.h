// A tile of queries against the keys that it meets, backwards: five products, the weights again from
// the log-sum-exp.
#pragma once

#include "tile.h"

enum { GRAD_TILE = 16 * STRIP };  // queries of a tile: more than forwards, as keys' sums are loaded too

// Keys of a tile and where their gradients go; all rows are `stride` (of keys) or dim floats apart.
struct GradKeys {
    const float *panels, *value_panels;  // each dim x PANEL
    const float *rows;                   // keys again, row by row
    ptrdiff_t stride;
    const uint32_t *groups, *more;  // as in Keys
    float *d_keys, *d_values;
};

// GRAD_TILE queries. Row i sees the keys low[i] to high[i] - 1; lse is of base 2.
struct GradTile {
    float *query, *grad, *sums;     // (GRAD_TILE, dim): scaled to base 2; of the output; of the query
    float *weights, *d_logits;      // (GRAD_TILE, BLOCK)
    float lse[GRAD_TILE], delta[GRAD_TILE];
    int low[GRAD_TILE], high[GRAD_TILE], position[GRAD_TILE];
    uint64_t groups[GRAD_TILE];
    int dim, window, sinks;
    uint64_t earlier;
};

typedef Strips<GRAD_TILE / STRIP> GradStrips;

// Turns logits into weights and gradients of weights into those of logits, for keys start..stop
// (whole vectors) of a block; what else the block has of this row is cleared.
template <Rule RULE>
static inline void logits_back(const GradTile &tile, const GradKeys &keys, int row, int block,
                               int start, int stop, int end) {
    float *weights = tile.weights + row * BLOCK - block, *d_logits = tile.d_logits + row * BLOCK - block;
    const Vec lse = all(tile.lse[row]), delta = all(tile.delta[row]);
    const size_t before = (start - block) * sizeof(float), after = (end - stop) * sizeof(float);
    memset(weights + block, 0, before), memset(d_logits + block, 0, before);
    for (int j = start; j < stop; j += LANES) {
        Vec weight = exp2_of(load(weights + j) - lse);
        Vec d_logit = weight * (load(d_logits + j) - delta);
        if (RULE != RANGE || j < tile.low[row] || j + LANES > tile.high[row]) {
            const Ints in = kept<RULE>(tile, keys, row, j);
            weight = select(in, weight, Vec{}), d_logit = select(in, d_logit, Vec{});
        }
        store(weights + j, weight), store(d_logits + j, d_logit);
    }
    if (end > stop) memset(weights + stop, 0, after), memset(d_logits + stop, 0, after);
}

// The keys' and values' gradients of keys first..last of a block.
static inline void add_to_keys(const GradTile &tile, const GradKeys &keys, int block, int first, int last,
                               const GradStrips &strips) {
    const int dim = tile.dim;
    for (int j = first; j < last; j += STRIP) {
        const int count = min_of(STRIP, last - j);
        int top = 0, bottom = strips.count;  // strips of queries that see any of these keys
        while (top < strips.count && (strips.to[top] <= j || strips.from[top] >= j + count)) top++;
        while (bottom > top && (strips.to[bottom - 1] <= j || strips.from[bottom - 1] >= j + count))
            bottom--;
        const int row = top * STRIP, rows = (bottom - top) * STRIP;
        const ptrdiff_t at = (ptrdiff_t)row * BLOCK + (j - block);
        for (int column = 0; rows && column < dim; column += LANES * COLUMNS) {
            const int columns = min_of(COLUMNS, (dim - column) / LANES);
            product<STRIP, COLUMNS, ADD>(tile.weights + at, 1, BLOCK, tile.grad + row * dim + column, dim, rows,
                                         keys.d_values + (ptrdiff_t)j * dim + column, dim, count, columns);
            product<STRIP, COLUMNS, ADD>(tile.d_logits + at, 1, BLOCK, tile.query + row * dim + column, dim, rows,
                                         keys.d_keys + (ptrdiff_t)j * dim + column, dim, count, columns);
        }
    }
}

template <Rule RULE>
static void attend_back(GradTile &tile, const GradKeys &keys, int rows) {
    const int dim = tile.dim;
    const GradStrips strips(tile, rows);
    for (int block = down(strips.lowest, PANEL); block < strips.last; block += BLOCK) {
        const int end = min_of(block + BLOCK, strips.last);
        for (int panel = block; panel < end; panel += PANEL)
            for (int s = 0; s < strips.count; s++) {
                const int a = max_of(panel, strips.from[s]), b = min_of(panel + PANEL, strips.to[s]);
                if (a >= b) continue;
                const ptrdiff_t at = (ptrdiff_t)panel * dim + (a - panel);
                const int vectors = (b - a + LANES - 1) / LANES, row = s * STRIP;
                product<STRIP, COLUMNS, SET>(tile.query + row * dim, dim, 1, keys.panels + at, PANEL, dim,
                                             tile.weights + row * BLOCK + (a - block), BLOCK, STRIP, vectors);
                product<STRIP, COLUMNS, SET>(tile.grad + row * dim, dim, 1, keys.value_panels + at, PANEL, dim,
                                             tile.d_logits + row * BLOCK + (a - block), BLOCK, STRIP, vectors);
            }
        for (int s = 0; s < strips.count; s++) {
            const int a = min_of(max_of(block, strips.from[s]), end), b = max_of(a, min_of(end, strips.to[s]));
            const int stop = a + (b - a + LANES - 1) / LANES * LANES;
            for (int i = s * STRIP; i < (s + 1) * STRIP; i++)
                logits_back<RULE>(tile, keys, i, block, a, stop, end);
            for (int column = 0; a < b && column < dim; column += LANES * COLUMNS)
                product<STRIP, COLUMNS, ADD>(tile.d_logits + s * STRIP * BLOCK + (a - block), BLOCK, 1,
                                             keys.rows + (ptrdiff_t)a * keys.stride + column, keys.stride, b - a,
                                             tile.sums + s * STRIP * dim + column, dim, STRIP,
                                             min_of(COLUMNS, (dim - column) / LANES));
        }
        add_to_keys(tile, keys, block, max_of(block, strips.lowest), end, strips);
    }
}
