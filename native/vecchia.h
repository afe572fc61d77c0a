// Rows of Vecchia's inverse factor (vecchia_ops.h has the equations), a few dozen points each.
// Included inside an anonymous namespace of isa.cpp, after joint.h.
//
// The point itself comes last. With R = U^T U, the last column of U is (U_NN^-T c, sqrt(v)), c =
// R_Ni, and w = U_NN^-1 of its first part. Matrices are [row][column], their upper triangle used.

constexpr int64_t VECCHIA_ROWS = 4, VECCHIA_INNER = 64;
constexpr int64_t VECCHIA_STEP = LANES<double> > VECCHIA_ROWS ? LANES<double> : VECCHIA_ROWS;

inline int64_t vecchia_padded(int64_t count) {
    return blocks_of(count, VECCHIA_STEP) * VECCHIA_STEP;
}

// out[s][r] (+)= sum over c of (p[c][s] - p[c][r])^2, or -= p[c][s] p[c][r]: rows s of one block, V
// vectors of columns r.
template <Form F, int V>
__attribute__((always_inline)) inline void vecchia_micro(const double* p, int64_t inner, int64_t P,
                                                         int64_t row, int64_t col, double* out) {
    constexpr int L = LANES<double>;
    vec<double> sums[VECCHIA_ROWS][V];
    for (int s = 0; s < VECCHIA_ROWS; ++s)
        for (int v = 0; v < V; ++v) sums[s][v] = load(out + (row + s) * P + col + v * L);
    for (int64_t c = 0; c < inner; ++c, p += P)
        for (int v = 0; v < V; ++v) {
            const vec<double> z = load(p + col + v * L);
            for (int s = 0; s < VECCHIA_ROWS; ++s) {
                const vec<double> x = splat(p[row + s]);
                if constexpr (F == Form::difference)
                    sums[s][v] = sums[s][v] + (x - z) * (x - z);
                else
                    sums[s][v] = sums[s][v] - x * z;
            }
        }
    for (int s = 0; s < VECCHIA_ROWS; ++s)
        for (int v = 0; v < V; ++v) store(out + (row + s) * P + col + v * L, sums[s][v]);
}

template <Form F>
void vecchia_pairs(const double* p, int64_t inner, int64_t P, double* out) {
    constexpr int L = LANES<double>;
    for (int64_t row = 0; row < P; row += VECCHIA_ROWS) {
        int64_t col = row / L * L;
        for (; col + 2 * L <= P; col += 2 * L) vecchia_micro<F, 2>(p, inner, P, row, col, out);
        for (; col < P; col += L) vecchia_micro<F, 1>(p, inner, P, row, col, out);
    }
}

// The same over all of `inner`, packed [c][point] a part at a time: `at(a)` is where point a's
// numbers lie, `origin` is taken off them.
template <Form F, class T, class At>
void vecchia_product(At at, int64_t count, int64_t inner, const T* origin, int64_t P, double* p,
                     double* out) {
    for (int64_t c0 = 0; c0 < inner; c0 += VECCHIA_INNER) {
        const int64_t part = inner - c0 < VECCHIA_INNER ? inner - c0 : VECCHIA_INNER;
        for (int64_t a = 0; a < P; ++a) {
            const T* from = a < count ? at(a) + c0 : nullptr;
            for (int64_t c = 0; c < part; ++c)
                p[c * P + a] = from ? static_cast<double>(from[c]) -
                                          (origin ? static_cast<double>(origin[c0 + c]) : 0.0)
                                    : 0.0;
        }
        vecchia_pairs<F>(p, part, P, out);
    }
}

inline int64_t vecchia_room(int64_t m) {
    const int64_t P = vecchia_padded(m + 1);
    return P * (VECCHIA_INNER + 2 * P);
}

// R of these points, upper triangle.
template <class T>
void vecchia_covariance(const VecchiaJob<T>& job, const int64_t* points, int64_t count, int64_t P,
                        double* room, double* R) {
    double *p = room, *h = room + VECCHIA_INNER * P;
    for (int64_t s = 0; s < P * P; ++s) R[s] = 0;
    for (int q = 0; q < job.count; ++q) {
        const JointComponent& c = job.components[q];
        const Family family = static_cast<Family>(c.family);
        const auto at = [&](int64_t a) { return c.x + points[a] * c.d; };
        for (int64_t s = 0; s < P * P; ++s) h[s] = family == Family::linear ? 0 : TINY<double>;
        if (family == Family::linear)
            vecchia_product<Form::dot, double>(at, count, c.d, nullptr, P, p, h);
        else if (family != Family::constant)
            vecchia_product<Form::difference, double>(at, count, c.d, at(count - 1), P, p, h);
#define MEGAGP_CALL(F) add_values<double, F>(h, P * P, c.outputscale, c.alpha, R)
        MEGAGP_FOR_FAMILY(family, MEGAGP_CALL)
#undef MEGAGP_CALL
    }
    vecchia_product<Form::dot, T>([&](int64_t a) { return job.L + points[a] * job.k; }, count,
                                  job.k, nullptr, P, p, R);
    for (int64_t a = 0; a < count; ++a) R[a * P + a] += job.noise[points[a]];
}

// R = U^T U in place but for the last diagonal entry, which stays squared. False if R is not
// positive definite before it.
inline bool vecchia_factorise(int64_t count, int64_t P, double* R) {
    constexpr int L = LANES<double>;
    for (int64_t c = 0; c + 1 < count; ++c) {
        double* row = R + c * P;
        if (!(row[c] > 0) || !(row[c] < 1e300)) return false;
        const vec<double> scale = splat(1.0 / __builtin_sqrt(row[c]));
        for (int64_t r = c / L * L; r < P; r += L) store(row + r, scale * load(row + r));
        for (int64_t s = c + 1; s < count; ++s) {
            const vec<double> u = splat(row[s]);
            double* to = R + s * P;
            for (int64_t r = s / L * L; r < P; r += L)
                store(to + r, load(to + r) - u * load(row + r));
        }
    }
    return true;
}

template <class T>
void vecchia_rows(const VecchiaJob<T>& job, int64_t begin, int64_t end, double* room, double* w,
                  double* v) {
    int64_t points[VECCHIA_MOST + 1], place[VECCHIA_MOST];
    double weight[VECCHIA_MOST];
    for (int64_t row = begin; row < end; ++row) {
        const int64_t* nearest = job.nearest + row * job.m;
        int64_t m = 0;
        for (int64_t j = 0; j < job.m; ++j) {
            w[row * job.m + j] = 0;
            if (nearest[j] < 0) continue;
            place[m] = j;
            points[m++] = nearest[j];
        }
        points[m] = job.first + row;
        const int64_t P = vecchia_padded(m + 1);
        double* R = room + (VECCHIA_INNER + P) * P;
        vecchia_covariance(job, points, m + 1, P, room, R);
        const double total = R[m * P + m], least = job.least * job.noise[points[m]];
        // Where rounding has spoilt R, a point stays alone.
        bool good = vecchia_factorise(m + 1, P, R);
        for (int64_t s = m - 1; good && s >= 0; --s) {
            double sum = R[s * P + m];
            for (int64_t r = s + 1; r < m; ++r) sum -= R[s * P + r] * weight[r];
            weight[s] = sum / R[s * P + s];
            good = weight[s] - weight[s] == 0;
        }
        for (int64_t s = 0; good && s < m; ++s) w[row * job.m + place[s]] = weight[s];
        const double left = good ? R[m * P + m] : total;
        v[row] = left > least ? left : least;
    }
}
