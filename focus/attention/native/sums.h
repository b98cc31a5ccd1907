// The softmax of a few queries over keys that lie anywhere, a tile of rows at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "step.h"

enum { TILE = 64, AHEAD = 8 };  // rows together; rows that are fetched ahead

namespace {

// Sums of four lanes each that are left of a vector: what a row costs of its total.
typedef float Four __attribute__((vector_size(16)));
inline void fold(Vec x, float *to) {
    Four parts[LANES / 4], sum = {};
    memcpy(parts, &x, sizeof(x));
    for (int i = 0; i < LANES / 4; i++) sum += parts[i];
    memcpy(to, &sum, sizeof(sum));
}

// Softmax of a few queries over keys that come in parts.
template <class T, int Q>
struct Sums {
    float query[Q][MOST_DIM], most[Q], norm[Q], sum[Q][MOST_DIM];

    void begin(const StepProblem &p, const Job &job, int64_t head) {
        const double factor = p.softcap ? p.scale / p.softcap : p.scale / LN2;
        for (int q = 0; q < Q; q++) {
            const T *from =
                (const T *)p.query + ((job.b * p.heads + head + q) * p.tokens + job.m) * p.dim;
            for (int64_t d = 0; d < p.dim; d++) query[q][d] = wide(from[d]) * (float)factor;
            memset(sum[q], 0, p.dim * sizeof(float));
            most[q] = -3e38f, norm[q] = 0;
        }
    }

    void logits(const StepProblem &p, const T *rows, const int32_t *index, int64_t count,
                int64_t known, float (*scores)[TILE]) {
        const int vectors = (int)(p.dim / LANES);
        const int64_t stride = 2 * p.dim, lines = stride * (int64_t)sizeof(T);
        float folded[Q][TILE][4];
        for (int64_t j = 0; j < count; j++) {
            if (j + AHEAD < known) {
                const char *next = (const char *)(rows + (ptrdiff_t)index[j + AHEAD] * stride);
                for (int64_t at = 0; at < lines; at += 64) __builtin_prefetch(next + at);
            }
            const T *key = rows + (ptrdiff_t)index[j] * stride;
            Vec products[Q] = {};
            for (int v = 0; v < vectors; v++) {
                const Vec x = row(key + v * LANES);
                for (int q = 0; q < Q; q++) products[q] += x * load(query[q] + v * LANES);
            }
            for (int q = 0; q < Q; q++) fold(products[q], folded[q][j]);
        }
        for (int q = 0; q < Q; q++)
            for (int64_t j = 0; j < count; j++) {
                const float *x = folded[q][j];
                scores[q][j] = (x[0] + x[1]) + (x[2] + x[3]);
            }
        if (p.softcap)
            for (int q = 0; q < Q; q++)
                for (int64_t j = 0; j < count; j++)
                    scores[q][j] = std::tanh(scores[q][j]) * (float)(p.softcap / LN2);
    }

    // Up to TILE rows; `known` of the indices may be looked at to fetch what comes.
    void add_tile(const StepProblem &p, const T *rows, const int32_t *index, int64_t count,
                  int64_t known) {
        float scores[Q][TILE];
        logits(p, rows, index, count, known, scores);
        for (int q = 0; q < Q; q++) {
            const int64_t whole = up((int)count, LANES);
            for (int64_t j = count; j < whole; j++) scores[q][j] = -INFINITY;
            Vec top = all(most[q]), added = {};
            for (int64_t j = 0; j < whole; j += LANES) top = larger(load(scores[q] + j), top);
            const float now = highest(top), old = exp2f(most[q] - now);
            for (int64_t j = 0; j < whole; j += LANES) {
                const Vec below = load(scores[q] + j) - now;
                // What is not a number compares with nothing; it must not vanish.
                const Vec weight = select(below == below, exp2_of(below), below);
                store(scores[q] + j, weight);
                added += weight;
            }
            norm[q] = norm[q] * old + total(added), most[q] = now;
            if (old != 1)
                for (int64_t d = 0; d < p.dim; d += LANES)
                    store(sum[q] + d, load(sum[q] + d) * old);
        }
        add_values(p, rows, index, count, scores);
    }

    void add_values(const StepProblem &p, const T *rows, const int32_t *index, int64_t count,
                    float (*scores)[TILE]) {
        const int vectors = (int)(p.dim / LANES);
        for (int first = 0; first < vectors; first += COLUMNS) {
            const int width = min_of(COLUMNS, vectors - first);
            Vec parts[Q][COLUMNS] = {};
            for (int64_t j = 0; j < count; j++) {
                const T *value = rows + (ptrdiff_t)index[j] * 2 * p.dim + p.dim + first * LANES;
                for (int v = 0; v < COLUMNS; v++) {
                    if (v >= width) break;
                    const Vec x = row(value + v * LANES);
                    for (int q = 0; q < Q; q++) parts[q][v] += x * scores[q][j];
                }
            }
            for (int q = 0; q < Q; q++)
                for (int v = 0; v < width; v++) {
                    float *to = sum[q] + (first + v) * LANES;
                    store(to, load(to) + parts[q][v]);
                }
        }
    }

    void add(const StepProblem &p, const Job &job, const std::vector<int32_t> &index) {
        const T *rows =
            (const T *)p.rows + (job.b * p.key_heads + job.key_head) * p.number * 2 * p.dim;
        const int64_t count = (int64_t)index.size();
        for (int64_t j = 0; j < count; j += TILE)
            add_tile(p, rows, index.data() + j, std::min<int64_t>(TILE, count - j), count - j);
    }

    // partial: for each query maximum, norm and dim sums.
    void leave(const StepProblem &p, float *partial) const {
        for (int q = 0; q < Q; q++, partial += p.dim + 2) {
            partial[0] = most[q], partial[1] = norm[q];
            memcpy(partial + 2, sum[q], p.dim * sizeof(float));
        }
    }
};

}  // namespace
