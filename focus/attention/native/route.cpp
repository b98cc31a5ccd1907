// Routing: layer norm, projection, cosine with the centroids, the largest groups.
// Heavy hitters, where there are any, have a group of their own behind these.
//
// What focus.routing does in a dozen calls, which cost more than the work where a step has one token.
// Of many tokens the projections come ready, as one product of matrices.

#include "vectors.h"

extern "C" struct RouteProblem {
    const float *hidden;      // (batch, tokens, width); or NULL
    const float *projected;   // NULL, or (batch, tokens, sides * heads * dim)
    const float *weight;      // (sides * heads * dim, width)
    const float *centroids;   // (sides, heads, dim, groups)
    const float *potentials;  // (sides, heads, groups)
    const float *taken_at;    // NULL, or (heads or query heads, groups): see route.py
    const float *heavy_weight;  // NULL, or (heads, width), of normalised states
    const float *heavy_bias;    // (heads)
    const float *heavy;         // NULL, or (batch, tokens, heads): scores of heavy hitters, ready
    uint8_t *query;  // (batch, heads or query heads, tokens, columns), 1 for a member
    uint8_t *key;    // (batch, heads, tokens, columns)
    int64_t batch, tokens, width, sides, heads, dim, groups, columns, query_top, key_top, cosine;
    int64_t threads;
};

static float dot(const float *a, const float *b, int64_t n) {
    Vec sum = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    float rest = total(sum);
    for (; i < n; i++) rest += a[i] * b[i];
    return rest;
}

static void normalise(const float *from, int64_t n, float *to) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++) mean += from[i];
    mean /= n;
    for (int64_t i = 0; i < n; i++) square += (from[i] - mean) * (from[i] - mean);
    const float scale = (float)(1 / sqrt(square / n + 1e-5));  // as torch's layer_norm
    for (int64_t i = 0; i < n; i++) to[i] = (float)(from[i] - mean) * scale;
}

// Up to LANES tokens, one a lane, so that neither scores nor the largest of them need sums or
// comparisons across a vector.
struct Block {
    int count;
    int64_t sequence[LANES], token[LANES];
};

struct Room {  // of a thread; a row is of LANES numbers
    float *shares, *scores;  // dim and groups rows
    int32_t *chosen;         // as many rows as a token has groups at most
};

// Of routed projections (the block's, `stride` numbers from token to token) and centroids.
static void score(const RouteProblem &p, const Block &block, const float *routed, int64_t stride,
                  int64_t unit, const Room &room) {
    const float *centroids = p.centroids + unit * p.dim * p.groups;
    float norms[LANES];
    store(norms, all(1));
    if (block.count < LANES) memset(room.shares, 0, p.dim * LANES * sizeof(float));
    for (int lane = 0; lane < block.count; lane++) {
        const float *own = routed + lane * stride + unit * p.dim;
        const float norm = p.cosine ? sqrtf(dot(own, own, p.dim)) : 1;
        norms[lane] = norm > 1e-12f ? norm : 1e-12f;  // as torch's normalize
        for (int64_t d = 0; d < p.dim; d++) room.shares[d * LANES + lane] = own[d];
    }
    for (int64_t d = 0; d < p.dim; d++)
        store(room.shares + d * LANES, load(room.shares + d * LANES) / load(norms));
    for (int64_t g = 0; g < p.groups; g++) {
        Vec sum = all(p.potentials[unit * p.groups + g]);
        for (int64_t d = 0; d < p.dim; d++)
            sum += load(room.shares + d * LANES) * centroids[d * p.groups + g];
        store(room.scores + g * LANES, sum);
    }
}

// Marks the `top` largest; of equal ones those that come first. to: of routing 0 of `routings`.
static void mark_largest(const RouteProblem &p, const Block &block, const Room &room, int top,
                         uint8_t *to, int64_t routing, int64_t routings) {
    for (int n = 0; n < top; n++) {
        Vec best = {};
        Ints at = Ints{} - 1;
        for (int g = 0; g < p.groups; g++) {
            const Vec x = load(room.scores + g * LANES);
            Ints better = (at < 0) | (x > best);
            for (int i = 0; i < n; i++)
                better &= *(const LooseInts *)(room.chosen + i * LANES) != g;
            best = select(better, x, best), at = (better & g) | (~better & at);
        }
        *(LooseInts *)(room.chosen + n * LANES) = at;
        for (int i = 0; i < block.count; i++) {
            const int64_t row = block.sequence[i] * routings + routing;
            to[(row * p.tokens + block.token[i]) * p.columns + room.chosen[n * LANES + i]] = 1;
        }
    }
}

// Groups that a query of this routing looks into.
static int groups_of(const RouteProblem &p, int64_t routing) {
    if (!p.taken_at) return (int)p.query_top;
    int count = 0;
    for (int64_t g = 0; g < p.groups; g++) count += p.taken_at[routing * p.groups + g] <= p.query_top;
    return count;
}

