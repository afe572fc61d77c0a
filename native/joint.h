// Joint variances of the new points of one cell (joint_ops.h has the equations).
// Included inside an anonymous namespace of isa.cpp, after tile.h.
//
// Training points are padded to whole blocks of G and everything is packed like points: a block is
// [inner][G], so that one micro-kernel makes S, factorises it and applies factors. Tile (I, J) of
// S, J <= I, is [point of J][point of I]. A padded point has no covariance with any other.

// Dimensions per pass of a product of blocks: two blocks and the tile they go to stay in L1.
template <class T>
constexpr int64_t JOINT_INNER = 128 / sizeof(T);

inline int64_t blocks_of(int64_t m, int64_t G) { return (m + G - 1) / G; }
inline int64_t tile_index(int64_t I, int64_t J) { return I * (I + 1) / 2 + J; }
inline int64_t features_of(const JointJob& job) {
    int64_t sum = 0;
    for (int p = 0; p < job.count; ++p) sum += job.components[p].d;
    return sum;
}

// out[s][r] -= sum over c of x[c][s] z[c][r], all three G wide.
template <class T>
void subtract_product(const T* x, const T* z, int64_t inner, T* out) {
    constexpr int64_t G = GROUP<T>, W = MICRO_VECTORS * LANES<T>, C = JOINT_INNER<T>;
    for (int64_t c = 0; c < inner; c += C) {
        const int count = static_cast<int>(inner - c < C ? inner - c : C);
        for (int64_t s = 0; s < G; s += MICRO_ROWS)
            for (int64_t r = 0; r < G; r += W)
                micro<T, Form::dot, 0>(x + c * G + s, z + c * G + r, nullptr, nullptr, count, false,
                                       false, out + s * G + r);
    }
}

// Features of training points `rows`, or of new points first .. first + m if there are none, packed
// [component][block][d][G] relative to training point `origin`: only differences matter, and those
// of near points keep their digits in float32.
template <class T>
void pack_features(const JointJob& job, const int64_t* rows, int64_t first, int64_t m,
                   int64_t origin, T* out) {
    constexpr int64_t G = GROUP<T>;
    for (int p = 0; p < job.count; ++p) {
        const JointComponent& c = job.components[p];
        const bool moved = static_cast<Family>(c.family) != Family::linear;
        for (int64_t i = 0; i < blocks_of(m, G) * G; ++i) {
            const double* from =
                rows ? c.x + rows[i < m ? i : 0] * c.d : c.z + (first + (i < m ? i : 0)) * c.d;
            for (int q = 0; q < c.d; ++q) {
                const double value = from[q] - (moved ? c.x[origin * c.d + q] : 0.0);
                out[i / G * G * c.d + q * G + i % G] = static_cast<T>(value);
            }
        }
        out += blocks_of(m, G) * G * c.d;
    }
}

// k between block I of packed features x (m points) and block J of z (n points): [point of J][I].
template <class T>
void covariance_tile(const JointJob& job, const T* x, int64_t m, int64_t I, const T* z, int64_t n,
                     int64_t J, T* h, T* out) {
    constexpr int64_t G = GROUP<T>;
    const Block block{0, 0, G, G};
    for (int64_t s = 0; s < G * G; ++s) out[s] = 0;
    for (int p = 0; p < job.count; ++p) {
        const JointComponent& c = job.components[p];
        const Family family = static_cast<Family>(c.family);
        const T *xi = x + I * G * c.d, *zj = z + J * G * c.d;
        if (family == Family::linear)
            pairs<T, Form::dot, 0>(zj, xi, nullptr, nullptr, c.d, T(0), block, h);
        else if (family != Family::constant)
            pairs<T, Form::difference, 0>(zj, xi, nullptr, nullptr, c.d, T(0), block, h);
        const T weight = static_cast<T>(c.outputscale), alpha = static_cast<T>(c.alpha);
#define MEGAGP_CALL(F) add_values<T, F>(h, G * G, weight, alpha, out)
        MEGAGP_FOR_FAMILY(family, MEGAGP_CALL)
#undef MEGAGP_CALL
        x += blocks_of(m, G) * G * c.d;
        z += blocks_of(n, G) * G * c.d;
    }
    const int64_t rows = n - J * G < G ? n - J * G : G, cols = m - I * G < G ? m - I * G : G;
    for (int64_t s = 0; s < G; ++s)
        for (int64_t r = s < rows ? cols : 0; r < G; ++r) out[s * G + r] = 0;
}

