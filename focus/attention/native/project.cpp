// Projections of bfloat16 hidden states on AMX, with the layer norm before them (docs/method.md, "A
// whole sequence"). A weight enters as the sum of three bfloat16, which hold all of its 24 bits, so the
// result is as exact as in float32. The mean is taken from the weights instead of the states, which
// stay as they are.

#include <vector>

#include "pairs.h"

extern "C" struct ProjectProblem {
    const uint16_t *hidden;     // (tokens, width) bfloat16
    const float *projection;    // (units, width, dim)
    const float *heavy_weight;  // NULL, or (heads, width): of scores of heavy hitters, always normed
    const float *heavy_bias;    // (heads)
    float *projected, *heavy;   // (tokens, units * dim); (tokens, heads)
    int64_t tokens, width, units, dim, heads, normed, threads;
};

// Whether focus_project can take states of this width.
extern "C" int focus_projects(int64_t width);

#ifdef HAS_PAIRS

enum { TERMS = 3, COLUMNS_AT_ONCE = 4 * SIDE };

extern "C" int focus_projects(int64_t width) { return width % DEPTH == 0 && has_registers(); }

// To bfloat16, as the bits of the float32 that it is.
static inline __m512i rounded(__m512 x) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16);
}

// Weights of some columns of the product, beside each other: `step` numbers from one of the width to
// the next.
struct Piece {
    const float *from;
    int64_t step, column, count;
    bool normed;
};

// All weights, the heavy hitters' behind the others: a term after the other, each of width / 2 rows, in
// which a column holds two.
struct Weights {
    int64_t columns, term;  // whole registers; numbers of a term
    std::vector<Piece> pieces;
    uint32_t *packed;

    explicit Weights(const ProjectProblem &p) {
        const int64_t rows = p.units * p.dim;
        columns = (rows + p.heads + SIDE - 1) / SIDE * SIDE, term = p.width / 2 * columns;
        for (int64_t u = 0; u < p.units; u++)
            pieces.push_back({p.projection + u * p.width * p.dim, p.dim, u * p.dim, p.dim, p.normed != 0});
        for (int64_t h = 0; h < p.heads; h++)
            pieces.push_back({p.heavy_weight + h * p.width, 1, rows + h, 1, true});
    }

    void pack(const Piece &piece, int64_t width) const {
        for (int64_t c = 0; c < piece.count; c += LANES) {
            const int64_t left = piece.count - c;
            const __mmask16 some = left < LANES ? (1 << left) - 1 : 0xffff;
            const auto at = [&](int64_t i) { return _mm512_maskz_loadu_ps(some, piece.from + i * piece.step + c); };
            __m512 mean = _mm512_setzero_ps();
            for (int64_t i = 0; piece.normed && i < width; i++) mean = _mm512_add_ps(mean, at(i));
            mean = _mm512_div_ps(mean, _mm512_set1_ps((float)width));
            for (int64_t i = 0; i < width; i += 2) {
                __m512 a = _mm512_sub_ps(at(i), mean), b = _mm512_sub_ps(at(i + 1), mean);
                uint32_t *to = packed + i / 2 * columns + piece.column + c;
                for (int n = 0; n < TERMS; n++, to += term) {
                    const __m512i low = rounded(a), high = rounded(b);
                    _mm512_mask_storeu_epi32(to, some, _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
                    a = _mm512_sub_ps(a, _mm512_castsi512_ps(low));
                    b = _mm512_sub_ps(b, _mm512_castsi512_ps(high));
                }
            }
        }
    }
};

// What a normed row is multiplied by, as in torch's layer_norm.
static float norm_of(const uint16_t *row, int64_t width) {
    Vec sum = {}, square = {};
    for (int64_t i = 0; i < width; i += LANES) sum += load_bfloat16(row + i);
    const float mean = total(sum) / width;
    for (int64_t i = 0; i < width; i += LANES) {
        const Vec apart = load_bfloat16(row + i) - mean;
        square += apart * apart;
    }
    return 1 / sqrtf(total(square) / width + 1e-5f);
}

// SIDE tokens from this one on; states and sums have room for as many rows.
static void project(const ProjectProblem &p, const Weights &weights, int64_t first, uint16_t *states,
                    float *sums) {
    const int64_t columns = weights.columns, rows = p.units * p.dim;
    const int64_t count = p.tokens - first < SIDE ? p.tokens - first : SIDE;
    const uint16_t *from = p.hidden + first * p.width;
    if (count < SIDE) {
        memset(states, 0, SIDE * p.width * sizeof(*states));
        from = (uint16_t *)memcpy(states, from, count * p.width * sizeof(*states));
    }
    for (int64_t c = 0; c < columns; c += COLUMNS_AT_ONCE) {
        const int used = (int)(columns - c < COLUMNS_AT_ONCE ? columns - c : COLUMNS_AT_ONCE) / SIDE;
        const uint32_t *right = weights.packed + c;
        pairs_product<false>(from, p.width, right, columns, (int)p.width, sums + c, columns, used);
        for (int n = 1; n < TERMS; n++)
            pairs_product<true>(from, p.width, right + n * weights.term, columns, (int)p.width, sums + c,
                                columns, used);
    }
    for (int64_t i = 0; i < count; i++) {
        const float norm = p.normed || p.heads ? norm_of(from + i * p.width, p.width) : 1;
        const float *own = sums + i * columns;
        float *to = p.projected + (first + i) * rows;
        for (int64_t r = 0; r < rows; r++) to[r] = own[r] * (p.normed ? norm : 1);
        for (int64_t h = 0; h < p.heads; h++)
            p.heavy[(first + i) * p.heads + h] = own[rows + h] * norm + p.heavy_bias[h];
    }
}

// A Status.
extern "C" int focus_project(const ProjectProblem *problem) {
    const ProjectProblem &p = *problem;
    if (!focus_projects(p.width)) return UNSUPPORTED;
    Weights weights(p);
    const size_t packed = TERMS * weights.term * sizeof(uint32_t);
    const size_t each = SIDE * (weights.columns * sizeof(float) + p.width * sizeof(uint16_t));
    char *room = (char *)aligned_alloc(64, packed + p.threads * each);
    if (!room) return NO_MEMORY;
    weights.packed = (uint32_t *)room;
    if (weights.columns > p.units * p.dim + p.heads) memset(room, 0, packed);  // of columns that are none
    const int64_t blocks = (p.tokens + SIDE - 1) / SIDE;
#pragma omp parallel num_threads((int)p.threads)
    {
        const Registers registers(true);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < (int64_t)weights.pieces.size(); n++)
            weights.pack(weights.pieces[n], p.width);
#pragma omp for schedule(static)
        for (int64_t part = 0; part < p.threads; part++) {
            float *sums = (float *)(room + packed + part * each);
            for (int64_t n = part * blocks / p.threads; n < (part + 1) * blocks / p.threads; n++)
                project(p, weights, n * SIDE, (uint16_t *)(sums + SIDE * weights.columns), sums);
        }
    }
    free(room);
    return DONE;
}

#else

extern "C" int focus_projects(int64_t) { return 0; }
extern "C" int focus_project(const ProjectProblem *) { return UNSUPPORTED; }

#endif
