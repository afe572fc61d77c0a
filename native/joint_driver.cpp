#include "joint_driver.h"

#include <algorithm>

#include "parallel.h"

namespace megagp {

namespace {

std::vector<double> scaled(const double* x, int64_t count, double factor) {
    std::vector<double> out(count);
    for (int64_t s = 0; s < count; ++s) out[s] = x[s] * factor;
    return out;
}

}  // namespace

std::vector<JointComponent> scaled_components(const std::vector<ComponentInput>& inputs, int64_t n,
                                              int64_t t, std::vector<std::vector<double>>& room) {
    std::vector<JointComponent> components;
    for (const ComponentInput& in : inputs) {
        const double factor = feature_scale(in.family, in.alpha);
        room.push_back(scaled(in.x, n * in.d, factor));
        const double* x = room.back().data();
        room.push_back(scaled(in.z, t * in.d, factor));
        components.push_back({static_cast<int>(in.family), in.outputscale, in.alpha,
                              static_cast<int>(in.d), x, room.back().data()});
    }
    return components;
}

std::vector<JointQuality> joint_variance(const JointOps& ops, int entry_bytes,
                                         const JointInput& input,
                                         const std::vector<JointCell>& cells, const Run& run,
                                         double* out) {
    std::vector<std::vector<double>> points;
    const std::vector<JointComponent> components =
        scaled_components(input.components, input.n, input.t, points);
    const JointJob job{components.data(), static_cast<int>(components.size()),
                       input.noise,       input.F,
                       input.k,           input.prior,
                       input.B,           input.jitter,
                       input.tolerance};
    int64_t most_neighbours = 0, most_points = 0;
    for (const JointCell& cell : cells) {
        most_neighbours = std::max(most_neighbours, cell.m);
        most_points = std::max(most_points, cell.count);
    }
    const JointRoom size = ops.room(job, most_neighbours, most_points);
    const int64_t tasks = static_cast<int64_t>(cells.size());
    std::vector<AlignedArray<char>> working;
    std::vector<AlignedArray<double>> precise;
    for (int64_t s = 0; s < std::min<int64_t>(run.threads, tasks); ++s) {
        working.emplace_back(size.working * entry_bytes);
        precise.emplace_back(size.precise);
    }
    std::vector<JointQuality> found(tasks, JointQuality::no_factor);
    parallel(tasks, run, [&](int thread, int64_t task) {
        const JointWorkspace room{working[thread].data(), precise[thread].data()};
        const JointCell& cell = cells[task];
        if (cell.made || ops.factorise(job, cell, room))
            found[task] = ops.variance(job, cell, room, out);
    });
    return found;
}

}  // namespace megagp