// Rows N of F packed [block][k][G] in the working precision.
template <class T>
void pack_rows(const JointJob& job, const JointCell& cell, T* out) {
    constexpr int64_t G = GROUP<T>, C = 64;
    for (int64_t I = 0; I < blocks_of(cell.m, G); ++I, out += job.k * G)
        for (int64_t c = 0; c < job.k; c += C) {
            const int64_t count = job.k - c < C ? job.k - c : C;
            for (int64_t r = 0; r < G; ++r) {
                const int64_t i = I * G + r;
                const double* from = job.F + (i < cell.m ? cell.neighbours[i] * job.k : 0) + c;
                for (int64_t q = 0; q < count; ++q)
                    out[(c + q) * G + r] = i < cell.m ? static_cast<T>(from[q]) : T(0);
            }
        }
}

// T = U^T U in place, upper triangle U[c][r], r >= c; inverse = -U^-1. False if T is not positive
// definite in this precision.
template <class T>
bool factorise_tile(T* tile, T* inverse) {
    constexpr int64_t G = GROUP<T>;
    constexpr int L = LANES<T>;
    for (int64_t c = 0; c < G; ++c) {
        const T pivot = tile[c * G + c];
        if (!(pivot > 0) || !(pivot < T(1e30))) return false;
        const T scale = T(1) / static_cast<T>(__builtin_sqrt(static_cast<double>(pivot)));
        T* row = tile + c * G;
        for (int64_t r = 0; r < c; ++r) row[r] = 0;
        for (int64_t r = c; r < G; ++r) row[r] *= scale;
        for (int64_t s = c + 1; s < G; ++s) {
            const vec<T> u = splat(row[s]);
            T* to = tile + s * G;
            for (int64_t r = s / L * L; r < G; r += L)
                store(to + r, load(to + r) - u * load(row + r));
        }
    }
    for (int64_t s = G - 1; s >= 0; --s) {
        T* to = inverse + s * G;
        for (int64_t r = 0; r < G; ++r) to[r] = 0;
        to[s] = -1;
        for (int64_t q = s + 1; q < G; ++q) {
            const vec<T> u = splat(tile[s * G + q]);
            for (int64_t r = q / L * L; r < G; r += L)
                store(to + r, load(to + r) - u * load(inverse + q * G + r));
        }
        const vec<T> scale = splat(T(1) / tile[s * G + s]);
        for (int64_t r = 0; r < G; r += L) store(to + r, scale * load(to + r));
    }
    return true;
}

// S = L L^T tile by tile from left to right. Tiles below the diagonal end as L[c][r], so that they
// are blocks with inner columns c; those of the diagonal as -U^-1 = -L_JJ^-T.
template <class T>
bool factorise(int64_t blocks, T* tiles, T* scratch) {
    constexpr int64_t G = GROUP<T>, A = G * G;
    for (int64_t J = 0; J < blocks; ++J) {
        for (int64_t I = J; I < blocks; ++I)
            for (int64_t K = 0; K < J; ++K)
                subtract_product(tiles + tile_index(J, K) * A, tiles + tile_index(I, K) * A, G,
                                 tiles + tile_index(I, J) * A);
        T* diagonal = tiles + tile_index(J, J) * A;
        if (!factorise_tile(diagonal, scratch)) return false;
        for (int64_t s = 0; s < A; ++s) diagonal[s] = scratch[s];
        for (int64_t I = J + 1; I < blocks; ++I) {
            T* tile = tiles + tile_index(I, J) * A;
            for (int64_t s = 0; s < A; ++s) scratch[s] = 0;
            subtract_product(diagonal, tile, G, scratch);
            for (int64_t s = 0; s < A; ++s) tile[s] = scratch[s];
        }
    }
    return true;
}

