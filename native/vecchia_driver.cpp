#include "vecchia_driver.h"

#include <algorithm>

#include "joint_driver.h"
#include "parallel.h"

namespace megagp {

namespace {

// Points of a task, and tasks between which rows of B are put in the place of those of L.
constexpr int64_t ROWS_PER_TASK = 32, TASKS_AT_ONCE = 64;

}  // namespace

template <class T>
void vecchia(const VecchiaOps<T>& ops, VecchiaJob<T> job, const std::vector<ComponentInput>& inputs,
             int64_t n, int64_t rows, const Run& run, T* L, double* w, double* v) {
    std::vector<std::vector<double>> points;
    const std::vector<JointComponent> components = scaled_components(inputs, n, 0, points);
    job.components = components.data();
    job.count = static_cast<int>(components.size());
    const int64_t k = job.k, most = std::min(rows, ROWS_PER_TASK * TASKS_AT_ONCE);
    std::vector<AlignedArray<double>> room;
    for (int64_t s = 0; s < std::max<int64_t>(1, run.threads); ++s)
        room.emplace_back(ops.room(job.m));
    AlignedArray<T> B(most * k);
    for (int64_t stop = rows; stop > 0; stop -= most) {
        const int64_t start = std::max<int64_t>(0, stop - most);
        const int64_t tasks = (stop - start + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
        parallel(tasks, run, [&](int thread, int64_t task) {
            const int64_t begin = start + task * ROWS_PER_TASK;
            ops.rows(job, begin, std::min(stop, begin + ROWS_PER_TASK), room[thread].data(), w, v,
                     B.data() + (begin - start) * k);
        });
        parallel(tasks, run, [&](int, int64_t task) {
            const int64_t begin = start + task * ROWS_PER_TASK;
            for (int64_t row = begin; row < std::min(stop, begin + ROWS_PER_TASK); ++row)
                std::copy_n(B.data() + (row - start) * k, k, L + job.points[row] * k);
        });
    }
}

template void vecchia(const VecchiaOps<float>&, VecchiaJob<float>,
                      const std::vector<ComponentInput>&, int64_t, int64_t, const Run&, float*,
                      double*, double*);
template void vecchia(const VecchiaOps<double>&, VecchiaJob<double>,
                      const std::vector<ComponentInput>&, int64_t, int64_t, const Run&, double*,
                      double*, double*);

}  // namespace megagp
