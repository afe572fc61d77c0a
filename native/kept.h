// Factors of cells that serve many new points, which come later (joint_ops.h has the equations).
// Included inside an anonymous namespace of isa.cpp, after joint.h.

constexpr int64_t KEPT_PROBES = 16;  // vectors of random signs that see the error of a factor
constexpr int64_t KEPT_POINTS = 32;  // new points per pass over a factor
constexpr double KEPT_MARGIN = 2, KEPT_HUGE = 1e300;

// A factor, and behind it the bound on its error.
template <class T>
int64_t kept_size(int64_t m) {
    return factor_size<T>(m) + 64 / static_cast<int64_t>(sizeof(T));
}

template <class T>
struct KeptLayout {
    int64_t blocks, padded, precise;  // blocks and points in T; points in double
    int64_t scratch, vectors, working_size;
    int64_t tile, new_features, lanes, c, probes, product, pivots, rows, precise_size;

    KeptLayout(const JointJob& job, int64_t m) {
        constexpr int64_t G = GROUP<T>, H = GROUP<double>, P = KEPT_PROBES, Q = KEPT_POINTS;
        blocks = blocks_of(m, G);
        padded = blocks * G;
        scratch = 0;
        vectors = scratch + G * G;
        working_size = vectors + Q * (padded + G * LANES<T>);  // and lanes
        precise = blocks_of(m, H) * H;
        tile = precise * features_of(job);
        new_features = tile + 2 * H * H;
        lanes = new_features + blocks_of(Q, H) * H * features_of(job);
        c = lanes + P * H * LANES<double>;
        probes = c + Q * padded;
        product = probes + P * padded;
        pivots = product + P * precise;
        rows = pivots + blocks_of(P * job.k, 8) * 8;  // last: where factors are made, not used
        precise_size = rows + precise * job.k;
    }
};

template <class T>
JointRoom kept_room(const JointJob& job, int64_t most_neighbours, bool making) {
    const KeptLayout<T> at(job, most_neighbours);
    return {at.working_size, making ? at.precise_size : at.rows};
}

// S in tiles of T, each entry rounded once, from double.
template <class T>
void covariance_in_double(const JointJob& job, const JointCell& cell, const double* x,
                          const double* rows, double* tile, T* tiles) {
    constexpr int64_t G = GROUP<T>, H = GROUP<double>, R = G / H;
    const int64_t m = cell.m, last = blocks_of(m, H);
    for (int64_t I = 0; I < blocks_of(m, G); ++I)
        for (int64_t J = 0; J <= I; ++J, tiles += G * G) {
            for (int64_t s = 0; s < G * G; ++s) tiles[s] = 0;
            for (int64_t part = 0; part < R * R; ++part) {
                const int64_t a = part / R, b = part % R, i = I * R + a, j = J * R + b;
                if (i >= last || j > i) continue;
                covariance_tile<double>(job, x, m, i, x, m, j, tile + H * H, tile);
                for (int64_t s = 0; i == j && s < H && i * H + s < m; ++s)
                    tile[s * H + s] += job.noise[cell.neighbours[i * H + s]] + job.jitter;
                subtract_product(rows + j * H * job.k, rows + i * H * job.k, job.k, tile);
                for (int64_t s = 0; s < H; ++s)
                    for (int64_t r = 0; r < H; ++r)
                        tiles[(b * H + s) * G + a * H + r] = static_cast<T>(tile[s * H + r]);
            }
            for (int64_t s = 0; I == J && s < G; ++s)
                if (I * G + s >= m) tiles[s * G + s] = 1;
        }
}

