// What the driver of Vecchia's approximation (vecchia_driver.cpp) and its code per instruction set
// (vecchia.h) agree on: plain structs, no behaviour.
//
// Row i of the inverse factor of R = K + diag(noise) - L L^T: with N the predecessors of point i,
//
//   w = R_NN^-1 R_Ni,    v = R_ii - R_iN w,
//
// and of B = U L it is (L_i - w L_N) / sqrt(v), for which the rows of L are at hand.
#pragma once
#include <cstdint>

#include "joint_ops.h"

namespace megagp {

constexpr int64_t VECCHIA_MOST = 512;  // predecessors of a point

template <class T>
struct VecchiaJob {
    const JointComponent* components;  // their z is not used
    int count;
    const double* noise;  // n
    const T* L;           // n x k
    int64_t k;
    const int64_t* nearest;  // n x m: the predecessors of each point, -1 for none
    int64_t m;
    const int64_t* points;  // those whose rows are wanted
    double least;           // v is at least this share of the noise
};

template <class T>
struct VecchiaOps {
    int64_t (*room)(int64_t m);  // entries
    // Writes w (0 where there is no predecessor, m for each), v and B (k for each) of points
    // begin .. end of those that are wanted.
    void (*rows)(const VecchiaJob<T>&, int64_t begin, int64_t end, double* room, double* w,
                 double* v, T* B);
};

}  // namespace megagp
