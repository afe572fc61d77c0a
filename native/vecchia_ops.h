// What the driver of Vecchia's approximation (vecchia_driver.cpp) and its code per instruction set
// (vecchia.h) agree on: plain structs, no behaviour.
//
// Row i of the inverse factor of R = K + diag(noise) - L L^T: with N the predecessors of point i,
//
//   w = R_NN^-1 R_Ni,    v = R_ii - R_iN w.
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
    const int64_t* nearest;  // rows x m: the predecessors of point first + row, -1 for none
    int64_t m, first;
    double least;  // v is at least this share of the noise
};

template <class T>
struct VecchiaOps {
    int64_t (*room)(int64_t m);  // entries
    // Writes w (rows x m, 0 where there is no predecessor) and v of rows begin .. end.
    void (*rows)(const VecchiaJob<T>&, int64_t begin, int64_t end, double* room, double* w,
                 double* v);
};

}  // namespace megagp
