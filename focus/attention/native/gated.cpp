// Causal attention whose distant weights are multiplied by affinities g_i . g_j, forward and backward:
// the gate `log` over all pairs, in tiles, nothing T x T kept. Weights are exp(logit) * affinity, so
// neither direction takes a logarithm or divides by an affinity.
//
// All tensors are contiguous float32: query, out and their gradients (batch, heads, tokens, dim), key
// and value (batch, key heads, tokens, dim), affinities' sides (batch, routings, tokens, groups),
// where heads, a multiple of each, take key heads and routings in their order. Gradients of keys,
// values and both sides come for every query head; the caller adds up those that share. Padding
// before and after a sequence's span is not read, and nothing is written there.

#include <omp.h>

#include <initializer_list>

#include "vectors.h"

enum { ROWS = 8 * STRIP, SPAN = 192, WHOLE = 48 };  // queries of a tile, keys of a block; both by 6 and 16
static_assert(SPAN % PANEL == 0 && SPAN % WHOLE == 0 && WHOLE % STRIP == 0 && WHOLE % LANES == 0, "");

extern "C" struct GateProblem {
    const float *query, *key, *value, *own, *others;
    float *out, *lse;  // lse in base 2, (batch, heads, tokens)
    const float *d_out;
    float *d_query, *d_key, *d_value, *d_own, *d_others;
    const int32_t *spans;  // first and last + 1 real token of every sequence
    int32_t batch, heads, key_heads, own_routings, other_routings, tokens, dim, groups;
    int32_t window, sinks, threads;
    float scale;
};

// to (STRIP, V vectors) = or += the sum over n of from[r * row + j * step] * rows[j * stride ..].
template <int V, bool ADD>
static inline void product(const float *from, ptrdiff_t row, ptrdiff_t step, const float *rows,
                           ptrdiff_t stride, int n, float *to, ptrdiff_t to_row) {
    Vec sum[STRIP][V] = {};
    if (ADD)
        for (int r = 0; r < STRIP; r++)
            for (int v = 0; v < V; v++) sum[r][v] = load(to + r * to_row + v * LANES);
    for (int j = 0; j < n; j++) {
        Vec b[V];
        for (int v = 0; v < V; v++) b[v] = load(rows + j * stride + v * LANES);
        for (int r = 0; r < STRIP; r++) {
            Vec a = all(from[r * row + j * step]);
            for (int v = 0; v < V; v++) sum[r][v] += a * b[v];
        }
    }
    for (int r = 0; r < STRIP; r++)
        for (int v = 0; v < V; v++) store(to + r * to_row + v * LANES, sum[r][v]);
}

template <int V, bool ADD>
static inline void columns(const float *from, ptrdiff_t row, ptrdiff_t step, const float *rows,
                           ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, int vectors) {
    if constexpr (V > 1)
        if (vectors < V)
            return columns<V - 1, ADD>(from, row, step, rows, stride, n, to, to_row, vectors);
    product<V, ADD>(from, row, step, rows, stride, n, to, to_row);
}

// to (strips * STRIP, width) = or += from times rows, whatever the width, a multiple of LANES.
template <bool ADD>
static void multiply(const float *from, ptrdiff_t row, ptrdiff_t step, const float *rows,
                     ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, int strips, int width) {
    for (int c = 0; c < width; c += PANEL)
        for (int s = 0; s < strips; s++)
            columns<COLUMNS, ADD>(from + s * STRIP * row, row, step, rows + c, stride, n,
                                  to + s * STRIP * to_row + c, to_row,
                                  min_of(COLUMNS, (width - c) / LANES));
}

// What one head reads: rows padded to whole blocks and columns to whole vectors, and panels of keys.
struct Head {
    int start, length;              // the real tokens; rows below count from the first of them
    int tokens, dim, groups, wide;  // tokens: those before the first that is not finite; wide: groups in whole vectors
    float *query, *own;             // (tokens up, dim), scaled to base 2; (tokens up, wide)
    float *key, *value, *others;    // rows, likewise
    float *key_panels, *value_panels, *other_panels;  // by PANEL keys: (dim or groups, PANEL)
    float *d_out;
};

