// Products of bfloat16, two at a time, summed in float32: on the tile registers of a processor with
// AMX, which take 16 rows of 32 values at once, or else by AVX512-BF16.
#pragma once

#include "vectors.h"

#if defined(__AVX512BF16__)
#define HAS_PAIRS
enum { SIDE = 16, DEPTH = 32 };  // rows of a register and its float32 columns; its bfloat16 columns
#endif

#if defined(HAS_PAIRS) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_REGISTERS

// Compilers may take the registers' instructions not to read what they read; of a local variable they
// must be told where it lies.
static inline void written(const void *at = nullptr) { asm volatile("" ::"r"(at) : "memory"); }

// Linux gives a process the registers when it asks for them.
static bool can_pair() {
    static const bool given = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0;
    return given;
}

// All eight registers of a thread, whole, for as long as it lasts.
struct Registers {
    const bool used;
    explicit Registers(bool used) : used(used) {
        if (!used) return;
        struct {
            uint8_t palette = 1, start = 0, none[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 8; i++) shape.bytes[i] = 4 * SIDE, shape.rows[i] = SIDE;
        written(&shape);
        _tile_loadconfig(&shape);
    }
    ~Registers() {
        if (used) _tile_release();
    }
};

// Register N: 0 to 3 hold sums, 4 what comes from the left, 5 from the right.
template <int N>
static inline void multiply(const uint32_t *right, ptrdiff_t stride) {
    _tile_loadd(5, right, stride * 4);
    if constexpr (N == 0) _tile_dpbf16ps(0, 4, 5);
    if constexpr (N == 1) _tile_dpbf16ps(1, 4, 5);
    if constexpr (N == 2) _tile_dpbf16ps(2, 4, 5);
    if constexpr (N == 3) _tile_dpbf16ps(3, 4, 5);
}

// to (SIDE rows, up to four times SIDE columns) = what is there, or zero, and the product of `from`
// (SIDE rows of n bfloat16) with `right`, in which a row holds two of the n, column by column.
template <bool ADD>
static inline void pairs_product(const uint16_t *from, ptrdiff_t row, const uint32_t *right,
                                 ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, int columns) {
    written();
    if constexpr (ADD) {
        _tile_loadd(0, to, to_row * 4);
        if (columns > 1) _tile_loadd(1, to + SIDE, to_row * 4);
        if (columns > 2) _tile_loadd(2, to + 2 * SIDE, to_row * 4);
        if (columns > 3) _tile_loadd(3, to + 3 * SIDE, to_row * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int j = 0; j < n; j += DEPTH, right += DEPTH / 2 * stride) {
        _tile_loadd(4, from + j, row * 2);
        multiply<0>(right, stride);
        if (columns > 1) multiply<1>(right + SIDE, stride);
        if (columns > 2) multiply<2>(right + 2 * SIDE, stride);
        if (columns > 3) multiply<3>(right + 3 * SIDE, stride);
    }
    _tile_stored(0, to, to_row * 4);
    if (columns > 1) _tile_stored(1, to + SIDE, to_row * 4);
    if (columns > 2) _tile_stored(2, to + 2 * SIDE, to_row * 4);
    if (columns > 3) _tile_stored(3, to + 3 * SIDE, to_row * 4);
    written();
}

#else

struct Registers {
    explicit Registers(bool) {}
};

#ifdef HAS_PAIRS

static bool can_pair() { return true; }

// pairs_product() of R rows and C times SIDE columns.
template <bool ADD, int R, int C>
static inline void strip_product(const uint16_t *from, ptrdiff_t row, const uint32_t *right,
                                 ptrdiff_t stride, int n, float *to, ptrdiff_t to_row) {
    __m512 sum[R][C] = {};
    for (int r = 0; ADD && r < R; r++)
        for (int c = 0; c < C; c++) sum[r][c] = _mm512_loadu_ps(to + r * to_row + c * SIDE);
    for (int j = 0; j < n; j += 2, right += stride) {
        __m512bh b[C];
        for (int c = 0; c < C; c++) b[c] = (__m512bh)_mm512_loadu_si512(right + c * SIDE);
        for (int r = 0; r < R; r++) {
            int two;
            memcpy(&two, from + r * row + j, sizeof(two));
            const __m512bh a = (__m512bh)_mm512_set1_epi32(two);
            for (int c = 0; c < C; c++) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], a, b[c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) _mm512_storeu_ps(to + r * to_row + c * SIDE, sum[r][c]);
}

template <bool ADD, int C = 4>
static inline void pairs_product(const uint16_t *from, ptrdiff_t row, const uint32_t *right,
                                 ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, int columns) {
    if constexpr (C > 1)
        if (columns < C) return pairs_product<ADD, C - 1>(from, row, right, stride, n, to, to_row, columns);
    enum { ROWS = 4 };
    for (int r = 0; r < SIDE; r += ROWS)
        strip_product<ADD, ROWS, C>(from + r * row, row, right, stride, n, to + r * to_row, to_row);
}

#endif
#endif