// A vector of V from entries of T, which may be narrower.
template <class V, class T>
inline vec<V> load_as(const T* p) {
    if constexpr (sizeof(T) == sizeof(V)) {
        return load(p);
    } else {
        typedef T narrow __attribute__((vector_size(MEGAGP_VECTOR_BYTES / 2), may_alias));
        return __builtin_convertvector(*reinterpret_cast<const narrow*>(p), vec<V>);
    }
}

// to[q] -= tile^T from[q] for Q vectors, with tile [c][r]: sums of a slice of r stay in registers.
template <int Q, class T, class V>
void subtract_columns(const T* tile, const V* from, int64_t stride, V* to) {
    constexpr int64_t G = GROUP<T>;
    constexpr int L = LANES<V>, SLICE = 4;
    for (int64_t r = 0; r < G; r += SLICE * L) {
        vec<V> sums[Q][SLICE];
        for (int q = 0; q < Q; ++q)
            for (int n = 0; n < SLICE; ++n) sums[q][n] = load(to + q * stride + r + n * L);
        for (int64_t c = 0; c < G; ++c) {
            vec<V> row[SLICE];
            for (int n = 0; n < SLICE; ++n) row[n] = load_as<V>(tile + c * G + r + n * L);
            for (int q = 0; q < Q; ++q) {
                const vec<V> u = splat(from[q * stride + c]);
                for (int n = 0; n < SLICE; ++n) sums[q][n] = sums[q][n] - u * row[n];
            }
        }
        for (int q = 0; q < Q; ++q)
            for (int n = 0; n < SLICE; ++n) store(to + q * stride + r + n * L, sums[q][n]);
    }
}

template <class T, class V>
void subtract_columns(const T* tile, const V* from, int64_t stride, int64_t count, V* to) {
    int64_t q = 0;
    for (; q + 4 <= count; q += 4)
        subtract_columns<4>(tile, from + q * stride, stride, to + q * stride);
    for (; q < count; ++q) subtract_columns<1>(tile, from + q * stride, stride, to + q * stride);
}

// v = L^-1 v for `count` vectors, each blocks * G long, in their own precision.
template <class T, class V>
void solve_lower(int64_t blocks, const T* tiles, int64_t count, V* v) {
    constexpr int64_t G = GROUP<T>, A = G * G;
    const int64_t m = blocks * G;
    alignas(64) V room[G];
    for (int64_t J = 0; J < blocks; ++J) {
        for (int64_t q = 0; q < count; ++q) {
            V* at = v + q * m + J * G;
            for (int64_t c = 0; c < G; ++c) room[c] = 0;
            subtract_columns<1>(tiles + tile_index(J, J) * A, at, 0, room);
            for (int64_t c = 0; c < G; ++c) at[c] = room[c];
        }
        for (int64_t I = J + 1; I < blocks; ++I)
            subtract_columns(tiles + tile_index(I, J) * A, v + J * G, m, count, v + I * G);
    }
}

// v = L^-T v for `count` vectors. lanes: count * G * LANES entries of room.
template <class T>
void solve_upper(int64_t blocks, const T* tiles, int64_t count, T* lanes, T* v) {
    constexpr int64_t G = GROUP<T>, A = G * G;
    constexpr int L = LANES<T>, N = G / L;
    const int64_t m = blocks * G;
    // lanes[c] += the products in tile[c] . from, not yet added up.
    const auto collect = [](const T* tile, const T* from, T* into) {
        vec<T> w[N];
        for (int n = 0; n < N; ++n) w[n] = load(from + n * L);
        for (int64_t c = 0; c < G; ++c) {
            vec<T> sum = load(into + c * L);
            for (int n = 0; n < N; ++n) sum = sum + w[n] * load(tile + c * G + n * L);
            store(into + c * L, sum);
        }
    };
    alignas(64) T room[G];
    for (int64_t J = blocks - 1; J >= 0; --J) {
        for (int64_t s = 0; s < count * G * L; ++s) lanes[s] = 0;
        for (int64_t I = J + 1; I < blocks; ++I)
            for (int64_t q = 0; q < count; ++q)
                collect(tiles + tile_index(I, J) * A, v + q * m + I * G, lanes + q * G * L);
        for (int64_t q = 0; q < count; ++q) {
            T *at = v + q * m + J * G, *own = lanes + q * G * L;
            for (int64_t c = 0; c < G; ++c) {
                room[c] = at[c] - static_cast<T>(hsum<T>(load(own + c * L)));
                store(own + c * L, vec<T>{});
            }
            collect(tiles + tile_index(J, J) * A, room, own);
            for (int64_t c = 0; c < G; ++c) at[c] = -static_cast<T>(hsum<T>(load(own + c * L)));
        }
    }
}

