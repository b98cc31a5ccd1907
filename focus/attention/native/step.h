// What a step is asked, rows of either type, and how its work is cut.
#pragma once

#include "vectors.h"

extern "C" struct StepProblem {  // as in step.py; tensors are contiguous
    const void *query, *key, *value;           // (B, H, M, D); new, (B, Hk, M, D)
    const uint8_t *query_groups, *key_groups;  // (B, Rq, M, K), (B, Rk, M, K)
    const int64_t *extra;                      // (B, M, E), -1: none
    const uint8_t *real;                       // (B, start + M), or NULL: all are
    const int64_t *sinks;                      // (B, S), -1: none
    void *rows;                                // (B, Hk, N, 2, D); row 0 is position `first`
    uint64_t *bits;                            // (B, Rk, N, W)
    int32_t *lists, *lengths;                  // (B, Rk, K, L), (B, Rk, K); or NULL
    void *out;                                 // (B, H, M, D)
    int64_t *kept;                             // pairs, of all query routings
    int64_t batch, heads, key_heads, query_routings, key_routings, tokens, dim, groups, words;
    int64_t extras, sink_count, first, start, number, list_size, reach, limit;
    int64_t apart, bfloat16, threads;  // apart: a pair may share several groups
    double scale, softcap;             // softcap: 0: none
};

namespace {

inline Vec row(const float *p) { return load(p); }
inline Vec row(const uint16_t *p) {
    float wide[LANES];
    for (int i = 0; i < LANES; i++) wide[i] = from_bfloat16(p[i]);
    return load(wide);
}
inline float wide(float x) { return x; }
inline float wide(uint16_t x) { return from_bfloat16(x); }
inline void narrow(float x, float *to) { *to = x; }
inline void narrow(float x, uint16_t *to) { *to = to_bfloat16(x); }

inline bool is_real(const StepProblem &p, int64_t b, int64_t position) {
    return !p.real || p.real[b * (p.start + p.tokens) + position];
}

inline bool is_sink(const StepProblem &p, int64_t b, int64_t position) {
    for (int64_t s = 0; s < p.sink_count; s++)
        if (p.sinks[b * p.sink_count + s] == position) return true;
    return false;
}

struct Job {  // up to TOGETHER query heads of a key head, one token, a span of positions
    int64_t b, key_head, head, heads, m, from, to;
};

}  // namespace
