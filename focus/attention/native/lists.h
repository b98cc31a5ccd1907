// What is asked, who looks into which group, and which queries and keys meet: shared by the forward
// and the backward pass.
#pragma once

#ifdef _OPENMP
#include <omp.h>
static inline double seconds_now() { return omp_get_wtime(); }
#else  // without OpenMP its pragmas are ignored and one thread does all
#include <time.h>
static inline double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
#endif

#include <initializer_list>

#include "vectors.h"

enum { MOST_GROUPS = 64, WORD = 32 };

extern "C" struct Problem {
    const void *query, *key, *value;
    void *out;
    float *lse;  // (batch, heads, tokens) contiguous, natural logarithm
    const uint8_t *membership, *key_membership;
    const int32_t *spans;  // first and last + 1 real token of every sequence
    const int32_t *extra;  // NULL, or (batch, tokens, extras) further keys of each query, -1: none
    int64_t query_strides[3], key_strides[3], value_strides[3], out_strides[3];
    int64_t membership_strides[4], key_membership_strides[4];
    int32_t batch, heads, key_heads, tokens, dim, groups, routings, key_routings, window, sinks;
    int32_t bfloat16, mode, threads, extras;
    float scale;
    double *seconds;  // NULL, or room for what each Part took
    int32_t *chosen;  // NULL, or room for the Mode
};

enum Mode { AUTO, LISTS, DENSE };
enum Part { READ, PACK, FAR, NEAR, PARTS };
enum Status { DONE, NOT_FINITE, NO_GROUP, NO_MEMORY, UNSUPPORTED };

// What a token costs beside its pairs, in pairs, and a pair of which the groups before are asked.
// Fitted to 114 pairs of timings (256 to 4,096 tokens, K = 4, 8, 16; two cores with AVX-512): where
// the choice is wrong, it costs less than 4%.
static const double NEAR_EXTRA = 50, FAR_ROW = 20, FAR_KEY = 10, DENSE_EXTRA = 40, ASKED = 1.15;

// One routing of one sequence: who looks into which group, and what is found there.
struct Unit {
    int start, tokens, sinks;
    uint64_t *query_groups, *key_groups;  // of every token
    int *key_at, *key_offset;             // slots: position of each, and first slot of each group
    uint32_t *key_words[2], *slot_words[2];  // as the tiles read them; the second beyond WORD groups
    int *query_at, *query_high, *query_offset;
    int slots, entries;
    int most_groups, most_key_groups, fewest_groups, fewest_key_groups;  // of any token
};

struct Item {
    int32_t unit, head, group, first;
};

template <class T>
static T *room(size_t count) {
    return (T *)aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64);
}

static bool read_groups(const uint8_t *rows, int64_t row_stride, int64_t group_stride, int tokens,
                        int groups, uint64_t *bits, int *most, int *fewest) {
    *most = 0, *fewest = MOST_GROUPS;
    for (int t = 0; t < tokens; t++) {
        uint64_t x = 0;
        for (int g = 0; g < groups; g++)
            x |= (uint64_t)(rows[t * row_stride + g * group_stride] != 0) << g;
        bits[t] = x;
        *most = max_of(*most, __builtin_popcountll(x));
        *fewest = min_of(*fewest, __builtin_popcountll(x));
    }
    return *fewest > 0;
}

static void count_groups(const uint64_t *bits, int from, int to, int *counts) {
    for (int t = from; t < to; t++)
        for (uint64_t x = bits[t]; x; x &= x - 1) counts[__builtin_ctzll(x)]++;
}

// Room for the words of so many entries, all zero: no group.
static bool make_words(uint32_t *words[2], int groups, int entries) {
    for (int w = 0; w * WORD < groups; w++) {
        if (!(words[w] = room<uint32_t>(entries + LANES))) return false;
        memset(words[w], 0, (entries + LANES) * sizeof(uint32_t));
    }
    return true;
}

static inline void put_words(uint32_t *const words[2], int at, uint64_t bits) {
    words[0][at] = (uint32_t)bits;
    if (words[1]) words[1][at] = (uint32_t)(bits >> WORD);
}

