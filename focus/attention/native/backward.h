// What the backward pass is asked, and what it keeps on the way.
#pragma once

#include "cells.h"
#include "rows.h"

extern "C" struct GradProblem {
    Problem forward;  // with `out` and `lse` as they were computed
    const void *grad;
    int64_t grad_strides[3];
    float *d_query, *d_key, *d_value;  // zero; contiguous (batch, heads or key heads, tokens, dim)
};

// One key head of one sequence, and the gradients of its lists.
struct KeySide {
    Packed keys, values;
    float *far_d_keys, *far_d_values;
};

struct Backward : Call {
    explicit Backward(const GradProblem &problem)
        : Call(problem.forward), g(problem), cell(cell_size(p)) {}
    const GradProblem &g;
    std::vector<KeySide> sides;  // by (sequence, key head)
    float *delta = nullptr, *extra_weights = nullptr;  // (batch, heads, tokens); with extras, twice
    int cell;  // its size

    float *head_rows(float *base, int b, int head, int heads) const {  // from the first real token
        return base + (((size_t)b * heads + head) * p.tokens + start_of(b)) * p.dim;
    }
};

static void read_query(const Backward &c, int b, int head, int t, float *query, float *grad) {
    const Problem &p = c.p;
    const int at = c.start_of(b) + t;
    read_row(row_of(p.query, p.query_strides, b, head, at, c.row_size), p.bfloat16, p.dim,
             p.scale / LN2, query);
    read_row(row_of(c.g.grad, c.g.grad_strides, b, head, at, c.row_size), p.bfloat16, p.dim, 1, grad);
}
