// What the far-field driver and the instruction-set-specific code agree on (see far_driver.h).
#pragma once
#include <cstdint>

namespace megagp {

enum class Family : int;

constexpr int64_t FAR_BLOCK = 256;  // points on each side of a block evaluated directly
constexpr int64_t FAR_ROWS = 8;     // rows of it at a time
constexpr int64_t FAR_ALIGN = 16;   // floats: what rows of tables are padded to
constexpr int64_t FAR_COLUMNS = 4;  // vectors translated at a time
constexpr int64_t FAR_MAX_TERMS = 576;
constexpr int FAR_MAX_DEGREE = 31;

// A block of K between at most FAR_BLOCK rows and columns; arrays are [.][FAR_BLOCK].
struct NearBlock {
    Family family;
    float alpha;
    int d;
    int64_t t;
    int64_t rows, cols;  // multiples of FAR_ROWS and FAR_ALIGN; right-hand sides padded with 0
    const float *x, *z;  // coordinates, scaled for radial.h
    const float *u, *v;  // right-hand sides at the rows (if both) and at the columns
    bool both;           // contract for the columns as well
    float *row_sums, *col_sums;  // added to
    float* k;                    // room for FAR_ROWS x FAR_BLOCK
};

// The polynomials T_b(u) = T_b0(u0) T_b1(u1) T_b2(u2) of total degree at most `degree`, by degree.
struct FarBasis {
    int degree;
    int64_t terms;
    const int32_t* powers;  // [3][terms]
};

struct FarOps {
    void (*near_block)(const NearBlock&);
    // y_c = M x_c for c < count (a multiple of FAR_COLUMNS); M is [terms][stride], stride a
    // multiple of FAR_ALIGN, and x_c, y_c are `step` apart.
    void (*translate)(const float* M, int64_t terms, int64_t stride, const float* x, float* y,
                      int64_t count, int64_t step);
    // y = sign x, and sum += sign x; size is a multiple of FAR_ALIGN.
    void (*reflect)(const float* sign, const float* x, float* y, int64_t size);
    void (*add_reflected)(const float* sign, const float* x, double* sum, int64_t size);
    // moments[c][b] = sum_i v[c][i] T_b(u_i); u is [3][count] in [-1, 1], v has rows `v_stride`
    // apart. `room`: t x terms x 8 doubles.
    void (*moments)(const FarBasis&, const double* u, int64_t count, const double* v,
                    int64_t v_stride, int64_t t, double* moments, int64_t m_stride, double* room);
    // out[c][i] = sum_b local[c][b] T_b(u_i)
    void (*evaluate)(const FarBasis&, const double* u, int64_t count, const double* local,
                     int64_t l_stride, int64_t t, double* out, int64_t out_stride);
};

}  // namespace megagp