// ---- the bound, in double -------------------------------------------------------------------

typedef double loose_vec __attribute__((vector_size(MEGAGP_VECTOR_BYTES), may_alias, aligned(8)));

inline vec<double> load_loose(const double* p) { return *reinterpret_cast<const loose_vec*>(p); }
inline void store_loose(double* p, vec<double> v) { *reinterpret_cast<loose_vec*>(p) = v; }

constexpr int64_t JOINT_ROWS = 4;  // rows of F that share the loads of a vector

struct JointRows {
    const double* row[JOINT_ROWS];
    int64_t count;
    JointRows(const JointJob& job, const JointCell& cell, int64_t i)
        : count(cell.m - i < JOINT_ROWS ? cell.m - i : JOINT_ROWS) {
        for (int64_t s = 0; s < JOINT_ROWS; ++s)
            row[s] = job.F + cell.neighbours[i + (s < count ? s : 0)] * job.k;
    }
};

// out[q][i] += sign F_N[i] . A[q], A: count x k, out: count x padded.
void add_row_products(const JointJob& job, const JointCell& cell, const double* A, int64_t padded,
                      double sign, double* out) {
    constexpr int L = LANES<double>;
    const int64_t whole = job.k / L * L;
    for (int64_t i = 0; i < cell.m; i += JOINT_ROWS) {
        const JointRows rows(job, cell, i);
        for (int64_t q = 0; q < cell.count; ++q) {
            const double* a = A + q * job.k;
            vec<double> sums[JOINT_ROWS] = {};
            for (int64_t c = 0; c < whole; c += L) {
                const vec<double> v = load_loose(a + c);
                for (int64_t s = 0; s < JOINT_ROWS; ++s)
                    sums[s] = sums[s] + v * load_loose(rows.row[s] + c);
            }
            for (int64_t s = 0; s < rows.count; ++s) {
                double sum = hsum<double>(sums[s]);
                for (int64_t c = whole; c < job.k; ++c) sum += a[c] * rows.row[s][c];
                out[q * padded + i + s] += sign * sum;
            }
        }
    }
}

// out[q] = F_N^T w[q], out: count x k, w: count x padded.
void combine_rows(const JointJob& job, const JointCell& cell, const double* w, int64_t padded,
                  double* out) {
    constexpr int L = LANES<double>;
    const int64_t whole = job.k / L * L;
    for (int64_t s = 0; s < cell.count * job.k; ++s) out[s] = 0;
    for (int64_t i = 0; i < cell.m; i += JOINT_ROWS) {
        const JointRows rows(job, cell, i);
        for (int64_t q = 0; q < cell.count; ++q) {
            double* to = out + q * job.k;
            double u[JOINT_ROWS];
            for (int64_t s = 0; s < JOINT_ROWS; ++s)
                u[s] = s < rows.count ? w[q * padded + i + s] : 0.0;
            for (int64_t c = 0; c < whole; c += L) {
                vec<double> sum = load_loose(to + c);
                for (int64_t s = 0; s < JOINT_ROWS; ++s)
                    sum = sum + splat(u[s]) * load_loose(rows.row[s] + c);
                store_loose(to + c, sum);
            }
            for (int64_t c = whole; c < job.k; ++c)
                for (int64_t s = 0; s < JOINT_ROWS; ++s) to[c] += u[s] * rows.row[s][c];
        }
    }
}

