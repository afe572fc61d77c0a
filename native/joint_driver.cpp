#include "joint_driver.h"

#include <algorithm>
#include <functional>

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

namespace {

// Calls work(job, cell, room) for every cell. A cell is one thread's from start to end.
template <class Work>
void over_cells(const JointInput& input, const std::vector<JointCell>& cells, int entry_bytes,
                const Run& run, const std::function<JointRoom(const JointJob&)>& room_for,
                Work work) {
    std::vector<std::vector<double>> points;
    const std::vector<JointComponent> components =
        scaled_components(input.components, input.n, input.t, points);
    const JointJob job{components.data(), static_cast<int>(components.size()),
                       input.noise,       input.F,
                       input.k,           input.prior,
                       input.B,           input.jitter,
                       input.tolerance};
    const JointRoom size = room_for(job);
    const int64_t tasks = static_cast<int64_t>(cells.size());
    std::vector<AlignedArray<char>> working;
    std::vector<AlignedArray<double>> precise;
    for (int64_t s = 0; s < std::min<int64_t>(run.threads, tasks); ++s) {
        working.emplace_back(size.working * entry_bytes);
        precise.emplace_back(size.precise);
    }
    parallel(tasks, run, [&](int thread, int64_t task) {
        work(job, task, JointWorkspace{working[thread].data(), precise[thread].data()});
    });
}

int64_t most_neighbours(const std::vector<JointCell>& cells) {
    int64_t most = 0;
    for (const JointCell& cell : cells) most = std::max(most, cell.m);
    return most;
}

}  // namespace

std::vector<JointQuality> joint_variance(const JointOps& ops, int entry_bytes,
                                         const JointInput& input,
                                         const std::vector<JointCell>& cells, const Run& run,
                                         double* out) {
    int64_t most_points = 0;
    for (const JointCell& cell : cells) most_points = std::max(most_points, cell.count);
    const auto room_for = [&](const JointJob& job) {
        return ops.room(job, most_neighbours(cells), most_points);
    };
    std::vector<JointQuality> found(cells.size(), JointQuality::no_factor);
    over_cells(input, cells, entry_bytes, run, room_for,
               [&](const JointJob& job, int64_t c, const JointWorkspace& room) {
                   if (ops.factorise(job, cells[c], room))
                       found[c] = ops.variance(job, cells[c], room, out);
               });
    return found;
}

std::vector<JointQuality> make_kept(const JointOps& ops, int entry_bytes, const JointInput& input,
                                    const std::vector<JointCell>& cells, const Run& run) {
    const auto room_for = [&](const JointJob& job) {
        return ops.kept_room(job, most_neighbours(cells), true);
    };
    std::vector<JointQuality> found(cells.size(), JointQuality::no_factor);
    over_cells(input, cells, entry_bytes, run, room_for,
               [&](const JointJob& job, int64_t c, const JointWorkspace& room) {
                   found[c] = ops.make_kept(job, cells[c], room);
               });
    return found;
}

void kept_variance(const JointOps& ops, int entry_bytes, const JointInput& input,
                   const std::vector<JointCell>& cells, const Run& run, double* out) {
    const auto room_for = [&](const JointJob& job) {
        return ops.kept_room(job, most_neighbours(cells), false);
    };
    over_cells(input, cells, entry_bytes, run, room_for,
               [&](const JointJob& job, int64_t c, const JointWorkspace& room) {
                   ops.kept_variance(job, cells[c], room, out);
               });
}

}  // namespace megagp
