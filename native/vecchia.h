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
template <Form F, class At>
void vecchia_product(At at, int64_t count, int64_t inner, const double* origin, int64_t P,
                     double* p, double* out) {
    for (int64_t c0 = 0; c0 < inner; c0 += VECCHIA_INNER) {
        const int64_t part = inner - c0 < VECCHIA_INNER ? inner - c0 : VECCHIA_INNER;
        for (int64_t a = 0; a < P; ++a) {
            const double* from = a < count ? at(a) + c0 : nullptr;
            for (int64_t c = 0; c < part; ++c)
                p[c * P + a] = from ? from[c] - (origin ? origin[c0 + c] : 0.0) : 0.0;
        }
        vecchia_pairs<F>(p, part, P, out);
    }
}

// LANES<double> numbers from anywhere, and to anywhere.
inline vec<double> load_doubles(const double* p) {
    vec<double> found;
    __builtin_memcpy(&found, p, sizeof found);
    return found;
}
typedef float vecchia_half __attribute__((vector_size(MEGAGP_VECTOR_BYTES / 2)));
inline vec<double> load_doubles(const float* p) {
    vecchia_half found;
    __builtin_memcpy(&found, p, sizeof found);
    return __builtin_convertvector(found, vec<double>);
}
inline void store_doubles(double* p, vec<double> v) { __builtin_memcpy(p, &v, sizeof v); }
inline void store_doubles(float* p, vec<double> v) {
    const vecchia_half half = __builtin_convertvector(v, vecchia_half);
    __builtin_memcpy(p, &half, sizeof half);
}

// R[a][b] -= L_a L_b^T for b >= a of these points: a few rows of L against a few others, along
// which products are added up, so that rows are read where they lie. The last of the k, too few for
// a vector, are in `ends`, with zeros behind them.
template <class T>
void subtract_gram(const VecchiaJob<T>& job, const int64_t* points, int64_t count, int64_t P,
                   double* ends, double* R) {
    constexpr int L = LANES<double>, A = L == 8 ? 4 : 2, B = 4;
    const int64_t whole = job.k / L * L;
    for (int64_t a = 0; a < count; ++a)
        for (int64_t c = 0; c < L; ++c)
            ends[a * L + c] =
                whole + c < job.k ? static_cast<double>(job.L[points[a] * job.k + whole + c]) : 0.0;
    for (int64_t a0 = 0; a0 < count; a0 += A)
        for (int64_t b0 = a0 / B * B; b0 < count; b0 += B) {
            const T *x[A], *z[B];
            int64_t at[A], to[B];
            for (int a = 0; a < A; ++a) {
                at[a] = a0 + a < count ? a0 + a : a0;
                x[a] = job.L + points[at[a]] * job.k;
            }
            for (int b = 0; b < B; ++b) {
                to[b] = b0 + b < count ? b0 + b : b0;
                z[b] = job.L + points[to[b]] * job.k;
            }
            vec<double> sums[A][B] = {};
            for (int64_t c = 0; c < whole; c += L) {
                vec<double> zc[B];
                for (int b = 0; b < B; ++b) zc[b] = load_doubles(z[b] + c);
                for (int a = 0; a < A; ++a) {
                    const vec<double> xc = load_doubles(x[a] + c);
                    for (int b = 0; b < B; ++b) sums[a][b] = sums[a][b] + xc * zc[b];
                }
            }
            for (int a = 0; a < A; ++a)
                for (int b = 0; b < B; ++b) {
                    if (a0 + a >= count || b0 + b >= count || b0 + b < a0 + a) continue;
                    const vec<double> last =
                        load_doubles(ends + at[a] * L) * load_doubles(ends + to[b] * L);
                    R[(a0 + a) * P + b0 + b] -= hsum<double>(sums[a][b] + last);
                }
        }
}

