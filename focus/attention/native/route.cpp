// Routing: layer norm, projection, cosine with the centroids, the largest groups.
// Heavy hitters, where there are any, have a group of their own behind these.
//
// What focus.routing does in a dozen calls, which cost more than the work where a step has one token.

#include "project.h"

extern "C" struct RouteProblem {
    const void *hidden;       // (batch, tokens, width) float32, or bfloat16
    const float *projection;  // (sides, heads, width, dim), dim a multiple of LANES
    const float *centroids;   // (sides, heads, groups, dim)
    const float *potentials;  // (sides, heads, groups)
    const float *taken_at;    // NULL, or (heads or query heads, groups): see route.py
    const float *heavy_weight;  // NULL, or (heads, width), of normalised states
    const float *heavy_bias;    // (heads)
    uint8_t *query;  // (batch, heads or query heads, tokens, columns), 1 for a member
    uint8_t *key;    // (batch, heads, tokens, columns)
    int64_t batch, tokens, width, sides, heads, dim, groups, columns, query_top, key_top, cosine;
    int64_t bfloat16, threads;
};

static const float SMALL = 1e-12f;  // a norm's least, as in torch's normalize

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
                  int64_t unit, const float *centroids, const Room &room) {
    centroids += unit * p.groups * p.dim;
    if (block.count < LANES) memset(room.shares, 0, p.dim * LANES * sizeof(float));
    for (int lane = 0; lane < block.count; lane++) {
        const float *own = routed + lane * stride + unit * p.dim;
        for (int64_t d = 0; d < p.dim; d++) room.shares[d * LANES + lane] = own[d];
    }
    Vec square = {}, norm;
    for (int64_t d = 0; d < p.dim; d++) square += load(room.shares + d * LANES) * load(room.shares + d * LANES);
    for (int lane = 0; lane < LANES; lane++) norm[lane] = p.cosine ? sqrtf(square[lane]) : 1;
    norm = larger(norm, all(SMALL));
    for (int64_t d = 0; d < p.dim; d++) store(room.shares + d * LANES, load(room.shares + d * LANES) / norm);
    for (int64_t g = 0; g < p.groups; g++) {
        Vec sum = all(p.potentials[unit * p.groups + g]);
        for (int64_t d = 0; d < p.dim; d++)
            sum += load(room.shares + d * LANES) * centroids[g * p.dim + d];
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
                        const float *heavy, const float *centroids, const Room &room) {
    const int64_t query_sides = p.sides > 1 ? p.sides - 1 : 1, stride = p.sides * p.heads * p.dim;
    Block block;
    block.count = (int)(p.batch * p.tokens - first < LANES ? p.batch * p.tokens - first : LANES);
    for (int i = 0; i < block.count; i++)
        block.sequence[i] = (first + i) / p.tokens, block.token[i] = (first + i) % p.tokens;
    for (int64_t side = 0; side < p.sides; side++)
        for (int64_t head = 0; head < p.heads; head++) {
            score(p, block, routed, stride, side * p.heads + head, centroids, room);
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

// Centroids as scores take them.
static void read_centroids(const RouteProblem &p, float *to) {
    for (int64_t row = 0; row < p.sides * p.heads * p.groups; row++, to += p.dim) {
        const float *from = p.centroids + row * p.dim, norm = p.cosine ? sqrtf(dot(from, from, p.dim)) : 1;
        for (int64_t d = 0; d < p.dim; d++) to[d] = from[d] / (norm > SMALL ? norm : SMALL);
    }
}

// A Status.
extern "C" int focus_route(const RouteProblem *problem) {
    const RouteProblem &p = *problem;
    const int64_t units = p.sides * p.heads, rows = units * p.dim, tokens = p.batch * p.tokens;
    const int64_t each = (p.dim + 2 * p.groups) * LANES, blocks = (tokens + LANES - 1) / LANES;
    const int64_t heads = p.heavy_weight ? p.heads : 0;
    const int64_t size = tokens * (rows + heads) + rows * p.groups + p.threads * each;
    float *room = (float *)malloc(size * sizeof(float));
    if (!room) return NO_MEMORY;
    float *routed = room, *heavy = routed + tokens * rows, *centroids = heavy + tokens * heads;
    const ProjectProblem projection = {p.hidden, p.projection, p.heavy_weight, p.heavy_bias, routed, heavy,
                                       tokens, p.width, units, p.dim, heads, p.cosine, p.bfloat16, p.threads};
    if (const int status = focus_project(&projection); status != DONE) {
        free(room);
        return status;
    }
    read_centroids(p, centroids);
    const int64_t every = tokens * p.heads * p.columns;
    memset(p.query, 0, every * (p.sides > 1 ? p.sides - 1 : 1));
    memset(p.key, 0, every);
    const int64_t share = (blocks + p.threads - 1) / p.threads;
#pragma omp parallel for schedule(static) num_threads((int)p.threads) if (blocks > 1)
    for (int64_t part = 0; part < p.threads; part++) {
        float *at = centroids + rows * p.groups + part * each, *scores = at + p.dim * LANES;
        const Room mine = {at, scores, (int32_t *)(scores + p.groups * LANES)};
        for (int64_t n = part * share; n < blocks && n < (part + 1) * share; n++)
            route_block(p, n * LANES, routed + n * LANES * rows, heads ? heavy : NULL, centroids, mine);
    }
    free(room);
    return DONE;
}
