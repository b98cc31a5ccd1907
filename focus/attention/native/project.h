// Projections of hidden states, with the layer norm before them, and scores of heavy hitters.
#pragma once

#include "vectors.h"

extern "C" struct ProjectProblem {
    const void *hidden;         // (tokens, width) float32, or bfloat16
    const float *projection;    // (units, width, dim), dim a multiple of LANES
    const float *heavy_weight;  // NULL, or (heads, width): of scores of heavy hitters, always normed
    const float *heavy_bias;    // (heads)
    float *projected, *heavy;   // (tokens, units * dim); (tokens, heads)
    int64_t tokens, width, units, dim, heads, normed, bfloat16, threads;
};

// A Status.
extern "C" int focus_project(const ProjectProblem *problem);

static inline float dot(const float *a, const float *b, int64_t n) {
    Vec sum = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    float rest = total(sum);
    for (; i < n; i++) rest += a[i] * b[i];
    return rest;
}
