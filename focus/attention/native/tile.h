// A tile of queries against the keys that it meets: two products and the running softmax between.
#pragma once

#include "vectors.h"

enum { TILE = 8 * STRIP, BLOCK = 128 };  // queries of a tile; keys whose weights are held at once
static const float NOTHING = -3e38f;     // the logit of a pair that is not kept

// ---------------------------------------------------------------------------------------- tiles

enum Rule {
    RANGE,  // every key of a row's range
    FIRST,  // those that share no group with the query before this one
    TEST,   // those in the window, sinks, and those that share a group
};

// The keys that a tile meets: panels (each dim x PANEL), value rows, and the groups of each.
struct Keys {
    const float *panels, *values;
    ptrdiff_t stride;  // floats from one value row to the next
    const uint32_t *groups, *more;  // more: of the second word, NULL where there is none
};

// TILE queries under way. Row i sees the keys low[i] to high[i] - 1.
struct Tile {
    float *query, *sums, *weights;  // (TILE, dim) scaled to base 2; (TILE, dim); (TILE, BLOCK)
    uint16_t *narrow_query, *narrow_weights;  // for tile_pairs.h: in bfloat16, queries not scaled
    float base2;                              // that scales them
    float most[TILE], norm[TILE], faded[TILE];
    int low[TILE], high[TILE], position[TILE];
    uint64_t groups[TILE];
    int dim, window, sinks;
    int begin;  // the first key that blocks are counted from, whichever a later row sees
    uint64_t earlier;  // groups before the one at hand
};

template <Rule RULE, class AnyTile, class AnyKeys>
static inline Ints kept(const AnyTile &tile, const AnyKeys &keys, int row, int first) {
    Ints at = counting() + first;
    Ints in = (at >= tile.low[row]) & (at < tile.high[row]);
    if constexpr (RULE != RANGE) {
        const uint64_t asked = RULE == FIRST ? tile.groups[row] & tile.earlier : tile.groups[row];
        Ints shared = *(const LooseInts *)(keys.groups + first) & (int32_t)asked;
        if (keys.more) shared |= *(const LooseInts *)(keys.more + first) & (int32_t)(asked >> 32);
        if constexpr (RULE == FIRST) in &= shared == 0;
        if constexpr (RULE == TEST)
            in &= (shared != 0) | (at > tile.position[row] - tile.window) | (at < tile.sinks);
    }
    return in;
}

// The running softmax of one row over the scores of keys start..stop (whole vectors) of a block.
template <Rule RULE>
static inline void soften(Tile &tile, const Keys &keys, int row, int block, int start, int stop) {
    float *scores = tile.weights + row * BLOCK - block;
    Vec most = all(NOTHING);
    for (int j = start; j < stop; j += LANES) {
        Vec x = load(scores + j);
        if (RULE != RANGE || j < tile.low[row] || j + LANES > tile.high[row]) {
            x = select(kept<RULE>(tile, keys, row, j), x, all(NOTHING));
            store(scores + j, x);
        }
        most = larger(x, most);
    }
    float before = tile.most[row], now = highest(most);
    now = now > before ? now : before;
    tile.most[row] = now;
    // Where nothing was kept so far, NOTHING less this is still far below zero.
    Vec shift = all(now > -1e38f ? now : -1e38f), sum = {};
    for (int j = start; j < stop; j += LANES) {
        Vec weight = exp2_of(load(scores + j) - shift);
        store(scores + j, weight);
        sum += weight;
    }
    tile.faded[row] = before == now ? 1.0f : exp2f(before - now);
    tile.norm[row] = tile.norm[row] * tile.faded[row] + total(sum);
}

// Which keys each strip of a tile's rows sees, from whole vectors on, and which any of them sees.
template <int MOST, int ROWS = STRIP>
struct Strips {
    int count, from[MOST], to[MOST], lowest = INT32_MAX, last = 0;

    template <class AnyTile>
    Strips(const AnyTile &tile, int rows) : count((rows + ROWS - 1) / ROWS) {
        for (int s = 0; s < count; s++) {
            from[s] = INT32_MAX, to[s] = 0;
            for (int i = s * ROWS; i < (s + 1) * ROWS; i++)
                if (tile.high[i] > tile.low[i]) {
                    from[s] = min_of(from[s], down(tile.low[i], LANES));
                    to[s] = max_of(to[s], tile.high[i]);
                }
            lowest = min_of(lowest, from[s]), last = max_of(last, to[s]);
        }
    }
};

template <Rule RULE>
static void attend(Tile &tile, const Keys &keys, int rows) {
    const int dim = tile.dim;
    const Strips<TILE / STRIP> strips(tile, rows);
    for (int block = down(tile.begin, PANEL); block < strips.last; block += BLOCK) {
        const int end = min_of(block + BLOCK, strips.last);
        for (int panel = block; panel < end; panel += PANEL)
            for (int s = 0; s < strips.count; s++) {
                int a = max_of(panel, strips.from[s]), b = min_of(panel + PANEL, strips.to[s]);
                if (a < b)
                    product<STRIP, COLUMNS, SET>(
                        tile.query + s * STRIP * dim, dim, 1,
                        keys.panels + (ptrdiff_t)panel * dim + (a - panel), PANEL, dim,
                        tile.weights + s * STRIP * BLOCK + (a - block), BLOCK, STRIP,
                        (b - a + LANES - 1) / LANES);
            }
        for (int s = 0; s < strips.count; s++) {
            int a = max_of(block, strips.from[s]), b = min_of(end, strips.to[s]);
            if (a >= b) continue;
            int stop = a + (b - a + LANES - 1) / LANES * LANES;
            for (int i = s * STRIP; i < (s + 1) * STRIP; i++)
                soften<RULE>(tile, keys, i, block, a, stop);
        }
        for (int column = 0; column < dim; column += LANES * COLUMNS)
            for (int s = 0; s < strips.count; s++) {
                int a = max_of(block, strips.from[s]), b = min_of(end, strips.to[s]);
                if (a < b)
                    product<STRIP, COLUMNS, FADE>(
                        tile.weights + s * STRIP * BLOCK + (a - block), BLOCK, 1,
                        keys.values + (ptrdiff_t)a * keys.stride + column, keys.stride, b - a,
                        tile.sums + s * STRIP * dim + column, dim, STRIP,
                        min_of(COLUMNS, (dim - column) / LANES), tile.faded + s * STRIP);
            }
    }
}