// out[q] -= L L^T z[q], and z[q] = L^T z[q], for KEPT_PROBES vectors. A tile of the diagonal is
// D = -L_JJ^-T, so products with L_JJ are solves with D.
template <class T>
void subtract_factor_product(int64_t blocks, const T* tiles, double* z, double* out) {
    constexpr int64_t G = GROUP<T>, A = G * G;
    constexpr int L = LANES<double>, N = 4;
    const int64_t m = blocks * G;
    for (int64_t J = 0; J < blocks; ++J)
        for (int64_t q = 0; q < KEPT_PROBES; ++q) {
            const T* D = tiles + tile_index(J, J) * A;
            double* at = z + q * m + J * G;
            for (int64_t s = G - 1; s >= 0; --s) {
                double sum = -at[s];
                for (int64_t r = s + 1; r < G; ++r)
                    sum -= static_cast<double>(D[s * G + r]) * at[r];
                at[s] = sum / static_cast<double>(D[s * G + s]);
            }
            for (int64_t I = J + 1; I < blocks; ++I) {
                const T* tile = tiles + tile_index(I, J) * A;
                const double* from = z + q * m + I * G;
                for (int64_t c = 0; c < G; ++c) {
                    vec<double> sums[N] = {};
                    for (int64_t r = 0; r < G; r += N * L)
                        for (int64_t n = 0; n < N; ++n)
                            sums[n] = sums[n] + load(from + r + n * L) *
                                                    load_as<double>(tile + c * G + r + n * L);
                    at[c] += hsum<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
                }
            }
        }
    for (int64_t J = 0; J < blocks; ++J) {
        const T* D = tiles + tile_index(J, J) * A;
        for (int64_t I = J + 1; I < blocks; ++I)
            subtract_columns(tiles + tile_index(I, J) * A, z + J * G, m, KEPT_PROBES, out + I * G);
        for (int64_t q = 0; q < KEPT_PROBES; ++q) {
            double t[G];
            for (int64_t s = 0; s < G; ++s) t[s] = -z[q * m + J * G + s];
            for (int64_t s = 0; s < G; ++s) {
                t[s] /= static_cast<double>(D[s * G + s]);
                for (int64_t r = s + 1; r < G; ++r)
                    t[r] -= static_cast<double>(D[s * G + r]) * t[s];
                out[q * m + J * G + s] -= t[s];
            }
        }
    }
}

// A bound on the norm of E = L L^T - S: the Frobenius norm, |E|_F^2 = mean of |E z|^2 over random
// signs z, times KEPT_MARGIN.
template <class T>
double factor_error(const JointJob& job, const JointCell& cell, const KeptLayout<T>& at,
                    const T* tiles, double* x) {
    constexpr int64_t P = KEPT_PROBES;
    const int64_t m = cell.m;
    JointCell probes = cell;
    probes.count = P;
    double *z = x + at.product, *Ez = x + at.c;
    double *Sz = x + at.probes, *Lz = Sz;  // one after the other
    uint64_t state = 1;
    for (int64_t q = 0; q < P; ++q)
        for (int64_t i = 0; i < at.precise; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            z[q * at.precise + i] = i >= m ? 0.0 : state >> 63 ? 1.0 : -1.0;
            const double noise = i < m ? job.noise[cell.neighbours[i]] + job.jitter : 0.0;
            Sz[q * at.precise + i] = -noise * z[q * at.precise + i];
        }
    subtract_covariance_product(job, probes, x, z, x + at.tile, x + at.lanes, Sz);  // -S z
    combine_rows(job, probes, z, at.precise, x + at.pivots);
    add_row_products(job, probes, x + at.pivots, at.precise, 1.0, Sz);
    for (int64_t q = 0; q < P; ++q)
        for (int64_t i = 0; i < at.padded; ++i)
            Ez[q * at.padded + i] = i < m ? -Sz[q * at.precise + i] : 0.0;
    for (int64_t q = 0; q < P; ++q)
        for (int64_t i = 0; i < at.padded; ++i)
            Lz[q * at.padded + i] = i < m ? z[q * at.precise + i] : 0.0;
    subtract_factor_product(at.blocks, tiles, Lz, Ez);  // S z - L L^T z
    double sum = 0;
    for (int64_t q = 0; q < P; ++q)
        for (int64_t i = 0; i < m; ++i) sum += Ez[q * at.padded + i] * Ez[q * at.padded + i];
    return KEPT_MARGIN * __builtin_sqrt(sum / P);
}

