// What is asked, who looks into which group, and keys laid out as the tiles read them.
#pragma once

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

static inline const char *row_of(const void *base, const int64_t *strides, int b, int h, int64_t t,
                                 int size) {
    return (const char *)base + (b * strides[0] + h * strides[1] + t * strides[2]) * size;
}

// Copies a row as float32 times `scale`; what it returns is 0, or NaN where the row is not finite.
static inline float read_row(const char *from, int bfloat16, int dim, float scale, float *to) {
    Vec bad = {};
    for (int d = 0; d < dim; d += LANES) {
        Vec x;
        if (bfloat16)
            for (int i = 0; i < LANES; i++) x[i] = from_bfloat16(((const uint16_t *)from)[d + i]);
        else
            x = load((const float *)from + d);
        bad += x * 0.0f;
        store(to + d, x * scale);
    }
    return total(bad);
}

// A panel of keys, transposed, and their values: positions `at` (or from `first` on), -1 is none.
static float pack_panel(const Problem &p, int b, int head, int start, const int *at, int first,
                        int count, float *panel, float *values) {
    const int size = p.bfloat16 ? 2 : 4, dim = p.dim;
    float bad = 0, row[MOST_DIM];
    for (int j = 0; j < PANEL; j++) {
        const int t = j >= count ? -1 : at ? at[j] : first + j;
        if (t < 0) {
            for (int d = 0; d < dim; d++) panel[d * PANEL + j] = 0;
            continue;
        }
        bad += read_row(row_of(p.key, p.key_strides, b, head, start + t, size), p.bfloat16, dim, 1,
                        row);
        for (int d = 0; d < dim; d++) panel[d * PANEL + j] = row[d];
        bad += read_row(row_of(p.value, p.value_strides, b, head, start + t, size), p.bfloat16, dim,
                        1, values ? values + (ptrdiff_t)j * dim : row);
    }
    return bad;
}
