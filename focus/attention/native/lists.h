// What is asked, who looks into which group, and which queries and keys meet: shared by the forward
// and the backward pass.
#pragma once

#include <new>
#include <vector>

#include "pairs.h"

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
};

enum Mode { AUTO, LISTS, DENSE };

// What a token costs beside its pairs, in pairs, and a pair of which the groups before are asked.
struct Costs {
    double near_extra, far_row, far_key, dense_extra, asked;
};
// Fitted to 114 pairs of timings (256 to 4,096 tokens, K = 4, 8, 16; two cores with AVX-512): where
// the choice is wrong, it costs less than 4%.
static const Costs COSTS = {50, 20, 10, 40, 1.15};
// The same of bfloat16 (160 to 3,072 tokens, K = 4 to 18; one core): on AMX, to 45, and it was never
// wrong; by AVX512-BF16, to 54, and where it is wrong it costs less than 9%.
#ifdef HAS_REGISTERS
static const Costs COSTS_OF_PAIRS = {150, 250, 40, 300, 1.15};
#else
static const Costs COSTS_OF_PAIRS = {100, 70, 20, 70, 1.15};
#endif

typedef std::vector<uint32_t> Words;

// One routing of one sequence: who looks into which group, and what is found there.
struct Unit {
    int start, tokens, sinks;
    std::vector<uint64_t> query_groups, key_groups;  // of every token
    std::vector<int> key_at, key_offset;  // slots: position of each, and first slot of each group
    Words key_words[2], slot_words[2];    // as the tiles read them; the second beyond WORD groups
    std::vector<int> query_at, query_high, query_offset;
    int slots, entries;
    int most_groups, most_key_groups, fewest_groups, fewest_key_groups;  // of any token
};

template <class T>
static T *room(size_t count) {
    return (T *)aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64);
}

// What work answers, a Status: threads let no exception out, nor does the library.
template <class Work>
static int tried(Work work) {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    }
}

static bool read_groups(const uint8_t *rows, int64_t row_stride, int64_t group_stride, int groups,
                        std::vector<uint64_t> &bits, int *most, int *fewest) {
    *most = 0, *fewest = MOST_GROUPS;
    for (size_t t = 0; t < bits.size(); t++) {
        uint64_t x = 0;
        for (int g = 0; g < groups; g++)
            x |= (uint64_t)(rows[t * row_stride + g * group_stride] != 0) << g;
        bits[t] = x;
        *most = max_of(*most, __builtin_popcountll(x));
        *fewest = min_of(*fewest, __builtin_popcountll(x));
    }
    return *fewest > 0;
}

static void count_groups(const std::vector<uint64_t> &bits, int from, int *counts) {
    for (size_t t = from; t < bits.size(); t++)
        for (uint64_t x = bits[t]; x; x &= x - 1) counts[__builtin_ctzll(x)]++;
}

// Words of so many entries, and LANES behind them for whole vectors; all zero: no group.
static void make_words(Words words[2], int groups, int entries) {
    for (int w = 0; w * WORD < groups; w++) words[w].assign(entries + LANES, 0);
}

static inline void put_words(Words words[2], int at, uint64_t bits) {
    words[0][at] = (uint32_t)bits;
    if (!words[1].empty()) words[1][at] = (uint32_t)(bits >> WORD);
}

static inline const uint32_t *words_at(const Words &words, ptrdiff_t at) {
    return words.empty() ? NULL : words.data() + at;
}

// What lists and the test of every pair would cost one head of a unit, in pairs. Groups are taken to be
// even, and every token in as many as the first: what later tokens do must not change how earlier ones
// are rounded.
static void costs_of(const Unit &unit, const Problem &p, const Costs &cost, double *lists, double *dense) {
    *lists = *dense = 0;
    if (!unit.tokens) return;
    const double asked = __builtin_popcountll(unit.query_groups[0]);
    const double filed = __builtin_popcountll(unit.key_groups[0]);
    const double n = unit.tokens, window = p.window < n ? p.window : n, far = n - window;
    const double a_pair = asked > 1 && filed > 1 ? cost.asked : 1;
    *lists = n * (window + cost.near_extra + cost.far_row * asked + cost.far_key * filed) +
             far * far / 2 * asked * filed / p.groups * a_pair;
    *dense = n * (n / 2 + cost.dense_extra);
}

static void build_lists(Unit &unit, const Problem &p) {
    const int n = unit.tokens, groups = p.groups, sinks = unit.sinks;
    int keys[MOST_GROUPS] = {}, queries[MOST_GROUPS] = {};
    count_groups(unit.key_groups, sinks, keys);
    count_groups(unit.query_groups, 0, queries);
    unit.key_offset.resize(groups + 1), unit.query_offset.resize(groups + 1);
    unit.slots = unit.entries = 0;
    for (int g = 0; g < groups; g++) {
        unit.key_offset[g] = unit.slots, unit.query_offset[g] = unit.entries;
        unit.slots += (sinks + keys[g] + PANEL - 1) / PANEL * PANEL;
        unit.entries += queries[g];
    }
    unit.key_offset[groups] = unit.slots, unit.query_offset[groups] = unit.entries;
    unit.key_at.assign(unit.slots + LANES, -1);  // -1: padding
    unit.query_at.resize(unit.entries), unit.query_high.resize(unit.entries);
    make_words(unit.slot_words, groups, unit.slots);
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
}