// The most that `error` adds to the variance of a training point given the others, of those nearest
// to the centre, as a share of it: with u = S^-1 e_i, its variance is 1 / u_i and its weights are
// -u / u_i.
template <class T>
double share_of_error(const JointCell& cell, const KeptLayout<T>& at, const T* tiles, double error,
                      T* u) {
    const int64_t count = cell.m < KEPT_PROBES ? cell.m : KEPT_PROBES;
    for (int64_t s = 0; s < count * at.padded; ++s) u[s] = 0;
    for (int64_t i = 0; i < count; ++i) u[i * at.padded + i] = 1;
    solve_lower(at.blocks, tiles, count, u);
    solve_upper(at.blocks, tiles, count, u + count * at.padded, u);
    double most = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double own = static_cast<double>(u[i * at.padded + i]);
        double square = 0;
        for (int64_t j = 0; j < cell.m; ++j) {
            const double w = j == i ? 0.0 : static_cast<double>(u[i * at.padded + j]);
            square += w * w;
        }
        if (!(own > 0) || !(square < 1e300)) return KEPT_HUGE;
        if (error * square / own > most) most = error * square / own;
    }
    return most;
}

template <class T>
JointQuality make_kept(const JointJob& job, const JointCell& cell, const JointWorkspace& room) {
    const KeptLayout<T> at(job, cell.m);
    double *x = room.precise, *rows = x + at.rows;
    T *working = static_cast<T*>(room.working), *tiles = static_cast<T*>(cell.factor);
    pack_features(job, cell.neighbours, 0, cell.m, cell.neighbours[0], x);
    pack_rows(job, cell, rows);
    covariance_in_double(job, cell, x, rows, x + at.tile, tiles);
    if (!factorise(at.blocks, tiles, working + at.scratch)) return JointQuality::no_factor;
    // In double it is roundoff, of the size that S has itself.
    const double error = sizeof(T) == 8 ? 0.0 : factor_error(job, cell, at, tiles, x);
    tiles[factor_size<T>(cell.m)] = static_cast<T>(error);
    const double share = share_of_error(cell, at, tiles, error, working + at.vectors);
    return share <= job.tolerance ? JointQuality::good : JointQuality::rough;
}

// Latent variances of the cell's new points to out[first ..].
template <class T>
void kept_variance(const JointJob& job, const JointCell& cell, const JointWorkspace& room,
                   double* out) {
    const KeptLayout<T> at(job, cell.m);
    double *x = room.precise, *c = x + at.c;
    T* w = static_cast<T*>(room.working) + at.vectors;
    const T* tiles = static_cast<const T*>(cell.factor);
    const double error = static_cast<double>(tiles[factor_size<T>(cell.m)]);
    pack_features(job, cell.neighbours, 0, cell.m, cell.neighbours[0], x);
    JointCell part = cell;
    for (; part.first < cell.first + cell.count; part.first += part.count) {
        const int64_t left = cell.first + cell.count - part.first;
        part.count = left < KEPT_POINTS ? left : KEPT_POINTS;
        for (int64_t s = 0; s < part.count * at.padded; ++s) c[s] = 0;
        cross_covariance(job, part, x, x + at.new_features, x + at.tile, at.padded, c);
        solve_lower(at.blocks, tiles, part.count, c);
        if (error > 0) {
            for (int64_t s = 0; s < part.count * at.padded; ++s) w[s] = static_cast<T>(c[s]);
            solve_upper(at.blocks, tiles, part.count, w + part.count * at.padded, w);
        }
        for (int64_t q = 0; q < part.count; ++q) {
            const double* b = job.B + (part.first + q) * job.k;
            double given_pivots = job.prior[part.first + q], known = 0, added = 0;
            for (int64_t s = 0; s < job.k; ++s) given_pivots -= b[s] * b[s];
            for (int64_t i = q * at.padded; i < q * at.padded + cell.m; ++i) {
                known += c[i] * c[i];
                added += error > 0 ? static_cast<double>(w[i]) * static_cast<double>(w[i]) : 0.0;
            }
            // No more than the pivots leave, which is a bound too.
            const double reduction = known - error * added;
            const double variance = given_pivots - (reduction > 0 ? reduction : 0);
            out[part.first + q] = variance > 0 ? variance : 0;
        }
    }
}
