// Joint variances of new points, cell by cell, by threads.
#pragma once
#include <vector>

#include "driver.h"

namespace megagp {

struct JointInput {
    std::vector<ComponentInput> components;  // x: training points, z: new points
    int64_t n, t, k;
    const double* noise;       // n
    const double* F;           // n x k
    const double* prior;       // t
    const double* B;           // t x k
    double jitter, tolerance;  // see JointJob
};

// Features scaled as radial.h wants them, at n training and t new points; `room` keeps them.
std::vector<JointComponent> scaled_components(const std::vector<ComponentInput>& inputs, int64_t n,
                                              int64_t t, std::vector<std::vector<double>>& room);

// All results are the same for any number of threads.

// Writes the latent variances (t) to out, by factors that are given up again. Returns how each cell
// came out.
std::vector<JointQuality> joint_variance(const JointOps& ops, int entry_bytes,
                                         const JointInput& input,
                                         const std::vector<JointCell>& cells, const Run& run,
                                         double* out);

// Makes the factors of cells, for new points to come: t is 0. Returns how each came out.
std::vector<JointQuality> make_kept(const JointOps& ops, int entry_bytes, const JointInput& input,
                                    const std::vector<JointCell>& cells, const Run& run);

// Writes the latent variances (t) to out, by factors that make_kept has made.
void kept_variance(const JointOps& ops, int entry_bytes, const JointInput& input,
                   const std::vector<JointCell>& cells, const Run& run, double* out);

}  // namespace megagp
