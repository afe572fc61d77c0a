// The far field's arithmetic: blocks of K evaluated directly, translations between cells, and
// polynomials at points. Included inside an anonymous namespace of isa.cpp, after tile.h.

template <Family F, int D>
void near_rows(const NearBlock& b, int64_t row) {
    constexpr int L = LANES<float>;
    for (int64_t j = 0; j < b.cols; j += L) {
        vec<float> z[D];
        for (int c = 0; c < D; ++c) z[c] = load(b.z + c * FAR_BLOCK + j);
        for (int r = 0; r < FAR_ROWS; ++r) {
            vec<float> h = splat(TINY<float>);
            for (int c = 0; c < D; ++c) {
                const vec<float> delta = b.x[c * FAR_BLOCK + row + r] - z[c];
                h = h + delta * delta;
            }
            store(b.k + r * FAR_BLOCK + j, value<F, float>(h, b.alpha));
        }
    }
}

template <bool BOTH>
void near_contract(const NearBlock& b, int64_t row) {
    constexpr int L = LANES<float>, R = CONTRACT_ROWS;
    for (int64_t c = 0; c < b.t; ++c)
        for (int64_t r = 0; r < FAR_ROWS; r += R) {
            vec<float> acc[R], u[R];
            for (int q = 0; q < R; ++q) {
                acc[q] = vec<float>{};
                if (BOTH) u[q] = splat(b.u[c * FAR_BLOCK + row + r + q]);
            }
            const float* v = b.v + c * FAR_BLOCK;
            float* sums = b.col_sums + c * FAR_BLOCK;
            for (int64_t j = 0; j < b.cols; j += L) {
                const vec<float> vj = load(v + j);
                vec<float> s = BOTH ? load(sums + j) : vec<float>{};
                for (int q = 0; q < R; ++q) {
                    const vec<float> k = keep(load(b.k + (r + q) * FAR_BLOCK + j));
                    acc[q] = acc[q] + k * vj;
                    if (BOTH) s = s + k * u[q];
                }
                if (BOTH) store(sums + j, s);
            }
            add_lanes<R>(acc, b.row_sums + c * FAR_BLOCK + row + r);
        }
}

template <Family F, int D>
void near_family(const NearBlock& b) {
    for (int64_t row = 0; row < b.rows; row += FAR_ROWS) {
        near_rows<F, D>(b, row);
        b.both ? near_contract<true>(b, row) : near_contract<false>(b, row);
    }
}

template <int D>
void near_dimension(const NearBlock& b) {
    switch (b.family) {
        case Family::matern12:
            return near_family<Family::matern12, D>(b);
        case Family::matern32:
            return near_family<Family::matern32, D>(b);
        case Family::matern52:
            return near_family<Family::matern52, D>(b);
        case Family::rbf:
            return near_family<Family::rbf, D>(b);
        case Family::rational_quadratic:
            return near_family<Family::rational_quadratic, D>(b);
        default:
            return;
    }
}

void near_block(const NearBlock& b) {
    b.d == 1 ? near_dimension<1>(b) : b.d == 2 ? near_dimension<2>(b) : near_dimension<3>(b);
}

// Rows row .. row + R vectors of y_c = M x_c for FAR_COLUMNS columns.
template <int R>
void translate_rows(const float* M, int64_t terms, int64_t stride, const float* x, float* y,
                    int64_t step) {
    constexpr int L = LANES<float>, C = FAR_COLUMNS;
    vec<float> acc[R][C] = {};
    for (int64_t j = 0; j < terms; ++j) {
        vec<float> m[R];
        for (int r = 0; r < R; ++r) m[r] = load(M + j * stride + r * L);
        for (int c = 0; c < C; ++c) {
            const vec<float> xj = splat(x[c * step + j]);
            for (int r = 0; r < R; ++r) acc[r][c] = acc[r][c] + m[r] * xj;
        }
    }
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r) store(y + c * step + r * L, acc[r][c]);
}