static void copy_rows(const float *from, int rows, int width, int to_width, float factor, float *to) {
    for (int t = 0; t < rows; t++)
        for (int d = 0; d < width; d++) to[(ptrdiff_t)t * to_width + d] = from[(ptrdiff_t)t * width + d] * factor;
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
    x.own = at, at += (size_t)rows * wide;
    x.others = at, at += (size_t)rows * wide;
    x.other_panels = at;
    const auto rows_of = [&](const float *from, int heads, int width) {
        const ptrdiff_t head = (ptrdiff_t)b * heads + (int64_t)h * heads / p.heads;
        return from + (head * p.tokens + start) * width;
    };
    const float *query = rows_of(p.query, p.heads, p.dim), *key = rows_of(p.key, p.key_heads, p.dim),
                *value = rows_of(p.value, p.key_heads, p.dim),
                *own = rows_of(p.own, p.own_routings, p.groups),
                *others = rows_of(p.others, p.other_routings, p.groups);
    if (!p.d_out) {
        for (const float *each : {query, key, value}) x.tokens = min_of(x.tokens, finite_rows(each, length, p.dim));
        for (const float *each : {own, others}) x.tokens = min_of(x.tokens, finite_rows(each, length, p.groups));
    }
    copy_rows(query, x.tokens, p.dim, p.dim, p.scale / LN2, x.query);
    copy_rows(key, x.tokens, p.dim, p.dim, 1, x.key);
    copy_rows(value, x.tokens, p.dim, p.dim, 1, x.value);
    copy_panels(key, x.tokens, p.dim, x.key_panels);
    copy_rows(own, x.tokens, p.groups, wide, 1, x.own);
    copy_rows(others, x.tokens, p.groups, wide, 1, x.others);
    copy_panels(others, x.tokens, p.groups, x.other_panels);
    if (p.d_out) {
        copy_panels(value, x.tokens, p.dim, x.value_panels);
        copy_rows(rows_of(p.d_out, p.heads, p.dim), x.tokens, p.dim, p.dim, 1, x.d_out);
    }
    return x;
}

// Rows of left (times panels of `depth` x PANEL) into a tile of ROWS x SPAN, `keys` columns of it.
static void meet(const float *left, int width, int depth, const float *panels, int block, int keys,
                 float *tile) {
    for (int a = 0; a < keys; a += PANEL)
        multiply<false>(left, width, 1, panels + (ptrdiff_t)(block + a) * depth, PANEL, depth,
                        tile + a, SPAN, ROWS / STRIP, min_of(PANEL, keys - a));
}

// Whether any of the queries first.. is distant from any key of the block.
static bool has_distant(const GateProblem &p, const Head &x, int first, int block, int keys) {
    const int last = min_of(first + ROWS, x.tokens) - 1;
    return last - block >= p.window && block + keys > p.sinks;
}

static int keys_of(const Head &x, int first, int block) {
    return min_of(SPAN, up(min_of(first + ROWS, x.tokens) - block, WHOLE));
}

struct Where {
    Ints seen, near;
};

static inline Where place(const GateProblem &p, int t, int j) {
    const Ints at = counting() + j;
    return {at <= t, (at > t - p.window) | (at < p.sinks)};
}

// A row whose tile lost its weights, by the logarithms of what is kept; NaN where logits overflow.
static float row_in_logs(const GateProblem &p, const Head &x, int t, float *out) {
    const auto score = [&](int j) {
        float logit = 0, gate = 0;
        for (int k = 0; k < x.dim; k++) logit += x.query[(ptrdiff_t)t * x.dim + k] * x.key[(ptrdiff_t)j * x.dim + k];
        if (t - j < p.window || j < p.sinks) return logit;
        for (int k = 0; k < x.groups; k++) gate += x.own[(ptrdiff_t)t * x.wide + k] * x.others[(ptrdiff_t)j * x.wide + k];
        return logit + log2f(gate);
    };
    float most = -INFINITY, norm = 0;
    for (int j = 0; j <= t; j++) most = fmaxf(most, score(j));
    for (int k = 0; k < x.dim; k++) out[k] = 0;
    for (int j = 0; j <= t; j++) {
        const float weight = exp2f(score(j) - most);
        norm += weight;
        for (int k = 0; k < x.dim; k++) out[k] += weight * x.value[(ptrdiff_t)j * x.dim + k];
    }
    for (int k = 0; k < x.dim; k++) out[k] /= norm;
    return most + log2f(norm);
}

