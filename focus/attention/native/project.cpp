// Projections of hidden states (docs/method.md, "A whole sequence"): in float32, or of bfloat16 on AMX.
// A token's is to the bit the same in float32, whichever others come with it.

#include "project_pairs.h"

namespace {

#if defined(__AVX__) && !defined(__AVX512F__)
enum { ROWS = 4, AT_ONCE = 3 };  // tokens and columns: 4 x 3 accumulators of 16 registers
#else
enum { ROWS = 8, AT_ONCE = 3 };  // 8 x 3 of 32
#endif
enum {
    FEW = 16,   // tokens for which weights are not packed
    MOST = 64,  // tokens of a share
    SPAN = 128  // terms that are summed before others: a tile's weights stay in the first cache
};

// Some tokens and some columns, each LANES dimensions of a unit; states (rows, width) are float32.
struct Share {
    int64_t first, rows, column, columns;
    float *states;
};

void read_states(const ProjectProblem &p, const Share &share) {
    const int64_t begin = share.first * p.width, count = share.rows * p.width;
    if (!p.bfloat16) {
        memcpy(share.states, (const float *)p.hidden + begin, count * sizeof(float));
        return;
    }
    const uint16_t *from = (const uint16_t *)p.hidden + begin;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(share.states + i, load_bfloat16(from + i));
    for (; i < count; i++) share.states[i] = from_bfloat16(from[i]);
}

// In place, as torch's layer_norm.
void normalise(float *row, int64_t n) {
    const int64_t whole = n / LANES * LANES;
    Vec sum = {}, square = {};
    for (int64_t i = 0; i < whole; i += LANES) sum += load(row + i);
    float mean = total(sum), rest = 0;
    for (int64_t i = whole; i < n; i++) mean += row[i];
    mean /= n;
    for (int64_t i = 0; i < whole; i += LANES) {
        const Vec apart = load(row + i) - mean;
        store(row + i, apart), square += apart * apart;
    }
    for (int64_t i = whole; i < n; i++) row[i] -= mean, rest += row[i] * row[i];
    const float scale = 1 / sqrtf((total(square) + rest) / n + 1e-5f);
    for (int64_t i = 0; i < whole; i += LANES) store(row + i, load(row + i) * scale);
    for (int64_t i = whole; i < n; i++) row[i] *= scale;
}

// Adds `count` terms of R tokens' U columns; the first ones begin.
template <int R, int U>
inline void project_tile(const ProjectProblem &p, const float *states, const float *const *weights,
                         int64_t count, bool begins, float *to) {
    const int64_t stride = p.units * p.dim;
    Vec sum[R][U] = {};
    for (int64_t i = 0; i < count; i++) {
        Vec own[U];
        for (int u = 0; u < U; u++) own[u] = load(weights[u] + i * p.dim);
        for (int r = 0; r < R; r++) {
            const Vec x = all(states[r * p.width + i]);
            for (int u = 0; u < U; u++) sum[r][u] = fused(x, own[u], sum[r][u]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int u = 0; u < U; u++) {
            float *at = to + r * stride + u * LANES;
            store(at, begins ? sum[r][u] : load(at) + sum[r][u]);
        }
}

template <int U>
void project_columns(const ProjectProblem &p, const Share &share, int64_t column, int64_t columns) {
    if constexpr (U > 1)
        if (columns < U) return project_columns<U - 1>(p, share, column, columns);
    const int64_t stride = p.units * p.dim, each = p.dim / LANES;
    float *to = p.projected + share.first * stride + column * LANES;
    for (int64_t begin = 0; begin < p.width; begin += SPAN) {
        const int64_t left = p.width - begin, count = left < SPAN ? left : SPAN;
        const float *weights[U], *states = share.states + begin;
        for (int u = 0; u < U; u++)
            weights[u] = p.projection + ((column + u) / each * p.width + begin) * p.dim + (column + u) % each * LANES;
        int64_t row = 0;
        for (; row + ROWS <= share.rows; row += ROWS)
            project_tile<ROWS, U>(p, states + row * p.width, weights, count, !begin, to + row * stride);
        for (; row < share.rows; row++)
            project_tile<1, U>(p, states + row * p.width, weights, count, !begin, to + row * stride);
    }
}

void project(const ProjectProblem &p, const Share &share) {
    const auto normalise_all = [&] {
        for (int64_t row = 0; row < share.rows; row++) normalise(share.states + row * p.width, p.width);
    };
    read_states(p, share);
    if (p.normed) normalise_all();
    const int64_t end = share.column + share.columns;
    for (int64_t column = share.column; column < end; column += AT_ONCE)
        project_columns<AT_ONCE>(p, share, column, end - column);
    if (!p.heads || share.column) return;
    if (!p.normed) normalise_all();
    for (int64_t row = 0; row < share.rows; row++)
        for (int64_t head = 0; head < p.heads; head++)
            p.heavy[(share.first + row) * p.heads + head] =
                p.heavy_bias[head] + dot(share.states + row * p.width, p.heavy_weight + head * p.width, p.width);
}

}  // namespace

extern "C" int focus_project(const ProjectProblem *problem) {
    const ProjectProblem &p = *problem;
    if (p.dim % LANES) return UNSUPPORTED;
    if (!p.tokens) return DONE;
    if (p.tokens > FEW && projects_pairs(p)) return project_all_pairs(p);
    const int64_t even = (p.tokens + p.threads - 1) / p.threads, whole = (even + ROWS - 1) / ROWS * ROWS;
    const int64_t rows = whole < MOST ? whole : MOST, parts = (p.tokens + rows - 1) / rows;
    const int64_t split = parts < p.threads ? p.threads / parts : 1, every = p.units * p.dim / LANES;
    const int64_t columns = (every + split - 1) / split;
    int missing = 0;
#pragma omp parallel num_threads((int)p.threads) reduction(| : missing) if (parts * split > 1)
    {
        float *states = (float *)malloc(rows * p.width * sizeof(float));
        missing |= !states;
#pragma omp for schedule(static) collapse(2)
        for (int64_t part = 0; part < parts; part++)
            for (int64_t n = 0; n < split; n++) {
                const int64_t first = part * rows, column = n * columns;
                const int64_t left = p.tokens - first, more = every - column;
                const Share share = {first, left < rows ? left : rows, column, more < columns ? more : columns, states};
                if (states && more > 0) project(p, share);
            }
        free(states);
    }
    return missing ? NO_MEMORY : DONE;
}
