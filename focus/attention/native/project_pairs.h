// Projections of bfloat16 states on AMX. A weight enters as the sum of three bfloat16, which hold all of
// its 24 bits, so the result is as exact as in float32. The mean is taken from the weights instead of
// the states, which stay as they are.
#pragma once

#include "pairs.h"
#include "project.h"

#ifdef HAS_REGISTERS  // elsewhere an instruction multiplies twice as many, and there are three products

static bool projects_pairs(const ProjectProblem &p) {
    return p.bfloat16 && p.width % DEPTH == 0 && can_pair();
}

enum { TERMS = 3, TWO = 2 * SIDE, REGISTER = SIDE * SIDE };

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

// All weights, the heavy hitters' behind the others, a register's after the other as they are multiplied:
// by TWO columns, DEPTH of the width, term, and half of the columns. A number holds two of the width.
struct Weights {
    const ProjectProblem &p;
    int64_t columns, numbers;  // whole registers, in all
    uint32_t *packed = nullptr;

    explicit Weights(const ProjectProblem &p)
        : p(p), columns((p.units * p.dim + p.heads + SIDE - 1) / SIDE * SIDE),
          numbers((columns + TWO - 1) / TWO * p.width / DEPTH * TERMS * 2 * REGISTER) {}

    uint32_t *at(int64_t column, int64_t i) const {
        const int64_t step = column / TWO * (p.width / DEPTH) + i / DEPTH;
        return packed + (step * TERMS * 2 + column / SIDE % 2) * REGISTER + i % DEPTH / 2 * SIDE + column % SIDE;
    }

    Piece piece(int64_t n) const {
        if (n < p.units) return {p.projection + n * p.width * p.dim, p.dim, n * p.dim, p.dim, p.normed != 0};
        const int64_t head = n - p.units;
        return {p.heavy_weight + head * p.width, 1, p.units * p.dim + head, 1, true};
    }

    void pack(const Piece &piece) const {
        const int64_t width = p.width;
        for (int64_t c = 0; c < piece.count; c += LANES) {
            const int64_t left = piece.count - c;
            const __mmask16 some = left < LANES ? (1 << left) - 1 : 0xffff;
            const auto at = [&](int64_t i) { return _mm512_maskz_loadu_ps(some, piece.from + i * piece.step + c); };
            __m512 mean = _mm512_setzero_ps();
            for (int64_t i = 0; piece.normed && i < width; i++) mean = _mm512_add_ps(mean, at(i));
            mean = _mm512_div_ps(mean, _mm512_set1_ps((float)width));
            for (int64_t i = 0; i < width; i += 2) {
                __m512 a = _mm512_sub_ps(at(i), mean), b = _mm512_sub_ps(at(i + 1), mean);
                uint32_t *to = this->at(piece.column + c, i);
                for (int n = 0; n < TERMS; n++, to += 2 * REGISTER) {
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

// to (TWO tokens, TWO columns, or half of them): the products with all terms of the weights.
static inline void all_terms(const uint16_t *from, const Weights &weights, int64_t column, float *to) {
    const int64_t row = 2 * weights.p.width, stride = 4 * weights.columns;
    const uint32_t *right = weights.at(column, 0);
    const bool both = column + SIDE < weights.columns;
    written();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < weights.p.width; i += DEPTH) {
        _tile_loadd(4, from + i, row);
        _tile_loadd(5, from + i + SIDE * weights.p.width, row);
        for (int n = 0; n < TERMS; n++, right += 2 * REGISTER) {
            _tile_loadd(6, right, 4 * SIDE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            if (!both) continue;
            _tile_loadd(7, right + REGISTER, 4 * SIDE);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, to, stride);
    _tile_stored(1, to + SIDE * weights.columns, stride);
    if (both) _tile_stored(2, to + SIDE, stride);
    if (both) _tile_stored(3, to + SIDE * weights.columns + SIDE, stride);
    written();
}

// TWO tokens from this one on; states and sums have room for as many rows.
static void project_pairs(const ProjectProblem &p, const Weights &weights, int64_t first, uint16_t *states,
                          float *sums) {
    const int64_t columns = weights.columns, rows = p.units * p.dim;
    const int64_t count = p.tokens - first < TWO ? p.tokens - first : TWO;
    const uint16_t *from = (const uint16_t *)p.hidden + first * p.width;
    if (count < TWO) {
        memset(states, 0, TWO * p.width * sizeof(*states));
        from = (uint16_t *)memcpy(states, from, count * p.width * sizeof(*states));
    }
    for (int64_t c = 0; c < columns; c += TWO) all_terms(from, weights, c, sums + c);
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
static int project_all_pairs(const ProjectProblem &p) {
    Weights weights(p);
    const size_t packed = weights.numbers * sizeof(uint32_t);
    const size_t each = TWO * (weights.columns * sizeof(float) + p.width * sizeof(uint16_t));
    char *room = (char *)aligned_alloc(64, packed + p.threads * each);
    if (!room) return NO_MEMORY;
    weights.packed = (uint32_t *)room;
    if (weights.columns > p.units * p.dim + p.heads) memset(room, 0, packed);  // of columns that are none
    const int64_t blocks = (p.tokens + TWO - 1) / TWO;
#pragma omp parallel num_threads((int)p.threads)
    {
        const Registers registers(true);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < p.units + p.heads; n++) weights.pack(weights.piece(n));
#pragma omp for schedule(static)
        for (int64_t part = 0; part < p.threads; part++) {
            float *sums = (float *)(room + packed + part * each);
            for (int64_t n = part * blocks / p.threads; n < (part + 1) * blocks / p.threads; n++)
                project_pairs(p, weights, n * TWO, (uint16_t *)(sums + TWO * weights.columns), sums);
        }
    }
    free(room);
    return DONE;
}

#else

static bool projects_pairs(const ProjectProblem &) { return false; }
static int project_all_pairs(const ProjectProblem &) { return UNSUPPORTED; }

#endif