static void forward_tile(const GateProblem &p, const Head &x, int first, float *scratch, float *out,
                         float *lse) {
    float *scores = scratch, *gates = scores + ROWS * SPAN, *sums = gates + ROWS * SPAN;
    float most[ROWS], norm[ROWS] = {};
    const int rows = min_of(ROWS, x.tokens - first);
    memset(sums, 0, ROWS * x.dim * sizeof(float));
    for (int i = 0; i < ROWS; i++) most[i] = -3e38f;
    for (int block = 0; block < first + rows; block += SPAN) {
        const int keys = keys_of(x, first, block);
        const bool far = has_distant(p, x, first, block, keys);
        meet(x.query + (ptrdiff_t)first * x.dim, x.dim, x.dim, x.key_panels, block, keys, scores);
        if (far)
            meet(x.own + (ptrdiff_t)first * x.wide, x.wide, x.groups, x.other_panels, block, keys, gates);
        for (int i = 0; i < rows; i++) {
            float *row = scores + i * SPAN;
            const float *gate = gates + i * SPAN;
            Vec top = all(most[i]), sum = {};
            for (int j = 0; j < keys; j += LANES)
                top = larger(select(place(p, first + i, block + j).seen, load(row + j), top), top);
            const float now = highest(top), faded = now == most[i] ? 1.0f : exp2f(most[i] - now);
            for (int j = 0; j < keys; j += LANES) {
                const Where where = place(p, first + i, block + j);
                Vec weight = select(where.seen, exp2_of(load(row + j) - now), Vec{});
                if (far) weight *= select(where.near, all(1), load(gate + j));
                store(row + j, weight);
                sum += weight;
            }
            if (faded != 1.0f)
                for (int d = 0; d < x.dim; d += LANES)
                    store(sums + i * x.dim + d, load(sums + i * x.dim + d) * faded);
            norm[i] = norm[i] * faded + total(sum), most[i] = now;
        }
        for (int i = rows; i < ROWS; i++) memset(scores + i * SPAN, 0, SPAN * sizeof(float));
        multiply<true>(scores, SPAN, 1, x.value + (ptrdiff_t)block * x.dim, x.dim, keys, sums, x.dim,
                       up(rows, STRIP) / STRIP, x.dim);
    }
    for (int i = 0; i < rows; i++) {
        float *row = out + (ptrdiff_t)(first + i) * x.dim;
        if (!(norm[i] > 0x1p-90f && norm[i] < 3e38f)) {  // less: kept pairs may have vanished
            lse[first + i] = row_in_logs(p, x, first + i, row);
            continue;
        }
        lse[first + i] = most[i] + log2f(norm[i]);
        for (int d = 0; d < x.dim; d++) row[d] = sums[i * x.dim + d] / norm[i];
    }
}

static const float MEASURE = 0x1p60f;  // of an ungated weight, so that its gradient is a number

// Gradients of one head; each is zero at first.
struct Gradients {
    float *query, *key, *value, *own, *others;  // (tokens up, dim), or wide
};

static void backward_tile(const GateProblem &p, const Head &x, int first, float *scratch,
                          const float *out, const float *lse, const Gradients &d) {
    float *scores = scratch, *gates = scores + ROWS * SPAN, *slopes = gates + ROWS * SPAN;
    float delta[ROWS] = {};
    const int rows = min_of(ROWS, x.tokens - first), strips = up(rows, STRIP) / STRIP;
    const ptrdiff_t at = (ptrdiff_t)first * x.dim, side = (ptrdiff_t)first * x.wide;
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < x.dim; k++) delta[i] += out[at + i * x.dim + k] * x.d_out[at + i * x.dim + k];
    for (int block = 0; block < first + rows; block += SPAN) {
        const int keys = keys_of(x, first, block);
        const bool far = has_distant(p, x, first, block, keys);
        meet(x.query + at, x.dim, x.dim, x.key_panels, block, keys, scores);
        meet(x.d_out + at, x.dim, x.dim, x.value_panels, block, keys, slopes);
        if (far) meet(x.own + side, x.wide, x.groups, x.other_panels, block, keys, gates);
        for (int i = 0; i < rows; i++) {
            float *score = scores + i * SPAN, *slope = slopes + i * SPAN, *gate = gates + i * SPAN;
            const Vec level = all(lse[first + i]), mean = all(delta[i]);
            for (int j = 0; j < keys; j += LANES) {
                const Where where = place(p, first + i, block + j);
                Vec above = load(score + j) - level;
                // Ungated, a distant pair may weigh more than all that is kept.
                above = select(above > 126.0f, all(126.0f), above);
                const Vec weight = select(where.seen, exp2_of(above), Vec{});
                Vec moved = load(slope + j) - mean, kept = weight;
                if (far) {
                    kept = weight * select(where.near, all(1), load(gate + j));
                    const Vec most = select(weight > MEASURE, all(MEASURE), weight);
                    store(gate + j, select(where.near, Vec{}, most * moved));
                }
                store(score + j, kept);
                store(slope + j, kept * moved);
            }
        }
        for (int i = rows; i < strips * STRIP; i++)
            for (float *tile : {scores, slopes, gates}) memset(tile + i * SPAN, 0, SPAN * sizeof(float));
        const ptrdiff_t key_at = (ptrdiff_t)block * x.dim, other_at = (ptrdiff_t)block * x.wide;
        multiply<true>(slopes, SPAN, 1, x.key + key_at, x.dim, keys, d.query + at, x.dim, strips, x.dim);
        multiply<true>(slopes, 1, SPAN, x.query + at, x.dim, rows, d.key + key_at, x.dim, keys / STRIP, x.dim);
        multiply<true>(scores, 1, SPAN, x.d_out + at, x.dim, rows, d.value + key_at, x.dim, keys / STRIP, x.dim);
        if (!far) continue;
        multiply<true>(gates, SPAN, 1, x.others + other_at, x.wide, keys, d.own + side, x.wide, strips, x.wide);
        multiply<true>(gates, 1, SPAN, x.own + side, x.wide, rows, d.others + other_at, x.wide, keys / STRIP, x.wide);
    }
}