// (L_i - sum over s of w[s] L_s) * scale, for the last of these points.
template <class T>
void whitened_row(const VecchiaJob<T>& job, const int64_t* points, int64_t m, const double* w,
                  double scale, T* out) {
    constexpr int L = LANES<double>;
    const T* own = job.L + points[m] * job.k;
    int64_t c = 0;
    for (; c + L <= job.k; c += L) {
        vec<double> sum = load_doubles(own + c);
        for (int64_t s = 0; s < m; ++s)
            sum = sum - splat(w[s]) * load_doubles(job.L + points[s] * job.k + c);
        store_doubles(out + c, sum * splat(scale));
    }
    for (; c < job.k; ++c) {
        double sum = static_cast<double>(own[c]);
        for (int64_t s = 0; s < m; ++s)
            sum -= w[s] * static_cast<double>(job.L[points[s] * job.k + c]);
        out[c] = static_cast<T>(sum * scale);
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
            vecchia_product<Form::dot>(at, count, c.d, nullptr, P, p, h);
        else if (family != Family::constant)
            vecchia_product<Form::difference>(at, count, c.d, at(count - 1), P, p, h);
#define MEGAGP_CALL(F) add_values<double, F>(h, P * P, c.outputscale, c.alpha, R)
        MEGAGP_FOR_FAMILY(family, MEGAGP_CALL)
#undef MEGAGP_CALL
    }
    subtract_gram(job, points, count, P, p, R);
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

// Rows of L lie anywhere: those of the next point are asked for while this one is worked on.
template <class T>
void prefetch_rows(const VecchiaJob<T>& job, int64_t point) {
    constexpr int64_t LINE = 64;
    const int64_t* nearest = job.nearest + point * job.m;
    for (int64_t j = -1; j < job.m; ++j) {
        const int64_t i = j < 0 ? point : nearest[j];
        if (i < 0) continue;
        const char* from = reinterpret_cast<const char*>(job.L + i * job.k);
        const int64_t bytes = job.k * static_cast<int64_t>(sizeof(T));
        for (int64_t b = 0; b < bytes; b += LINE) __builtin_prefetch(from + b, 0, 2);
    }
}

template <class T>
void vecchia_rows(const VecchiaJob<T>& job, int64_t begin, int64_t end, double* room, double* w,
                  double* v, T* B) {
    int64_t points[VECCHIA_MOST + 1], place[VECCHIA_MOST];
    double weight[VECCHIA_MOST];
    for (int64_t row = begin; row < end; ++row) {
        const int64_t own = job.points[row], *nearest = job.nearest + own * job.m;
        int64_t m = 0;
        for (int64_t j = 0; j < job.m; ++j) {
            w[row * job.m + j] = 0;
            if (nearest[j] < 0) continue;
            place[m] = j;
            points[m++] = nearest[j];
        }
        points[m] = own;
        if (row + 1 < end) prefetch_rows(job, job.points[row + 1]);
        const int64_t P = vecchia_padded(m + 1);
        double* R = room + (VECCHIA_INNER + P) * P;
        vecchia_covariance(job, points, m + 1, P, room, R);
        const double total = R[m * P + m], least = job.least * job.noise[own];
        // Where rounding has spoilt R, a point stays alone.
        bool good = vecchia_factorise(m + 1, P, R);
        for (int64_t s = m - 1; good && s >= 0; --s) {
            double sum = R[s * P + m];
            for (int64_t r = s + 1; r < m; ++r) sum -= R[s * P + r] * weight[r];
            weight[s] = sum / R[s * P + s];
            good = weight[s] - weight[s] == 0;
        }
        for (int64_t s = 0; s < m; ++s) {
            if (!good) weight[s] = 0;
            w[row * job.m + place[s]] = weight[s];
        }
        const double left = good ? R[m * P + m] : total;
        v[row] = left > least ? left : least;
        whitened_row(job, points, m, weight, 1 / __builtin_sqrt(v[row]), B + (row - begin) * job.k);
    }
}
