// Vectors of float32 as wide as the processor's, by the compiler's own vector types.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__AVX512F__)
enum { LANES = 16, COLUMNS = 4 };  // 6 x 4 accumulators of 32 registers
#elif defined(__AVX__)
enum { LANES = 8, COLUMNS = 2 };  // 6 x 2 of 16
#else
enum { LANES = 4, COLUMNS = 4 };  // NEON: 6 x 4 of 32
#endif
enum { STRIP = 6, PANEL = LANES * COLUMNS, MOST_DIM = 512 };

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef float LooseVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t LooseInts __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t Narrow __attribute__((vector_size(LANES * 2)));
typedef uint16_t LooseNarrow __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

enum Status { DONE, NOT_FINITE, NO_GROUP, NO_MEMORY, UNSUPPORTED };  // what a call answers

static const float LN2 = 0.69314718055994530942f;

static inline Vec load(const float *p) { return *(const LooseVec *)p; }
static inline void store(float *p, Vec x) { *(LooseVec *)p = x; }
static inline Vec all(float x) { return x - Vec{}; }
static inline Vec select(Ints where, Vec yes, Vec no) {
    return (Vec)((where & (Ints)yes) | (~where & (Ints)no));
}
static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// a * b + c, rounded once where the processor can: compilers do so or not by what stands around it.
static inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_FEATURE_FMA)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline Ints counting() {
    Ints x;
    for (int i = 0; i < LANES; i++) x[i] = i;
    return x;
}

// 2^x for x up to 126, exactly 0 from -126 down; relative error below 3e-7.
static inline Vec exp2_of(Vec x) {
    const Vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    Vec clamped = larger(x, all(-126.0f));
    Vec shifted = clamped + magic;
    Vec f = clamped - (shifted - magic);
    Vec p = all(1.5403530393381609e-4f);
    p = p * f + 1.3333558146428443e-3f;
    p = p * f + 9.6181291076284772e-3f;
    p = p * f + 5.5504108664821580e-2f;
    p = p * f + 2.4022650695910071e-1f;
    p = p * f + 6.9314718055994531e-1f;
    p = p * f + 1.0f;
    p = (Vec)((Ints)p + (((Ints)shifted) << 23));
    return select(x > -126.0f, p, Vec{});
}

static inline float highest(Vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float m = x[0];
    for (int i = 1; i < LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
#endif
}

static inline float total(Vec x) {  // by halves: a sum in order would wait for every lane
    float parts[LANES];
    store(parts, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) parts[i] += parts[i + width];
    return parts[0];
}

static inline float from_bfloat16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static inline uint16_t to_bfloat16(float x) {  // to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The same of a vector.
static inline Vec load_bfloat16(const void *p) {
    return (Vec)(__builtin_convertvector(*(const LooseNarrow *)p, Ints) << 16);
}
static inline void store_bfloat16(void *p, Vec x) {
    const Ints bits = (Ints)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(LooseNarrow *)p = __builtin_convertvector(((x == x) & rounded) | ((x != x) & 0x7fc0), Narrow);
}

static inline int min_of(int a, int b) { return a < b ? a : b; }
static inline int max_of(int a, int b) { return a > b ? a : b; }
static inline int down(int x, int to) { return x / to * to; }
static inline int up(int x, int to) { return (x + to - 1) / to * to; }

enum Start { SET, ADD, FADE };  // sums begin at zero, at what is there, at that times `faded`

// to (R rows, V vectors) = the start and the sum over j < n of from[r * row + j * step] times row j of
// `rows`. product() does so for up to R rows and V vectors.
template <int R, int V, Start START>
static inline void whole_product(const float *from, ptrdiff_t row, ptrdiff_t step, const float *rows,
                                 ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, const float *faded) {
    Vec sum[R][V] = {};
    for (int r = 0; r < R && START != SET; r++)
        for (int v = 0; v < V; v++)
            sum[r][v] = load(to + r * to_row + v * LANES) * (START == FADE ? faded[r] : 1);
    for (int j = 0; j < n; j++) {
        Vec b[V];
        for (int v = 0; v < V; v++) b[v] = load(rows + j * stride + v * LANES);
        for (int r = 0; r < R; r++) {
            const Vec a = all(from[r * row + j * step]);
            for (int v = 0; v < V; v++) sum[r][v] += a * b[v];
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(to + r * to_row + v * LANES, sum[r][v]);
}

template <int R, int V, Start START>
static inline void product(const float *from, ptrdiff_t row, ptrdiff_t step, const float *rows,
                           ptrdiff_t stride, int n, float *to, ptrdiff_t to_row, int count, int vectors,
                           const float *faded = nullptr) {
    if constexpr (R > 1)
        if (count < R)
            return product<R - 1, V, START>(from, row, step, rows, stride, n, to, to_row, count, vectors, faded);
    if constexpr (V > 1)
        if (vectors < V)
            return product<R, V - 1, START>(from, row, step, rows, stride, n, to, to_row, count, vectors, faded);
    whole_product<R, V, START>(from, row, step, rows, stride, n, to, to_row, faded);
}