void translate(const float* M, int64_t terms, int64_t stride, const float* x, float* y,
               int64_t count, int64_t step) {
    constexpr int L = LANES<float>;
#if defined(__AVX512F__)
    constexpr int R = 6;  // 24 accumulators of 32 registers
#else
    constexpr int R = 2;  // 8 of 16
#endif
    for (int64_t row = 0; row < stride;) {
        const int64_t left = (stride - row) / L;
        for (int64_t c = 0; c < count; c += FAR_COLUMNS) {
            const float *m = M + row, *from = x + c * step;
            float* to = y + c * step + row;
            if (left >= R)
                translate_rows<R>(m, terms, stride, from, to, step);
            else if (left >= 4)
                translate_rows<4>(m, terms, stride, from, to, step);
            else if (left >= 2)
                translate_rows<2>(m, terms, stride, from, to, step);
            else
                translate_rows<1>(m, terms, stride, from, to, step);
        }
        row += L * (left >= R ? R : left >= 4 ? 4 : left >= 2 ? 2 : 1);
    }
}

void reflect(const float* __restrict sign, const float* __restrict x, float* __restrict y,
             int64_t size) {
    for (int64_t s = 0; s < size; ++s) y[s] = sign[s] * x[s];
}

void add_reflected(const float* __restrict sign, const float* __restrict x, double* __restrict sum,
                   int64_t size) {
    for (int64_t s = 0; s < size; ++s) sum[s] += static_cast<double>(sign[s] * x[s]);
}

// phi[b] = T_b at as many points as a vector has lanes.
inline void polynomials(const FarBasis& basis, const vec<double>* u, vec<double>* phi) {
    vec<double> T[3][FAR_MAX_DEGREE + 1];
    for (int c = 0; c < 3; ++c) {
        T[c][0] = splat(1.0);
        T[c][1] = u[c];
        for (int b = 2; b <= basis.degree; ++b) T[c][b] = 2.0 * u[c] * T[c][b - 1] - T[c][b - 2];
    }
    const int32_t *p0 = basis.powers, *p1 = p0 + basis.terms, *p2 = p1 + basis.terms;
    for (int64_t b = 0; b < basis.terms; ++b) phi[b] = T[0][p0[b]] * T[1][p1[b]] * T[2][p2[b]];
}

// `from` .. up to a vector of it, 0 beyond `count`.
inline vec<double> part(const double* from, int64_t count) {
    constexpr int64_t L = LANES<double>;
    double lanes[L] __attribute__((aligned(MEGAGP_VECTOR_BYTES))) = {};
    for (int64_t l = 0; l < L && l < count; ++l) lanes[l] = from[l];
    return load(lanes);
}

void moments(const FarBasis& basis, const double* u, int64_t count, const double* v,
             int64_t v_stride, int64_t t, double* out, int64_t m_stride, double* room) {
    constexpr int64_t L = LANES<double>;
    vec<double> phi[FAR_MAX_TERMS];
    for (int64_t s = 0; s < t * basis.terms * L; ++s) room[s] = 0;
    for (int64_t i = 0; i < count; i += L) {
        const vec<double> at[3] = {part(u + i, count - i), part(u + count + i, count - i),
                                   part(u + 2 * count + i, count - i)};
        polynomials(basis, at, phi);
        for (int64_t c = 0; c < t; ++c) {
            const vec<double> vi = part(v + c * v_stride + i, count - i);
            double* sums = room + c * basis.terms * L;
            for (int64_t b = 0; b < basis.terms; ++b)
                store(sums + b * L, load(sums + b * L) + vi * phi[b]);
        }
    }
    for (int64_t c = 0; c < t; ++c)
        for (int64_t b = 0; b < basis.terms; ++b)
            out[c * m_stride + b] = hsum<double>(load(room + (c * basis.terms + b) * L));
}

void evaluate(const FarBasis& basis, const double* u, int64_t count, const double* local,
              int64_t l_stride, int64_t t, double* out, int64_t out_stride) {
    constexpr int64_t L = LANES<double>;
    vec<double> phi[FAR_MAX_TERMS];
    for (int64_t i = 0; i < count; i += L) {
        const vec<double> at[3] = {part(u + i, count - i), part(u + count + i, count - i),
                                   part(u + 2 * count + i, count - i)};
        polynomials(basis, at, phi);
        for (int64_t c = 0; c < t; ++c) {
            const double* l = local + c * l_stride;
            vec<double> sum[4] = {};  // chains enough to cover their latency
            int64_t b = 0;
            for (; b + 4 <= basis.terms; b += 4)
                for (int q = 0; q < 4; ++q) sum[q] = sum[q] + l[b + q] * phi[b + q];
            for (; b < basis.terms; ++b) sum[0] = sum[0] + l[b] * phi[b];
            const vec<double> total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            for (int64_t k = 0; k < L && i + k < count; ++k) out[c * out_stride + i + k] = total[k];
        }
    }
}
