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

// Makes the factors that are not there yet and writes the latent variances (t) to out. Returns how
// each cell came out. A cell is one thread's from start to end: the result does not depend on their
// number.
std::vector<JointQuality> joint_variance(const JointOps& ops, int entry_bytes,
                                         const JointInput& input,
                                         const std::vector<JointCell>& cells, const Run& run,
                                         double* out);

}  // namespace megagp
