#include "sparse.h"

#include <algorithm>

#include "parallel.h"

namespace megagp {

namespace {

constexpr int64_t ROWS_PER_TASK = 512;
constexpr int64_t TOGETHER = 64;            // columns that are summed at a time
constexpr int64_t WORTH_THREADS = 1 << 17;  // multiply-adds

// sum = entries begin .. end of a row, times columns c .. c + width of X.
inline void add_up(const SparseRows& A, int64_t begin, int64_t end, const double* X, int64_t t,
                   int64_t c, int64_t width, double* sum) {
    std::fill(sum, sum + width, 0.0);
    for (int64_t e = begin; e < end; ++e) {
        const double* x = X + A.columns[e] * t + c;
        const double a = A.values[e];
        for (int64_t j = 0; j < width; ++j) sum[j] += a * x[j];
    }
}

}  // namespace

void sparse_times(const SparseRows& A, int64_t count, const double* X, int64_t t, double* out,
                  const Run& run) {
    const int64_t work = t * (A.starts[count] - A.starts[0]);
    auto some = [&](int, int64_t task) {
        double sum[TOGETHER];
        const int64_t end = std::min(count, (task + 1) * ROWS_PER_TASK);
        for (int64_t i = task * ROWS_PER_TASK; i < end; ++i)
            for (int64_t c = 0; c < t; c += TOGETHER) {
                const int64_t width = std::min(TOGETHER, t - c);
                add_up(A, A.starts[i], A.starts[i + 1], X, t, c, width, sum);
                std::copy_n(sum, width, out + i * t + c);
            }
    };
    const int64_t tasks = (count + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    if (run.threads > 1 && work >= WORTH_THREADS)
        parallel(tasks, run, some);
    else
        for (int64_t task = 0; task < tasks; ++task) some(0, task);
}

void sparse_solve(const SparseRows& A, const int64_t* order, int64_t count, double* Z, int64_t t) {
    double sum[TOGETHER];
    for (int64_t s = 0; s < count; ++s) {
        const int64_t i = order[s], diagonal = A.starts[i + 1] - 1;
        for (int64_t c = 0; c < t; c += TOGETHER) {
            const int64_t width = std::min(TOGETHER, t - c);
            add_up(A, A.starts[i], diagonal, Z, t, c, width, sum);
            double* z = Z + i * t + c;
            for (int64_t j = 0; j < width; ++j) z[j] = (z[j] - sum[j]) / A.values[diagonal];
        }
    }
}

}  // namespace megagp