// out[q] -= K_NN w[q], each tile evaluated once for both of its sides. lanes: count * G * L.
void subtract_covariance_product(const JointJob& job, const JointCell& cell, const double* x,
                                 const double* w, double* tile, double* lanes, double* out) {
    constexpr int64_t G = GROUP<double>;
    constexpr int L = LANES<double>;
    const int64_t blocks = blocks_of(cell.m, G), padded = blocks * G;
    for (int64_t J = 0; J < blocks; ++J) {
        for (int64_t s = 0; s < cell.count * G * L; ++s) lanes[s] = 0;
        for (int64_t I = J; I < blocks; ++I) {
            covariance_tile<double>(job, x, cell.m, I, x, cell.m, J, tile + G * G, tile);
            for (int64_t q = 0; q < cell.count; ++q) {
                const double *wi = w + q * padded + I * G, *wj = w + q * padded + J * G;
                double* to = out + q * padded + I * G;
                vec<double> from[G / L], sums[G / L];
                for (int64_t v = 0; v < G / L; ++v) {
                    from[v] = load(wi + v * L);
                    sums[v] = load(to + v * L);
                }
                for (int64_t s = 0; s < G; ++s) {
                    const double* k = tile + s * G;
                    const vec<double> u = splat(wj[s]);
                    vec<double> lane = load(lanes + (q * G + s) * L);
                    for (int64_t v = 0; v < G / L; ++v) {
                        const vec<double> kv = load(k + v * L);
                        lane = lane + kv * from[v];
                        sums[v] = sums[v] - kv * u;
                    }
                    store(lanes + (q * G + s) * L, lane);
                }
                if (I > J)  // a tile of the diagonal is its own mirror image
                    for (int64_t v = 0; v < G / L; ++v) store(to + v * L, sums[v]);
            }
        }
        for (int64_t q = 0; q < cell.count; ++q)
            for (int64_t s = 0; s < G; ++s)
                out[q * padded + J * G + s] -= hsum<double>(load(lanes + (q * G + s) * L));
    }
}

// Entries of a factor of m points.
template <class T>
int64_t factor_size(int64_t m) {
    return tile_index(blocks_of(m, GROUP<T>), 0) * GROUP<T> * GROUP<T>;
}

// Where in a thread's room everything lies.
template <class T>
struct JointLayout {
    int64_t blocks, padded, precise;  // blocks and points in T; points in double
    int64_t features, scratch, vectors, factor, working_size;
    int64_t new_features, tile, lanes, pivots, c, w, r, precise_size;

    JointLayout(const JointJob& job, int64_t m, int64_t count) {
        constexpr int64_t G = GROUP<T>, H = GROUP<double>;
        blocks = blocks_of(m, G);
        padded = blocks * G;
        features = padded * job.k;
        scratch = features + padded * features_of(job);
        vectors = scratch + G * G;
        factor = vectors + count * (padded + G * LANES<T>);  // and lanes
        working_size = factor + factor_size<T>(m);
        precise = blocks_of(m, H) * H;
        new_features = precise * features_of(job);
        tile = new_features + blocks_of(count, H) * H * features_of(job);
        lanes = tile + 2 * H * H;
        c = lanes + count * H * LANES<double>;
        w = c + count * precise;
        r = w + count * precise;
        pivots = r + count * precise;
        precise_size = pivots + count * job.k;
    }
};

template <class T>
JointRoom joint_room(const JointJob& job, int64_t most_neighbours, int64_t most_points) {
    const JointLayout<T> at(job, most_neighbours, most_points);
    return {at.working_size, at.precise_size};
}

// S in tiles, and its factor in their place.
template <class T>
bool factorise_cell(const JointJob& job, const JointCell& cell, const JointWorkspace& room) {
    constexpr int64_t G = GROUP<T>;
    const JointLayout<T> at(job, cell.m, cell.count);
    T *rows = static_cast<T*>(room.working), *features = rows + at.features,
      *scratch = rows + at.scratch, *tiles = rows + at.factor;
    pack_rows(job, cell, rows);
    pack_features(job, cell.neighbours, 0, cell.m, cell.neighbours[0], features);
    for (int64_t I = 0; I < at.blocks; ++I)
        for (int64_t J = 0; J <= I; ++J) {
            T* tile = tiles + tile_index(I, J) * G * G;
            covariance_tile(job, features, cell.m, I, features, cell.m, J, scratch, tile);
            for (int64_t s = 0; I == J && s < G; ++s) {
                const int64_t i = I * G + s;
                tile[s * G + s] +=
                    static_cast<T>(i < cell.m ? job.noise[cell.neighbours[i]] + job.jitter : 1.0);
            }
            subtract_product(rows + J * G * job.k, rows + I * G * job.k, job.k, tile);
        }
    return factorise(at.blocks, tiles, scratch);
}

