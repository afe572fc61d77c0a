// Sparse rows times dense columns, by threads.
#pragma once
#include <cstdint>

#include "driver.h"

namespace megagp {

// Row i holds entries starts[i] .. starts[i + 1].
struct SparseRows {
    const int64_t* starts;
    const int32_t* columns;
    const double* values;
};

// out (count x t) = A X, A with `count` rows, X row-major with t columns.
void sparse_times(const SparseRows& A, int64_t count, const double* X, int64_t t, double* out,
                  const Run& run);

// Z (rows x t) = A^-1 Z, for A whose row order[s] has entries in columns order[0 .. s] alone, that
// on the diagonal last.
void sparse_solve(const SparseRows& A, const int64_t* order, int64_t count, double* Z, int64_t t);

}  // namespace megagp
