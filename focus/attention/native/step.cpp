// Attention of new tokens over a past, in one call: files them, then reads what each query keeps.
//
// The past is cut into spans of positions, so that threads share the work and what several query heads
// of a key head read is still in the processor's cache; each span leaves its own maximum, norm and sum
// of values, merged by query at the end. Keys and values are float32 or bfloat16, sums float32.

#include <algorithm>
#include <new>
#include <vector>

#include "sums.h"

enum { TOGETHER = 4, LONGEST_SPAN = 2048, SHORTEST_SPAN = 128 };

namespace {

template <class T>
bool finite(const T *p, int64_t count) {
    float sum = 0;  // of zeros, NaN where one is not finite
    for (int64_t i = 0; i < count; i++) sum += wide(p[i]) * 0.0f;
    return sum == 0;
}

template <class T>
bool new_tokens_finite(const StepProblem &p) {
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t m = 0; m < p.tokens; m++) {
            if (!is_real(p, b, p.start + m)) continue;
            for (int64_t h = 0; h < p.heads; h++)
                if (!finite((const T *)p.query + ((b * p.heads + h) * p.tokens + m) * p.dim, p.dim))
                    return false;
            for (int64_t h = 0; h < p.key_heads; h++) {
                const int64_t at = ((b * p.key_heads + h) * p.tokens + m) * p.dim;
                if (!finite((const T *)p.key + at, p.dim)) return false;
                if (!finite((const T *)p.value + at, p.dim)) return false;
            }
        }
    return true;
}

// Rows, bits and places in lists of the new tokens.
template <class T>
void file(const StepProblem &p) {
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t m = 0; m < p.tokens; m++) {
            const int64_t position = p.start + m, at = position - p.first;
            const bool real = is_real(p, b, position), listed = real && !is_sink(p, b, position);
            for (int64_t h = b * p.key_heads; h < (b + 1) * p.key_heads; h++) {
                T *to = (T *)p.rows + (h * p.number + at) * 2 * p.dim;
                const int64_t from = (h * p.tokens + m) * p.dim;
                memset(to, 0, 2 * p.dim * sizeof(T));
                if (!real) continue;  // 0 * NaN is NaN: padding may hold anything
                memcpy(to, (const T *)p.key + from, p.dim * sizeof(T));
                memcpy(to + p.dim, (const T *)p.value + from, p.dim * sizeof(T));
            }
            for (int64_t r = b * p.key_routings; r < (b + 1) * p.key_routings; r++) {
                uint64_t *bits = p.bits + (r * p.number + at) * p.words;
                memset(bits, 0, p.words * sizeof(uint64_t));
                const uint8_t *groups = p.key_groups + (r * p.tokens + m) * p.groups;
                for (int64_t g = 0; g < p.groups && listed; g++) {
                    if (!groups[g]) continue;
                    bits[g / 64] |= 1ull << g % 64;
                    if (p.lists)
                        p.lists[(r * p.groups + g) * p.list_size + p.lengths[r * p.groups + g]++] =
                            (int32_t)position;
                }
            }
        }
}

// The positions of a job that a query keeps, counted from the buffer's first row.
struct Reader {
    const StepProblem &p;
    const Job &job;
    int64_t from, near;  // the first position to be read, the first of the window
    std::vector<int32_t> index;

    Reader(const StepProblem &p, const Job &job) : p(p), job(job) {
        const int64_t at = p.start + job.m;
        const int64_t low = std::max<int64_t>(p.first, at - p.limit + 1);
        from = std::max(low, job.from), near = std::max<int64_t>(low, at - p.reach + 1);
        index.reserve(std::max<int64_t>(0, job.to - from));
    }

    void push(int64_t position) { index.push_back((int32_t)(position - p.first)); }

    // What all query heads read: the window and the sinks before it.
    void push_shared() {
        const int64_t end = std::min(job.to, near);
        for (int64_t s = 0; s < p.sink_count; s++) {
            const int64_t position = p.sinks[job.b * p.sink_count + s];
            if (position >= from && position < end) push(position);
        }
        for (int64_t position = std::max(from, near); position < job.to; position++)
            if (is_real(p, job.b, position)) push(position);
    }

    // What the groups of a head read beyond the window, and its further keys.
    void push_far(int64_t head) {
        const int64_t end = std::min(job.to, near), key_routing = routing(head, p.key_routings);
        if (from >= end) return;
        const uint8_t *query = p.query_groups +
            (routing(head, p.query_routings) * p.tokens + job.m) * p.groups;
        const uint64_t *bits = p.bits + (key_routing * p.number - p.first) * p.words;
        std::vector<uint64_t> before(p.words, 0);  // the query's groups whose lists are read
        for (int64_t g = 0; g < p.groups && p.lists; g++) {
            if (!query[g]) continue;
            const int64_t list = key_routing * p.groups + g;
            const int32_t *at = p.lists + list * p.list_size, *stop = at + p.lengths[list];
            at = std::lower_bound(at, stop, (int32_t)from);
            stop = std::lower_bound(at, stop, (int32_t)end);
            for (; at < stop; at++)
                if (!p.apart || !meets(bits + *at * p.words, before)) push(*at);
            before[g / 64] |= 1ull << g % 64;
        }
        const int64_t *extra = p.extra + (job.b * p.tokens + job.m) * p.extras;
        for (int64_t e = 0; e < p.extras; e++)
            if (extra[e] >= from && extra[e] < end && is_real(p, job.b, extra[e]) &&
                !is_sink(p, job.b, extra[e]) && !meets(bits + extra[e] * p.words, before))
                push(extra[e]);
    }

    int64_t routing(int64_t head, int64_t routings) const {
        return job.b * routings + head * routings / p.heads;
    }