// The last group is that of the heavy hitters, which are in no other; every query looks into it.
static void mark_heavy(const RouteProblem &p, const Block &block, const float *scores, int64_t head,
                       int64_t query_sides) {
    for (int i = 0; i < block.count; i++) {
        const int64_t routing = block.sequence[i] * p.heads + head, token = block.token[i];
        for (int64_t side = 0; side < query_sides; side++)
            p.query[((routing * query_sides + side) * p.tokens + token + 1) * p.columns - 1] = 1;
        if (!(scores[(block.sequence[i] * p.tokens + token) * p.heads + head] > 0)) continue;
        uint8_t *own = p.key + (routing * p.tokens + token) * p.columns;
        memset(own, 0, p.groups);
        own[p.groups] = 1;
    }
}

// Tokens from number `first` of all sequences' on; routed: their projections; heavy: NULL, or scores
// of heavy hitters.
static void route_block(const RouteProblem &p, int64_t first, const float *routed,
                        const float *heavy, const Room &room) {
    const int64_t query_sides = p.sides > 1 ? p.sides - 1 : 1, stride = p.sides * p.heads * p.dim;
    Block block;
    block.count = (int)(p.batch * p.tokens - first < LANES ? p.batch * p.tokens - first : LANES);
    for (int i = 0; i < block.count; i++)
        block.sequence[i] = (first + i) / p.tokens, block.token[i] = (first + i) % p.tokens;
    for (int64_t side = 0; side < p.sides; side++)
        for (int64_t head = 0; head < p.heads; head++) {
            score(p, block, routed, stride, side * p.heads + head, room);
            const int64_t routing = head * query_sides + side;
            if (side < query_sides)
                mark_largest(p, block, room, groups_of(p, routing), p.query, routing,
                             p.heads * query_sides);
            if (side == p.sides - 1)
                mark_largest(p, block, room, (int)p.key_top, p.key, head, p.heads);
        }
    for (int64_t head = 0; heavy && head < p.heads; head++)
        mark_heavy(p, block, heavy, head, query_sides);
}

static void project(const RouteProblem &p, float *states, float *routed, float *heavy) {
    const int64_t rows = p.sides * p.heads * p.dim, tokens = p.batch * p.tokens;
    for (int64_t n = 0; n < tokens; n++) {
        const float *from = p.hidden + n * p.width;
        if (p.cosine)
            normalise(from, p.width, states + n * p.width);
        else
            memcpy(states + n * p.width, from, p.width * sizeof(float));
    }
#pragma omp parallel for schedule(static) num_threads((int)p.threads)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < tokens; n++)
            routed[n * rows + row] = dot(states + n * p.width, p.weight + row * p.width, p.width);
    for (int64_t n = 0; p.heavy_weight && !p.heavy && n < tokens; n++)
        for (int64_t head = 0; head < p.heads; head++)
            heavy[n * p.heads + head] = p.heavy_bias[head] +
                dot(states + n * p.width, p.heavy_weight + head * p.width, p.width);
}

// A Status.
extern "C" int focus_route(const RouteProblem *problem) {
    const RouteProblem &p = *problem;
    const int64_t rows = p.sides * p.heads * p.dim, tokens = p.batch * p.tokens;
    const int64_t own = p.projected ? 0 : tokens * (p.width + rows + p.heads);
    const int64_t each = (p.dim + 2 * p.groups) * LANES, blocks = (tokens + LANES - 1) / LANES;
    float *room = (float *)malloc((own + p.threads * each) * sizeof(float));
    if (!room) return NO_MEMORY;
    const float *routed = p.projected ? p.projected : room + tokens * p.width;
    float *found = room + tokens * (p.width + rows);
    if (!p.projected) project(p, room, room + tokens * p.width, found);
    const float *heavy = p.heavy ? p.heavy : p.heavy_weight ? found : NULL;
    const int64_t every = tokens * p.heads * p.columns;
    memset(p.query, 0, every * (p.sides > 1 ? p.sides - 1 : 1));
    memset(p.key, 0, every);
    const int64_t share = (blocks + p.threads - 1) / p.threads;
#pragma omp parallel for schedule(static) num_threads((int)p.threads) if (blocks > 1)
    for (int64_t part = 0; part < p.threads; part++) {
        float *at = room + own + part * each, *scores = at + p.dim * LANES;
        const Room mine = {at, scores, (int32_t *)(scores + p.groups * LANES)};
        for (int64_t n = part * share; n < blocks && n < (part + 1) * share; n++)
            route_block(p, n * LANES, routed + n * LANES * rows, heavy, mine);
    }
    free(room);
    return DONE;
}
