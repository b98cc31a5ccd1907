// Routing: layer norm, projection, cosine with the centroids, the largest groups.
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
    uint8_t *query;           // (batch, heads or query heads, tokens, groups), 1 for a member
    uint8_t *key;             // (batch, heads, tokens, groups)
    int64_t batch, tokens, width, sides, heads, dim, groups, query_top, key_top, cosine, threads;
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

// Marks the `top` largest; of equal ones those that come first.
static void mark_largest(const float *scores, int groups, int top, uint8_t *member) {
    memset(member, 0, groups);
    for (int n = 0; n < top; n++) {
        int best = -1;
        for (int g = 0; g < groups; g++)
            if (!member[g] && (best < 0 || scores[g] > scores[best])) best = g;
        member[best] = 1;
    }
}

// routed: sides * heads * dim numbers of token t of sequence b; scores: room for the groups.
static void route_token(const RouteProblem &p, int64_t b, int64_t t, const float *routed,
                        float *scores) {
    const int64_t query_sides = p.sides > 1 ? p.sides - 1 : 1;
    for (int64_t side = 0; side < p.sides; side++)
        for (int64_t head = 0; head < p.heads; head++) {
            const int64_t unit = side * p.heads + head;
            const float *own = routed + unit * p.dim;
            const float *centroids = p.centroids + unit * p.dim * p.groups;
            float norm = p.cosine ? sqrtf(dot(own, own, p.dim)) : 1;
            norm = norm > 1e-12f ? norm : 1e-12f;  // as torch's normalize
            for (int64_t g = 0; g < p.groups; g++) scores[g] = p.potentials[unit * p.groups + g];
            for (int64_t d = 0; d < p.dim; d++) {
                const float share = own[d] / norm;
                for (int64_t g = 0; g < p.groups; g++) scores[g] += share * centroids[d * p.groups + g];
            }
            if (side < query_sides) {
                const int64_t row = b * p.heads * query_sides + head * query_sides + side;
                mark_largest(scores, p.groups, p.query_top, p.query + (row * p.tokens + t) * p.groups);
            }
            if (side == p.sides - 1)
                mark_largest(scores, p.groups, p.key_top,
                             p.key + ((b * p.heads + head) * p.tokens + t) * p.groups);
        }
}

static void project(const RouteProblem &p, float *states, float *routed) {
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
}

// 0, or 1: no memory.
extern "C" int focus_route(const RouteProblem *problem) {
    const RouteProblem &p = *problem;
    const int64_t rows = p.sides * p.heads * p.dim, tokens = p.batch * p.tokens;
    const int64_t own = p.projected ? 0 : tokens * (p.width + rows);
    float *room = (float *)malloc((own + p.threads * p.groups) * sizeof(float));
    if (!room) return 1;
    const float *routed = p.projected ? p.projected : room + tokens * p.width;
    if (!p.projected) project(p, room, room + tokens * p.width);
    const int64_t share = (tokens + p.threads - 1) / p.threads;
#pragma omp parallel for schedule(static) num_threads((int)p.threads) if (tokens > 16)
    for (int64_t part = 0; part < p.threads; part++)
        for (int64_t n = part * share; n < tokens && n < (part + 1) * share; n++)
            route_token(p, n / p.tokens, n % p.tokens, routed + n * rows, room + own + part * p.groups);
    free(room);
    return 0;
}