// c = k(N, x) - F_N b of every new point: count x padded.
void cross_covariance(const JointJob& job, const JointCell& cell, const double* x, double* z,
                      double* tile, int64_t padded, double* c) {
    constexpr int64_t G = GROUP<double>;
    const int64_t m = cell.m, t = cell.count;
    pack_features(job, nullptr, cell.first, t, cell.neighbours[0], z);
    for (int64_t I = 0; I < blocks_of(m, G); ++I)
        for (int64_t J = 0; J < blocks_of(t, G); ++J) {
            covariance_tile<double>(job, x, m, I, z, t, J, tile + G * G, tile);
            for (int64_t s = 0; s < G && J * G + s < t; ++s)
                for (int64_t r = 0; r < G; ++r)
                    c[(J * G + s) * padded + I * G + r] = tile[s * G + r];
        }
    add_row_products(job, cell, job.B + cell.first * job.k, padded, -1.0, c);
}

template <class T>
JointQuality cell_variance(const JointJob& job, const JointCell& cell, const JointWorkspace& room,
                           double* out) {
    const JointLayout<T> at(job, cell.m, cell.count);
    const int64_t m = cell.m, padded = at.precise;
    double *x = room.precise, *tile = x + at.tile, *c = x + at.c, *w = x + at.w, *r = x + at.r;
    pack_features(job, cell.neighbours, 0, m, cell.neighbours[0], x);
    cross_covariance(job, cell, x, x + at.new_features, tile, padded, c);

    const T* factor = static_cast<const T*>(room.working) + at.factor;
    T* v = static_cast<T*>(room.working) + at.vectors;
    const auto solve = [&](const double* right) {
        for (int64_t q = 0; q < cell.count; ++q)
            for (int64_t i = 0; i < at.padded; ++i)
                v[q * at.padded + i] = i < m ? static_cast<T>(right[q * padded + i]) : T(0);
        solve_lower(at.blocks, factor, cell.count, v);
        solve_upper(at.blocks, factor, cell.count, v + cell.count * at.padded, v);
    };
    solve(c);
    for (int64_t q = 0; q < cell.count; ++q)
        for (int64_t i = 0; i < padded; ++i) {
            const double weight = i < m ? static_cast<double>(v[q * at.padded + i]) : 0.0;
            const double noise = i < m ? job.noise[cell.neighbours[i]] : 0.0;
            w[q * padded + i] = weight;
            r[q * padded + i] = c[q * padded + i] - noise * weight;
        }
    // r = c - S w
    subtract_covariance_product(job, cell, x, w, tile, x + at.lanes, r);
    combine_rows(job, cell, w, padded, x + at.pivots);
    add_row_products(job, cell, x + at.pivots, padded, 1.0, r);
    solve(r);  // how far above the variance given P and N that is

    JointQuality quality = JointQuality::good;
    for (int64_t q = 0; q < cell.count; ++q) {
        const double* b = job.B + (cell.first + q) * job.k;
        double reduction = 0, excess = 0;
        for (int64_t s = 0; s < job.k; ++s) reduction += b[s] * b[s];
        for (int64_t i = 0; i < m; ++i) {
            const int64_t p = q * padded + i;
            reduction += w[p] * (c[p] + r[p]);
            excess += r[p] * static_cast<double>(v[q * at.padded + i]);
        }
        const double variance = job.prior[cell.first + q] - reduction;
        out[cell.first + q] = variance > 0 ? variance : 0;
        const double observed = out[cell.first + q] + job.noise[cell.neighbours[0]];
        if (!(excess <= job.tolerance * observed)) quality = JointQuality::rough;
        if (!(variance - variance == 0)) return JointQuality::no_factor;
    }
    return quality;
}
