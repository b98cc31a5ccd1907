// One decoding step: each query over a few runs of keys that lie where they are, one softmax.
//
// A run is read in chunks, any thread a chunk; each leaves its own maximum, norm and sum of
// values, which are merged by query at the end. Keys and values are float32 or bfloat16, sums float32.

#include <omp.h>

#include "vectors.h"

enum { CHUNK = 256, TOGETHER = 4 };  // keys of a chunk, most queries of one

extern "C" struct KeyRun {
    const void *key, *value;  // (count, dim), rows side by side
    const float *mask;        // NULL, or what is added to the logits, a row of `count` for each query..
    int64_t mask_stride;      // ..so far apart; 0: one row for all
    int32_t first, queries, count, unused;
};

extern "C" struct StepProblem {
    const float *query;  // (queries, dim)
    float *out;
    const KeyRun *runs;
    int32_t number, queries, dim, bfloat16, threads;
    float scale;
};

struct Job {
    int run, first, queries, from, count;  // queries and keys of the run
};

static inline Vec row(const float *p) { return load(p); }
static inline Vec row(const uint16_t *p) {
    float wide[LANES];
    for (int i = 0; i < LANES; i++) wide[i] = from_bfloat16(p[i]);
    return load(wide);
}

// partial: for each query maximum, norm and dim sums.
template <class T, int QUERIES>
static void run_some(const StepProblem &p, const KeyRun &s, const Job &job, float *partial) {
    const int vectors = p.dim / LANES, size = p.dim + 2;
    const T *keys = (const T *)s.key + (ptrdiff_t)job.from * p.dim;
    const T *values = (const T *)s.value + (ptrdiff_t)job.from * p.dim;
    float scores[QUERIES][CHUNK + LANES], query[QUERIES][MOST_DIM];
    for (int r = 0; r < QUERIES; r++)
        for (int v = 0; v < vectors; v++)
            store(query[r] + v * LANES,
                  load(p.query + (ptrdiff_t)(s.first + job.first + r) * p.dim + v * LANES) *
                      (p.scale / LN2));
    for (int j = 0; j < job.count; j++) {
        Vec sum[QUERIES] = {};
        for (int v = 0; v < vectors; v++) {
            const Vec key = row(keys + (ptrdiff_t)j * p.dim + v * LANES);
            for (int r = 0; r < QUERIES; r++) sum[r] += key * load(query[r] + v * LANES);
        }
        for (int r = 0; r < QUERIES; r++) scores[r][j] = total(sum[r]);
    }
    for (int r = 0; r < QUERIES; r++) {
        float *own = scores[r], *to = partial + r * size;
        if (s.mask) {
            const float *mask = s.mask + (job.first + r) * s.mask_stride + job.from;
            for (int j = 0; j < job.count; j++) own[j] += mask[j] * (1 / LN2);
        }
        const int whole = up(job.count, LANES);
        for (int j = job.count; j < whole; j++) own[j] = -INFINITY;
        Vec top = all(-3e38f), norm = {};
        for (int j = 0; j < whole; j += LANES) top = larger(load(own + j), top);
        const float most = highest(top);
        for (int j = 0; j < whole; j += LANES) {
            const Vec below = load(own + j) - most;
            // What is not a number compares with nothing; it must not vanish.
            store(own + j, select(below == below, exp2_of(below), below));
            norm += load(own + j);
        }
        to[0] = most, to[1] = total(norm);
    }
    for (int first = 0; first < vectors; first += COLUMNS) {
        const int width = min_of(COLUMNS, vectors - first);
        Vec sum[QUERIES][COLUMNS] = {};
        for (int j = 0; j < job.count; j++)
            for (int v = 0; v < COLUMNS; v++) {
                if (v >= width) break;
                const Vec value = row(values + (ptrdiff_t)j * p.dim + (first + v) * LANES);
                for (int r = 0; r < QUERIES; r++) sum[r][v] += value * scores[r][j];
            }
        for (int r = 0; r < QUERIES; r++)
            for (int v = 0; v < width; v++)
                store(partial + r * size + 2 + (first + v) * LANES, sum[r][v]);
    }
}

template <class T>
static void run(const StepProblem &p, const KeyRun &s, const Job &job, float *partial) {
    switch (job.queries) {
    case 1: return run_some<T, 1>(p, s, job, partial);
    case 2: return run_some<T, 2>(p, s, job, partial);
    case 3: return run_some<T, 3>(p, s, job, partial);
    default: return run_some<T, TOGETHER>(p, s, job, partial);
    }
}

// most, norm: room for a number of each query.
static void merge(const StepProblem &p, const Job *jobs, int number, const float *partials,
                  float *most, float *norm) {
    const int size = p.dim + 2;
    for (int q = 0; q < p.queries; q++) most[q] = -3e38f, norm[q] = 0;
    memset(p.out, 0, (size_t)p.queries * p.dim * sizeof(float));
    for (int n = 0; n < number; n++)
        for (int r = 0; r < jobs[n].queries; r++) {
            const int q = p.runs[jobs[n].run].first + jobs[n].first + r;
            const float *part = partials + ((size_t)n * TOGETHER + r) * size;
            const float now = part[0] > most[q] ? part[0] : most[q];
            const float old = exp2f(most[q] - now), weight = exp2f(part[0] - now);
            most[q] = now, norm[q] = norm[q] * old + part[1] * weight;
            float *out = p.out + (ptrdiff_t)q * p.dim;
            for (int d = 0; d < p.dim; d++) out[d] = out[d] * old + part[2 + d] * weight;
        }
    for (int q = 0; q < p.queries; q++)
        if (norm[q] != 0)
            for (int d = 0; d < p.dim; d++) p.out[(ptrdiff_t)q * p.dim + d] /= norm[q];
}

// 0, or 1: no memory, 2: a head dimension that is not whole vectors or too great.
extern "C" int focus_step(const StepProblem *problem) {
    const StepProblem &p = *problem;
    if (p.dim % LANES || p.dim > MOST_DIM) return 2;
    int number = 0;
    for (int n = 0; n < p.number; n++)
        number += up(p.runs[n].count, CHUNK) / CHUNK * (up(p.runs[n].queries, TOGETHER) / TOGETHER);
    Job *jobs = (Job *)malloc((number + 1) * sizeof(Job));
    float *partials = (float *)malloc(((size_t)number * TOGETHER * (p.dim + 2) + 1) * sizeof(float));
    float *state = (float *)malloc((2 * (size_t)p.queries + 1) * sizeof(float));
    const bool room = jobs && partials && state;
    if (room) {
        int at = 0;
        for (int n = 0; n < p.number; n++)
            for (int from = 0; from < p.runs[n].count; from += CHUNK)
                for (int first = 0; first < p.runs[n].queries; first += TOGETHER)
                    jobs[at++] = {n, first, min_of(TOGETHER, p.runs[n].queries - first), from,
                                  min_of(CHUNK, p.runs[n].count - from)};
#pragma omp parallel for schedule(dynamic) num_threads(max_of(1, min_of(p.threads, number / 2)))
        for (int n = 0; n < number; n++) {
            const KeyRun &s = p.runs[jobs[n].run];
            float *partial = partials + (size_t)n * TOGETHER * (p.dim + 2);
            p.bfloat16 ? run<uint16_t>(p, s, jobs[n], partial) : run<float>(p, s, jobs[n], partial);
        }
        merge(p, jobs, number, partials, state, state + p.queries);
    }
    free(jobs), free(partials), free(state);
    return room ? 0 : 1;
}
