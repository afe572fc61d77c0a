// Which of the compiled instruction sets this machine can run.
#include "ops.h"

namespace megagp {

namespace baseline {
extern const InstructionSet instruction_set;
}
#if defined(MEGAGP_HAVE_AVX2)
namespace avx2 {
extern const InstructionSet instruction_set;
}
#endif
#if defined(MEGAGP_HAVE_AVX512)
namespace avx512 {
extern const InstructionSet instruction_set;
}
#endif

int instruction_sets(const InstructionSet* out[4]) {
    int count = 0;
#if defined(MEGAGP_HAVE_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        out[count++] = &avx512::instruction_set;
#endif
#if defined(MEGAGP_HAVE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[count++] = &avx2::instruction_set;
#endif
    out[count++] = &baseline::instruction_set;
    return count;
}

}  // namespace megagp
