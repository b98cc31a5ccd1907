// Causal attention whose distant weights are multiplied by affinities g_i . g_j, forward and backward:
// the gate `log` over all pairs, in tiles, nothing T x T kept. Weights are exp(logit) * affinity, so
// neither direction takes a logarithm or divides by an affinity.
//
// All tensors are contiguous float32: query, out and their gradients (batch, heads, tokens, dim), key
// and value (batch, key heads, tokens, dim), assignments (batch, routings, tokens, groups),
// where heads, a multiple of each, take key heads and routings in their order. Gradients of keys,
// values and assignments come for every query head; the caller adds up those that share. Padding
// before and after a sequence's span is not read, and nothing is written there.

#include "gated.h"

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
        const float *query = x.query + (ptrdiff_t)t * x.dim, *key = x.key + (ptrdiff_t)j * x.dim;
        for (int k = 0; k < x.dim; k++) logit += query[k] * key[k];
        if (t - j < p.window || j < p.sinks) return logit;
        const float *of_query = x.query_groups + (ptrdiff_t)t * x.wide, *of_key = x.key_groups + (ptrdiff_t)j * x.wide;
        for (int k = 0; k < x.groups; k++) gate += of_query[k] * of_key[k];
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
            meet(x.query_groups + (ptrdiff_t)first * x.wide, x.wide, x.groups, x.group_panels, block, keys, gates);
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
        multiply<ADD>(scores, SPAN, 1, x.value + (ptrdiff_t)block * x.dim, x.dim, keys, sums, x.dim,
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
    float *query, *key, *value, *query_groups, *key_groups;  // (tokens up, dim), or wide
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
        if (far) meet(x.query_groups + side, x.wide, x.groups, x.group_panels, block, keys, gates);
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
        const ptrdiff_t key_at = (ptrdiff_t)block * x.dim, group_at = (ptrdiff_t)block * x.wide;
        multiply<ADD>(slopes, SPAN, 1, x.key + key_at, x.dim, keys, d.query + at, x.dim, strips, x.dim);
        multiply<ADD>(slopes, 1, SPAN, x.query + at, x.dim, rows, d.key + key_at, x.dim, keys / STRIP, x.dim);
        multiply<ADD>(scores, 1, SPAN, x.d_out + at, x.dim, rows, d.value + key_at, x.dim, keys / STRIP, x.dim);
        if (!far) continue;
        multiply<ADD>(gates, SPAN, 1, x.key_groups + group_at, x.wide, keys, d.query_groups + side, x.wide,
                       strips, x.wide);
        multiply<ADD>(gates, 1, SPAN, x.query_groups + side, x.wide, rows, d.key_groups + group_at, x.wide,
                       keys / STRIP, x.wide);
    }
}

// A Status.
template <class Work>
static int for_each_head(const GateProblem &p, size_t extra, Work work) {
    int status = DONE;
#pragma omp parallel num_threads(p.threads)
    {
        const size_t tiles = 3 * (size_t)ROWS * SPAN + (size_t)ROWS * p.dim;
        float *room = (float *)aligned_alloc(64, (head_room(p) + tiles + extra + 15) / 16 * 64);
        if (!room) {
#pragma omp atomic write
            status = NO_MEMORY;
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
        float *found[] = {p.d_query + at, p.d_key + at, p.d_value + at, p.d_query_groups + side, p.d_key_groups + side};
        if (!finite(p.lse + start, x.length)) {
            for (int i = 0; i < 5; i++) fill(found[i], (ptrdiff_t)x.length * (i < 3 ? p.dim : p.groups), NAN);
            return;
        }
        memset(sums, 0, rows * (3 * p.dim + 2 * wide) * sizeof(float));
        const size_t size = rows * p.dim;
        const Gradients d = {sums, sums + size, sums + 2 * size, sums + 3 * size, sums + 3 * size + rows * wide};
        for (int first = 0; first < x.tokens; first += ROWS)
            backward_tile(p, x, first, scratch, p.out + at, p.lse + start, d);
        copy_rows(d.query, p.dim, x.tokens, p.dim, p.scale, found[0], p.dim);
        copy_rows(d.key, p.dim, x.tokens, p.dim, LN2, found[1], p.dim);
        copy_rows(d.value, p.dim, x.tokens, p.dim, 1, found[2], p.dim);
        copy_rows(d.query_groups, x.wide, x.tokens, p.groups, 1, found[3], p.groups);
        copy_rows(d.key_groups, x.wide, x.tokens, p.groups, 1, found[4], p.groups);
    });
}
