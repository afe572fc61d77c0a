// What the driver of joint variances (joint.cpp) and its code per instruction set (joint.h) agree
// on: plain structs, no behaviour.
//
// New points of one cell share m training points N. With the pivots eliminated (F = k(., P) C^-T,
// b = F at the new point), the variance given P and N is that of a Gaussian with covariance
//
//   S = K_NN + diag(noise_N) - F_N F_N^T    and    c = k(N, x) - F_N b,
//
// and for any weights w, with r = c - S w,
//
//   k(x, x) - |b|^2 - w.(c + r)  =  the variance given P and N  +  r.S^-1 r.
//
// So S may be factorised in float32: an error in w can only raise the result, by its square.
//
// A factor that serves many new points (kept.h) is measured instead, once. With E = L L^T - S,
// y = L^-1 c and w = L^-T y, which need no product with S,
//
//   k(x, x) - |b|^2 - |y|^2 + e |w|^2  >=  the variance given P and N    for any e >= |E|.
#pragma once
#include <cstdint>

namespace megagp {

struct JointComponent {
    int family;  // a Family of ops.h
    double outputscale, alpha;
    int d;
    const double* x;  // n x d: features, scaled as radial.h wants them
    const double* z;  // t x d: the same of the new points
};

struct JointJob {
    const JointComponent* components;
    int count;
    const double* noise;  // n
    const double* F;      // n x k
    int64_t k;
    const double* prior;  // t: k(x, x)
    const double* B;      // t x k: rows of F at the new points
    double jitter;        // added to the diagonal of the factorised S, never to that of the bound
    double tolerance;     // on what float32 adds, as a share of the variance with noise
};

// A cell: the m training points N that stand for all of them near its new points, which are
// first .. first + count; and, if it is kept, the factor of S, of JointOps::kept_size entries.
struct JointCell {
    const int64_t* neighbours;
    int64_t m;
    int64_t first, count;
    void* factor;  // in the precision of the JointOps
};

enum class JointQuality : int {
    no_factor = 0,  // S was not positive definite in this precision: nothing was written
    rough = 1,      // a bound, but above the variance given P and N by more than the tolerance
    good = 2,
};

// One thread's room: `working` in the precision of the factor.
struct JointWorkspace {
    void* working;
    double* precise;
};

struct JointRoom {
    int64_t working, precise;  // entries
};

struct JointOps {
    JointRoom (*room)(const JointJob&, int64_t most_neighbours, int64_t most_points);
    bool (*factorise)(const JointJob&, const JointCell&, const JointWorkspace&);
    // Writes the latent variances of the cell's new points to out[first ..].
    JointQuality (*variance)(const JointJob&, const JointCell&, const JointWorkspace&, double* out);

    int64_t (*kept_size)(int64_t m);
    JointRoom (*kept_room)(const JointJob&, int64_t most_neighbours, bool making);
    JointQuality (*make_kept)(const JointJob&, const JointCell&, const JointWorkspace&);
    void (*kept_variance)(const JointJob&, const JointCell&, const JointWorkspace&, double* out);
};

}  // namespace megagp
