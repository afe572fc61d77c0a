// Rows of Vecchia's inverse factor, by threads.
#pragma once
#include <vector>

#include "driver.h"

namespace megagp {

// Weights w (rows x m) and variances v (rows) of the job's points, and B in the place of their rows
// of L, which is `L`; its components are filled in from `components`, whose x are features of the n
// points. Every predecessor that is among the points comes before its point there: from last to
// first, nothing is overwritten that is still needed.
template <class T>
void vecchia(const VecchiaOps<T>& ops, VecchiaJob<T> job,
             const std::vector<ComponentInput>& components, int64_t n, int64_t rows, const Run& run,
             T* L, double* w, double* v);

}  // namespace megagp