static void add_out(const float *from, int rows, int width, int from_width, float factor, float *to) {
    for (int t = 0; t < rows; t++)
        for (int k = 0; k < width; k++) to[(ptrdiff_t)t * width + k] = from[(ptrdiff_t)t * from_width + k] * factor;
}

// Status: 0, or 1: no memory.
template <class Work>
static int for_each_head(const GateProblem &p, size_t extra, Work work) {
    int status = 0;
#pragma omp parallel num_threads(p.threads)
    {
        const size_t tiles = 3 * (size_t)ROWS * SPAN + (size_t)ROWS * p.dim;
        float *room = (float *)aligned_alloc(64, (head_room(p) + tiles + extra + 15) / 16 * 64);
        if (!room) {
#pragma omp atomic write
            status = 1;
        }
#pragma omp for schedule(dynamic)
        for (int n = 0; n < p.batch * p.heads; n++) {
            if (!room) continue;
            work(n, room, room + head_room(p), room + head_room(p) + tiles);
        }
        free(room);
    }
    return status;
}

static void fill(float *to, ptrdiff_t count, float x) {
    for (ptrdiff_t n = 0; n < count; n++) to[n] = x;
}

extern "C" int focus_gate_forward(const GateProblem *problem) {
    const GateProblem &p = *problem;
    return for_each_head(p, 0, [&](int n, float *head, float *scratch, float *) {
        const Head x = read_head(p, n / p.heads, n % p.heads, head);
        const ptrdiff_t at = (ptrdiff_t)n * p.tokens + x.start;
        for (int first = 0; first < x.tokens; first += ROWS)
            forward_tile(p, x, first, scratch, p.out + at * p.dim, p.lse + at);
        fill(p.out + (at + x.tokens) * p.dim, (ptrdiff_t)(x.length - x.tokens) * p.dim, NAN);
        fill(p.lse + at + x.tokens, x.length - x.tokens, NAN);
    });
}

extern "C" int focus_gate_backward(const GateProblem *problem) {
    const GateProblem &p = *problem;
    const size_t rows = up(p.tokens, SPAN) + ROWS, wide = up(p.groups, LANES);
    return for_each_head(p, rows * (3 * p.dim + 2 * wide), [&](int n, float *head, float *scratch, float *sums) {
        const Head x = read_head(p, n / p.heads, n % p.heads, head);
        const ptrdiff_t start = (ptrdiff_t)n * p.tokens + x.start, at = start * p.dim, side = start * p.groups;
        float *found[] = {p.d_query + at, p.d_key + at, p.d_value + at, p.d_own + side, p.d_others + side};
        if (!finite(p.lse + start, x.length)) {
            for (int i = 0; i < 5; i++) fill(found[i], (ptrdiff_t)x.length * (i < 3 ? p.dim : p.groups), NAN);
            return;
        }
        memset(sums, 0, rows * (3 * p.dim + 2 * wide) * sizeof(float));
        const size_t size = rows * p.dim;
        const Gradients d = {sums, sums + size, sums + 2 * size, sums + 3 * size, sums + 3 * size + rows * wide};
        for (int first = 0; first < x.tokens; first += ROWS)
            backward_tile(p, x, first, scratch, p.out + at, p.lse + start, d);
        add_out(d.query, x.tokens, p.dim, p.dim, p.scale, found[0]);
        add_out(d.key, x.tokens, p.dim, p.dim, LN2, found[1]);
        add_out(d.value, x.tokens, p.dim, p.dim, 1, found[2]);
        add_out(d.own, x.tokens, p.groups, x.wide, 1, found[3]);
        add_out(d.others, x.tokens, p.groups, x.wide, 1, found[4]);
    });
}
