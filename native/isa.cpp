// The compute core, compiled once per instruction set with MEGAGP_ISA naming the namespace.
#if defined(__AVX512F__) || defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif
#include <time.h>

#include "ops.h"

namespace megagp {
namespace MEGAGP_ISA {
namespace {

#include "simd.h"
//
#include "radial.h"
//
#include "tile.h"
//
#include "joint.h"
#include "kept.h"
//
#include "vecchia.h"
//
#include "far.h"

void add_split(double* __restrict values, int64_t count, double grid_hi, double grid_lo,
               double* __restrict hi, double* __restrict lo) {
    for (int64_t s = 0; s < count; ++s) {
        const double x = values[s], h = (x + grid_hi) - grid_hi;
        hi[s] += h;
        lo[s] += ((x - h) + grid_lo) - grid_lo;
        values[s] = 0;
    }
}

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Independent chains of multiply-adds, enough to cover their latency: what the ports can do.
double fma_rate(double seconds) {
    constexpr int chains = 12;
    vec<float> acc[chains], x = splat(0.999999f), y = splat(1e-6f);
    for (int c = 0; c < chains; ++c) acc[c] = splat(static_cast<float>(c));
    const double start = now();
    double elapsed = 0, count = 0;
    do {
        for (int rep = 0; rep < 20000; ++rep) {
#pragma GCC unroll 12
            for (int c = 0; c < chains; ++c) acc[c] = acc[c] * x + y;
        }
        count += 20000.0 * chains * LANES<float>;
        elapsed = now() - start;
    } while (elapsed < seconds);
    vec<float> s = {};
    for (int c = 0; c < chains; ++c) s = s + acc[c];
    volatile double sink = hsum<float>(s);
    (void)sink;
    return count / elapsed;
}

}  // namespace

#define MEGAGP_STRING(x) #x
#define MEGAGP_NAME(x) MEGAGP_STRING(x)

extern const InstructionSet instruction_set;
const InstructionSet instruction_set = {
    MEGAGP_NAME(MEGAGP_ISA),
    LANES<float>,
    {matmul<float>, gradient<float>, block<float>},
    {matmul<double>, gradient<double>, block<double>},
    add_split,
    {joint_room<float>, factorise_cell<float>, cell_variance<float>, kept_size<float>,
     kept_room<float>, make_kept<float>, kept_variance<float>},
    {joint_room<double>, factorise_cell<double>, cell_variance<double>, kept_size<double>,
     kept_room<double>, make_kept<double>, kept_variance<double>},
    {vecchia_room, vecchia_rows<float>},
    {vecchia_room, vecchia_rows<double>},
    {near_block, translate, reflect, add_reflected, moments, evaluate},
    fma_rate,
};

}  // namespace MEGAGP_ISA
}  // namespace megagp