    bool meets(const uint64_t *bits, const std::vector<uint64_t> &groups) const {
        for (int64_t w = 0; w < p.words; w++)
            if (bits[w] & groups[w]) return true;
        return false;
    }
};

template <class T, int Q>
int64_t read_together(const StepProblem &p, const Job &job, float *partial) {
    Reader reader(p, job);
    Sums<T, Q> sums;
    sums.begin(p, job, job.head);
    reader.push_shared();
    const bool own = p.query_routings > p.key_heads;
    if (!own) reader.push_far(job.head);
    sums.add(p, job, reader.index);
    sums.leave(p, partial);
    const int64_t each = p.heads / p.query_routings;  // query heads of a routing
    int64_t kept = (int64_t)reader.index.size() * (own ? Q : job.head % each == 0);
    for (int q = 0; own && q < Q; q++) {
        reader.index.clear();
        reader.push_far(job.head + q);
        if (reader.index.empty()) continue;
        Sums<T, 1> alone;
        alone.begin(p, job, job.head + q);
        alone.add(p, job, reader.index);
        alone.leave(p, partial + (TOGETHER + q) * (p.dim + 2));
        kept += (int64_t)reader.index.size();
    }
    return kept;
}

template <class T>
int64_t read(const StepProblem &p, const Job &job, float *partial) {
    for (int part = 0; part < 2 * TOGETHER; part++) partial[part * (p.dim + 2) + 1] = 0;
    if (!is_real(p, job.b, p.start + job.m)) return 0;
    switch (job.heads) {
    case 1: return read_together<T, 1>(p, job, partial);
    case 2: return read_together<T, 2>(p, job, partial);
    case 3: return read_together<T, 3>(p, job, partial);
    default: return read_together<T, TOGETHER>(p, job, partial);
    }
}

// Merges the spans of one query head and token; false where the outcome is not finite.
template <class T>
bool merge(const StepProblem &p, const Job *jobs, int64_t spans, int64_t apart, int64_t q,
           const float *partials) {
    float most = -3e38f, norm = 0, sum[MOST_DIM] = {};
    const int64_t size = p.dim + 2;
    for (int64_t n = 0; n < 2 * spans; n++) {
        const float *part = partials + ((n / 2) * apart * 2 * TOGETHER + n % 2 * TOGETHER + q) * size;
        if (part[1] == 0) continue;  // nothing was read
        const float now = part[0] > most ? part[0] : most;
        const float old = exp2f(most - now), weight = exp2f(part[0] - now);
        most = now, norm = norm * old + part[1] * weight;
        for (int64_t d = 0; d < p.dim; d++) sum[d] = sum[d] * old + part[2 + d] * weight;
    }
    T *out = (T *)p.out + ((jobs->b * p.heads + jobs->head + q) * p.tokens + jobs->m) * p.dim;
    for (int64_t d = 0; d < p.dim; d++) narrow(norm != 0 ? sum[d] / norm : 0.0f, out + d);
    return finite(out, p.dim);
}

// Jobs by span, then by query, so that queries that follow find a span's keys where they were read.
std::vector<Job> plan(const StepProblem &p, int64_t &spans, int64_t &units) {
    const int64_t share = p.heads / p.key_heads, blocks = (share + TOGETHER - 1) / TOGETHER;
    const int64_t stop = p.start + p.tokens, low = std::max(p.first, p.start - p.limit + 1);
    units = p.batch * p.key_heads * blocks * p.tokens;
    int64_t span = (stop - low) * units / (p.threads * 8);
    span = std::min<int64_t>(LONGEST_SPAN, std::max<int64_t>(SHORTEST_SPAN, span));
    if (p.threads < 2) span = LONGEST_SPAN;
    spans = std::max<int64_t>(1, (stop - low + span - 1) / span);
    std::vector<Job> jobs;
    jobs.reserve(spans * units);
    for (int64_t n = 0; n < spans; n++)
        for (int64_t b = 0; b < p.batch; b++)
            for (int64_t h = 0; h < p.key_heads; h++)
                for (int64_t block = 0; block < share; block += TOGETHER)
                    for (int64_t m = 0; m < p.tokens; m++)
                        jobs.push_back({b, h, h * share + block,
                                        std::min<int64_t>(TOGETHER, share - block), m,
                                        low + n * span,
                                        std::min(low + (n + 1) * span, p.start + m + 1)});
    return jobs;
}

template <class T>
int step(const StepProblem &p) {
    if (!new_tokens_finite<T>(p)) return NOT_FINITE;
    file<T>(p);
    int64_t spans, units, kept = 0;
    const std::vector<Job> jobs = plan(p, spans, units);
    const int64_t count = (int64_t)jobs.size(), room = 2 * TOGETHER * (p.dim + 2);
    std::vector<float> partials(count * room);
    bool good = true;
    const int threads = (int)std::max<int64_t>(1, std::min(p.threads, count / 2));
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(+ : kept)
    for (int64_t n = 0; n < count; n++) kept += read<T>(p, jobs[n], &partials[n * room]);
    // A few queries are merged sooner than threads would have met again.
#pragma omp parallel for num_threads(threads) reduction(&& : good) if (units > 64)
    for (int64_t u = 0; u < units; u++)
        for (int64_t q = 0; q < jobs[u].heads; q++)
            good = merge<T>(p, &jobs[u], spans, units, q, &partials[u * room]) && good;
    *p.kept = kept;
    return good ? DONE : NOT_FINITE;
}

}  // namespace

extern "C" int focus_step(const StepProblem *problem) {
    const StepProblem &p = *problem;
    if (p.dim % LANES || p.dim > MOST_DIM) return UNSUPPORTED;
    try {
        return p.bfloat16 ? step<uint16_t>(p) : step<float>(p);
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    }
}
