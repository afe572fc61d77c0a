#include "vecchia_driver.h"

#include <algorithm>

#include "joint_driver.h"
#include "parallel.h"

namespace megagp {

namespace {

constexpr int64_t ROWS_PER_TASK = 64;

}  // namespace

template <class T>
void vecchia(const VecchiaOps<T>& ops, VecchiaJob<T> job, const std::vector<ComponentInput>& inputs,
             int64_t n, int64_t rows, const Run& run, double* w, double* v) {
    std::vector<std::vector<double>> points;
    const std::vector<JointComponent> components = scaled_components(inputs, n, 0, points);
    job.components = components.data();
    job.count = static_cast<int>(components.size());
    const int64_t tasks = (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    std::vector<AlignedArray<double>> room;
    for (int64_t s = 0; s < std::min<int64_t>(run.threads, tasks); ++s)
        room.emplace_back(ops.room(job.m));
    parallel(tasks, run, [&](int thread, int64_t task) {
        const int64_t begin = task * ROWS_PER_TASK, end = std::min(rows, begin + ROWS_PER_TASK);
        ops.rows(job, begin, end, room[thread].data(), w, v);
    });
}

template void vecchia(const VecchiaOps<float>&, VecchiaJob<float>,
                      const std::vector<ComponentInput>&, int64_t, int64_t, const Run&, double*,
                      double*);
template void vecchia(const VecchiaOps<double>&, VecchiaJob<double>,
                      const std::vector<ComponentInput>&, int64_t, int64_t, const Run&, double*,
                      double*);

}  // namespace megagp
