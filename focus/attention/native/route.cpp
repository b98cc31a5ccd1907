// Routing of a few tokens: layer norm, projection, cosine with the centroids, the largest groups.
//
// What focus.routing does in a dozen calls, which cost more than the work where a step has one token.

#include <omp.h>

#include "vectors.h"

extern "C" struct RouteProblem {
    const float *hidden;      // (tokens, width)
    const float *weight;      // (sides * heads * dim, width)
    const float *centroids;   // (sides, heads, dim, groups)
    const float *potentials;  // (sides, heads, groups)
    uint64_t *query;          // (tokens, heads or query heads) groups as bits
    uint64_t *key;            // (tokens, heads)
    int32_t tokens, width, sides, heads, dim, groups, query_top, key_top, cosine, threads;
};

static float dot(const float *a, const float *b, int n) {
    Vec sum = {};
    int i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    float rest = total(sum);
    for (; i < n; i++) rest += a[i] * b[i];
    return rest;
}

static void normalise(const float *from, int n, float *to) {
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += from[i];
    mean /= n;
    for (int i = 0; i < n; i++) square += (from[i] - mean) * (from[i] - mean);
    const float scale = (float)(1 / sqrt(square / n + 1e-5));  // as torch's layer_norm
    for (int i = 0; i < n; i++) to[i] = (float)(from[i] - mean) * scale;
}

// The `top` largest as bits; of equal ones those that come first.
static uint64_t largest(const float *scores, int groups, int top) {
    uint64_t found = 0;
    for (int n = 0; n < top; n++) {
        int best = -1;
        for (int g = 0; g < groups; g++)
            if (!(found >> g & 1) && (best < 0 || scores[g] > scores[best])) best = g;
        found |= (uint64_t)1 << best;
    }
    return found;
}

// routed: room for sides * heads * dim numbers.
static void route_token(const RouteProblem &p, int t, float *routed) {
    const int query_sides = p.sides > 1 ? p.sides - 1 : 1;
    float scores[64];
    for (int side = 0; side < p.sides; side++)
        for (int head = 0; head < p.heads; head++) {
            const int unit = side * p.heads + head;
            const float *own = routed + unit * p.dim;
            const float *centroids = p.centroids + (ptrdiff_t)unit * p.dim * p.groups;
            float norm = p.cosine ? sqrtf(dot(own, own, p.dim)) : 1;
            norm = norm > 1e-12f ? norm : 1e-12f;  // as torch's normalize
            for (int g = 0; g < p.groups; g++) {
                float sum = 0;
                for (int d = 0; d < p.dim; d++) sum += own[d] / norm * centroids[d * p.groups + g];
                scores[g] = sum + p.potentials[unit * p.groups + g];
            }
            if (side < query_sides)
                p.query[(ptrdiff_t)t * p.heads * query_sides + head * query_sides + side] =
                    largest(scores, p.groups, p.query_top);
            if (side == p.sides - 1)
                p.key[(ptrdiff_t)t * p.heads + head] = largest(scores, p.groups, p.key_top);
        }
}

// 0, or 1: no memory, 2: more groups than bits.
extern "C" int focus_route(const RouteProblem *problem) {
    const RouteProblem &p = *problem;
    if (p.groups > 64) return 2;
    const int rows = p.sides * p.heads * p.dim;
    float *states = (float *)malloc((size_t)p.tokens * p.width * sizeof(float));
    float *routed = (float *)malloc((size_t)p.tokens * rows * sizeof(float));
    const bool room = states && routed;
    if (room) {
        for (int t = 0; t < p.tokens; t++) {
            const float *from = p.hidden + (ptrdiff_t)t * p.width;
            if (p.cosine)
                normalise(from, p.width, states + (ptrdiff_t)t * p.width);
            else
                memcpy(states + (ptrdiff_t)t * p.width, from, p.width * sizeof(float));
        }
#pragma omp parallel for schedule(static) num_threads(p.threads)
        for (int row = 0; row < rows; row++)
            for (int t = 0; t < p.tokens; t++)
                routed[(ptrdiff_t)t * rows + row] =
                    dot(states + (ptrdiff_t)t * p.width, p.weight + (ptrdiff_t)row * p.width, p.width);
        for (int t = 0; t < p.tokens; t++) route_token(p, t, routed + (ptrdiff_t)t * rows);
    }
    free(states), free(routed);
    return room ? 0 : 1;
}