// The units of a call, how it is computed, and its memory.
struct Call {
    explicit Call(const Problem &problem, bool pairs = false)
        : p(problem), pairs(pairs), per_sequence(max_of(problem.routings, problem.key_routings)),
          row_size(problem.bfloat16 ? 2 : 4), unit(problem.batch * per_sequence) {}
    Call(const Call &) = delete;
    ~Call() {
        for (float *each : rooms) free(each);
    }
    const Problem &p;
    const bool pairs;  // is computed by tile_pairs.h
    int per_sequence, row_size, mode = 0, window = 0;
    std::vector<Unit> unit;
    std::vector<float *> rooms;
    bool far = false, repeats = false, single = true;

    float *take(size_t count) {
        rooms.push_back(nullptr);
        if (!(rooms.back() = room<float>(count))) throw std::bad_alloc();
        return rooms.back();
    }
    const Unit &unit_of(int b, int head) const {
        return unit[b * per_sequence + (int)((int64_t)head * per_sequence / p.heads)];
    }
    const Unit &keys_of(int b, int key_head) const {  // the same for all its query heads
        return unit_of(b, key_head * (p.heads / p.key_heads));
    }
    int key_head_of(int head) const { return (int)((int64_t)head * p.key_heads / p.heads); }
    int start_of(int b) const { return unit[b * per_sequence].start; }
    size_t state_at(int b, int head, int t) const {
        return ((size_t)b * p.heads + head) * p.tokens + start_of(b) + t;
    }
    const int32_t *extra_of(int b, int t) const {
        return p.extra + ((size_t)b * p.tokens + start_of(b) + t) * p.extras;
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
    unit.query_groups.resize(unit.tokens), unit.key_groups.resize(unit.tokens);
    make_words(unit.key_words, p.groups, unit.tokens);
    const int64_t *s = p.membership_strides, *ks = p.key_membership_strides;
    if (!read_groups(p.membership + b * s[0] + routing * s[1] + unit.start * s[2], s[2], s[3],
                     p.groups, unit.query_groups, &unit.most_groups, &unit.fewest_groups))
        return NO_GROUP;
    if (!read_groups(p.key_membership + b * ks[0] + key_routing * ks[1] + unit.start * ks[2], ks[2],
                     ks[3], p.groups, unit.key_groups, &unit.most_key_groups,
                     &unit.fewest_key_groups))
        return NO_GROUP;
    for (int t = 0; t < unit.tokens; t++) put_words(unit.key_words, t, unit.key_groups[t]);
    return DONE;
}

static void choose_mode(Call &c) {
    const Problem &p = c.p;
    double lists = 0, dense = 0;
    bool everything = true;  // every causal pair is kept
    for (const Unit &unit : c.unit) {
        double own_lists, own_dense;
        costs_of(unit, p, c.pairs ? COSTS_OF_PAIRS : COSTS, &own_lists, &own_dense);
        lists += own_lists, dense += own_dense;
        c.single &= unit.most_groups <= 1;
        c.repeats |= unit.most_groups > 1 && unit.most_key_groups > 1;
        everything &= p.window >= unit.tokens || p.sinks >= unit.tokens ||
                      unit.fewest_groups + unit.fewest_key_groups > p.groups;
    }
    c.mode = p.mode != AUTO ? p.mode : lists < dense || everything ? LISTS : DENSE;
    c.far = c.mode == LISTS && !everything;
    c.window = everything ? p.tokens : p.window;
}

// Reads every unit, chooses the mode and makes the lists that it needs; a Status.
static int prepare_units(Call &c) {
    const Problem &p = c.p;
    if (p.dim % LANES || p.dim > MOST_DIM || p.groups > MOST_GROUPS) return UNSUPPORTED;
    const int units = (int)c.unit.size();
    int status = DONE;
#pragma omp parallel for num_threads(p.threads) reduction(max : status) if (units > 1)
    for (int u = 0; u < units; u++)
        status = max_of(status, tried([&] { return read_unit(c, u); }));
    if (status != DONE) return status;
    choose_mode(c);
    if (!c.far) return DONE;
#pragma omp parallel for num_threads(p.threads) reduction(max : status) if (units > 1)
    for (int u = 0; u < units; u++)
        status = max_of(status, tried([&] {
                            build_lists(c.unit[u], p);
                            return DONE;
                        }));
    return status;
}