// What lists and the test of every pair would cost one head of a unit, in pairs.
static void costs_of(const Unit &unit, const Problem &p, double *lists, double *dense) {
    int queries[MOST_GROUPS] = {}, keys[MOST_GROUPS] = {};
    count_groups(unit.query_groups, 0, unit.tokens, queries);
    count_groups(unit.key_groups, 0, unit.tokens, keys);
    double n = unit.tokens, window = p.window < n ? p.window : n, far = n > window ? 1 - window / n : 0;
    *lists = n * (window + NEAR_EXTRA);
    const double a_pair = unit.most_groups > 1 && unit.most_key_groups > 1 ? ASKED : 1;
    for (int g = 0; g < p.groups; g++)
        *lists += (double)queries[g] * keys[g] / 2 * far * far * a_pair + FAR_ROW * queries[g] +
                  FAR_KEY * keys[g];
    *dense = n * (n / 2 + DENSE_EXTRA);
}

static bool build_lists(Unit &unit, const Problem &p) {
    const int n = unit.tokens, groups = p.groups, sinks = unit.sinks;
    int keys[MOST_GROUPS] = {}, queries[MOST_GROUPS] = {};
    count_groups(unit.key_groups, sinks, n, keys);
    count_groups(unit.query_groups, 0, n, queries);
    unit.key_offset = room<int>(groups + 1), unit.query_offset = room<int>(groups + 1);
    if (!unit.key_offset || !unit.query_offset) return false;
    unit.slots = unit.entries = 0;
    for (int g = 0; g < groups; g++) {
        unit.key_offset[g] = unit.slots, unit.query_offset[g] = unit.entries;
        unit.slots += (sinks + keys[g] + PANEL - 1) / PANEL * PANEL;
        unit.entries += queries[g];
    }
    unit.key_offset[groups] = unit.slots, unit.query_offset[groups] = unit.entries;
    unit.key_at = room<int>(unit.slots + LANES);
    unit.query_at = room<int>(unit.entries + 1), unit.query_high = room<int>(unit.entries + 1);
    if (!unit.key_at || !unit.query_at || !unit.query_high) return false;
    if (!make_words(unit.slot_words, groups, unit.slots)) return false;
    memset(unit.key_at, -1, (unit.slots + LANES) * sizeof(int));  // -1: padding
    int key_end[MOST_GROUPS], query_end[MOST_GROUPS], far[MOST_GROUPS];
    for (int g = 0; g < groups; g++) {
        key_end[g] = unit.key_offset[g], query_end[g] = unit.query_offset[g], far[g] = sinks;
        for (int t = 0; t < sinks; t++) unit.key_at[key_end[g]++] = t;
    }
    // One walk in order of position: when query t comes, the keys up to t - window have been filed.
    for (int t = 0; t < n; t++) {
        const int left = t - p.window;
        if (left >= sinks)
            for (uint64_t x = unit.key_groups[left]; x; x &= x - 1) {
                int g = __builtin_ctzll(x), slot = key_end[g]++;
                unit.key_at[slot] = left, far[g]++;
                put_words(unit.slot_words, slot, unit.key_groups[left]);
            }
        for (uint64_t x = unit.query_groups[t]; x; x &= x - 1) {
            int g = __builtin_ctzll(x), entry = query_end[g]++;
            unit.query_at[entry] = t;
            unit.query_high[entry] = left + 1 < sinks ? max_of(0, left + 1) : far[g];
        }
    }
    return true;
}

// The units of a call and how it is computed.
struct Call {
    explicit Call(const Problem &problem)
        : p(problem), per_sequence(max_of(problem.routings, problem.key_routings)),
          units(problem.batch * per_sequence), row_size(problem.bfloat16 ? 2 : 4) {}
    const Problem &p;
    int per_sequence, units, row_size, mode = 0, window = 0;
    Unit *unit = nullptr;
    bool far = false, repeats = false, single = true;

    int unit_of(int b, int head) const {
        return b * per_sequence + (int)((int64_t)head * per_sequence / p.heads);
    }
    const Unit &keys_of(int b, int key_head) const {  // the same for all its query heads
        return unit[unit_of(b, key_head * (p.heads / p.key_heads))];
    }
    int key_head_of(int head) const { return (int)((int64_t)head * p.key_heads / p.heads); }
    size_t state_at(int b, int head, int t) const {
        return ((size_t)b * p.heads + head) * p.tokens + unit[b * per_sequence].start + t;
    }
};

