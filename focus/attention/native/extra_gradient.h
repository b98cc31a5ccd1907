// The gradients of further keys, one by one as they were counted forwards.
#pragma once

#include "backward.h"

enum { KEY_PARTS = 16 };  // of a key head: threads share its keys

static float *weights_of(const Backward &c, int b, int head, int t) {
    return c.extra_weights + c.state_at(b, head, t) * 2 * c.p.extras;
}

// The weights of a query's further keys, the gradients of their logits, and the query's gradient.
static void extra_queries(const Backward &c, int b, int head, int t) {
    const Problem &p = c.p;
    const Unit &unit = c.unit_of(b, head);
    const int key_head = c.key_head_of(head);
    const size_t at = c.state_at(b, head, t);
    const int32_t *own = c.extra_of(b, t);
    float query[MOST_DIM], grad[MOST_DIM], key[MOST_DIM], value[MOST_DIM], *weights = weights_of(c, b, head, t);
    float *to = c.head_rows(c.g.d_query, b, head, p.heads) + (ptrdiff_t)t * p.dim;
    memset(weights, 0, 2 * p.extras * sizeof(float));
    bool read = false;
    for (int e = 0; e < p.extras; e++) {
        if (own[e] < 0 || unit.key_groups[own[e] - unit.start] & unit.query_groups[t]) continue;
        if (!read) read_query(c, b, head, t, query, grad), read = true;
        read_row(row_of(p.key, p.key_strides, b, key_head, own[e], c.row_size), p.bfloat16, p.dim, 1, key);
        read_row(row_of(p.value, p.value_strides, b, key_head, own[e], c.row_size), p.bfloat16, p.dim, 1,
                 value);
        Vec score = {}, inner = {};
        for (int d = 0; d < p.dim; d += LANES)
            score += load(query + d) * load(key + d), inner += load(grad + d) * load(value + d);
        weights[2 * e] = exp2f(total(score) - p.lse[at] / LN2);
        weights[2 * e + 1] = weights[2 * e] * (total(inner) - c.delta[at]);
        const float d_logit = weights[2 * e + 1] * p.scale;
        for (int d = 0; d < p.dim; d += LANES) store(to + d, load(to + d) + load(key + d) * d_logit);
    }
}

// The gradients of some keys, a KEY_PARTS-th of a key head's, as further keys.
static void extra_keys(const Backward &c, int b, int key_head, int part) {
    const Problem &p = c.p;
    const Unit &unit = c.keys_of(b, key_head);
    const int size = unit.tokens / KEY_PARTS + 1, shared = p.heads / p.key_heads;
    const int low = unit.start + part * size, high = low + size;
    float query[MOST_DIM], grad[MOST_DIM];
    for (int t = part * size; t < unit.tokens; t++) {  // no query is before its keys
        const int32_t *own = c.extra_of(b, t);
        for (int e = 0; e < p.extras; e++) {
            if (own[e] < low || own[e] >= high) continue;
            const ptrdiff_t at = (ptrdiff_t)(own[e] - unit.start) * p.dim;
            float *d_key = c.head_rows(c.g.d_key, b, key_head, p.key_heads) + at;
            float *d_value = c.head_rows(c.g.d_value, b, key_head, p.key_heads) + at;
            for (int head = key_head * shared; head < (key_head + 1) * shared; head++) {
                const float *weights = weights_of(c, b, head, t) + 2 * e;
                if (weights[0] == 0) continue;
                read_query(c, b, head, t, query, grad);
                for (int d = 0; d < p.dim; d += LANES) {
                    store(d_key + d, load(d_key + d) + load(query + d) * weights[1]);
                    store(d_value + d, load(d_value + d) + load(grad + d) * weights[0]);
                }
            }
        }
    }
}