static int read_unit(Call &c, int u) {
    const Problem &p = c.p;
    Unit &unit = c.unit[u];
    const int b = u / c.per_sequence, within = u % c.per_sequence;
    const int64_t routing = (int64_t)within * p.routings / c.per_sequence;
    const int64_t key_routing = (int64_t)within * p.key_routings / c.per_sequence;
    unit.start = p.spans[2 * b], unit.tokens = p.spans[2 * b + 1] - unit.start;
    unit.sinks = min_of(p.sinks, unit.tokens);
    unit.query_groups = room<uint64_t>(unit.tokens), unit.key_groups = room<uint64_t>(unit.tokens);
    if (!unit.query_groups || !unit.key_groups) return NO_MEMORY;
    if (!make_words(unit.key_words, p.groups, unit.tokens)) return NO_MEMORY;
    const int64_t *s = p.membership_strides, *ks = p.key_membership_strides;
    if (!read_groups(p.membership + b * s[0] + routing * s[1] + unit.start * s[2], s[2], s[3],
                     unit.tokens, p.groups, unit.query_groups, &unit.most_groups, &unit.fewest_groups))
        return NO_GROUP;
    if (!read_groups(p.key_membership + b * ks[0] + key_routing * ks[1] + unit.start * ks[2], ks[2],
                     ks[3], unit.tokens, p.groups, unit.key_groups, &unit.most_key_groups,
                     &unit.fewest_key_groups))
        return NO_GROUP;
    for (int t = 0; t < unit.tokens; t++) put_words(unit.key_words, t, unit.key_groups[t]);
    return DONE;
}

static void choose_mode(Call &c) {
    const Problem &p = c.p;
    double lists = 0, dense = 0;
    bool everything = true;  // every causal pair is kept
    for (int u = 0; u < c.units; u++) {
        double own_lists, own_dense;
        costs_of(c.unit[u], p, &own_lists, &own_dense);
        lists += own_lists, dense += own_dense;
        c.single &= c.unit[u].most_groups <= 1;
        c.repeats |= c.unit[u].most_groups > 1 && c.unit[u].most_key_groups > 1;
        everything &= p.window >= c.unit[u].tokens ||
                      p.sinks >= c.unit[u].tokens ||
                      c.unit[u].fewest_groups + c.unit[u].fewest_key_groups > p.groups;
    }
    c.mode = p.mode != AUTO ? p.mode : lists < dense || everything ? LISTS : DENSE;
    c.far = c.mode == LISTS && !everything;
    c.window = everything ? p.tokens : p.window;
}

// Reads every unit, chooses the mode and makes the lists that it needs.
static int prepare_units(Call &c) {
    const Problem &p = c.p;
    c.unit = room<Unit>(c.units);
    if (!c.unit) return NO_MEMORY;
    memset(c.unit, 0, c.units * sizeof(Unit));
    int status = DONE;
#pragma omp parallel for num_threads(p.threads) reduction(max : status) if (c.units > 1)
    for (int u = 0; u < c.units; u++) status = max_of(status, read_unit(c, u));
    if (status != DONE) return status;
    choose_mode(c);
    if (!c.far) return DONE;
#pragma omp parallel for num_threads(p.threads) reduction(max : status) if (c.units > 1)
    for (int u = 0; u < c.units; u++)
        if (!build_lists(c.unit[u], p)) status = NO_MEMORY;
    return status;
}

static void release_units(Call &c) {
    for (int u = 0; c.unit && u < c.units; u++) {
        Unit &x = c.unit[u];
        for (void *each : {(void *)x.query_groups, (void *)x.key_groups, (void *)x.key_at,
                           (void *)x.key_offset, (void *)x.query_at, (void *)x.query_high,
                           (void *)x.query_offset, (void *)x.key_words[0], (void *)x.key_words[1],
                           (void *)x.slot_words[0], (void *)x.slot_words[1]})
            free(each);
    }
    free(c.unit);
}
