// The three stages of a tile pair, each a loop over a block of K that stays in L1:
// h of every pair, k(h), and the contraction with the right-hand sides.
// Included inside an anonymous namespace of isa.cpp, after radial.h.

#if defined(__AVX512F__)
constexpr int MICRO_ROWS = 4, MICRO_VECTORS = 4;  // 16 accumulators of 32 registers
constexpr int CONTRACT_ROWS = 8;
#else
constexpr int MICRO_ROWS = 4, MICRO_VECTORS = 2;  // 8 of 16
constexpr int CONTRACT_ROWS = 4;
#endif
constexpr int INNER_CHUNK = 96;  // dimensions per pass: a group's chunk of 24 KB stays in L1

enum class Form { product, difference, dot };

// out (+)= a micro-tile of MICRO_ROWS x MICRO_VECTORS over `inner` dimensions (D of them if D > 0).
//   product: h = |x|^2/2 + |z|^2/2 - x.z    difference: h = sum (x - z)^2    dot: -x.z
// Returns the smallest entries that it wrote, lane by lane.
template <class T, Form F, int D>
__attribute__((always_inline)) inline vec<T> micro(const T* x, const T* z, const T* x_norm,
                                                   const T* z_norm, int inner, bool first, T* out) {
    constexpr int64_t G = GROUP<T>;
    constexpr int L = LANES<T>;
    vec<T> acc[MICRO_ROWS][MICRO_VECTORS];
    if (first) {
        for (int r = 0; r < MICRO_ROWS; ++r)
            for (int v = 0; v < MICRO_VECTORS; ++v)
                acc[r][v] = F == Form::product ? x_norm[r] + load(z_norm + v * L) : vec<T>{};
    } else {
        for (int r = 0; r < MICRO_ROWS; ++r)
            for (int v = 0; v < MICRO_VECTORS; ++v) acc[r][v] = load(out + r * TILE + v * L);
    }
    const int count = D > 0 ? D : inner;
    for (int c = 0; c < count; ++c) {
        vec<T> zv[MICRO_VECTORS];
        for (int v = 0; v < MICRO_VECTORS; ++v) zv[v] = load(z + c * G + v * L);
        for (int r = 0; r < MICRO_ROWS; ++r) {
            const vec<T> xr = splat(x[c * G + r]);
            for (int v = 0; v < MICRO_VECTORS; ++v) {
                if constexpr (F == Form::difference) {
                    const vec<T> delta = xr - zv[v];
                    acc[r][v] = acc[r][v] + delta * delta;
                } else {
                    acc[r][v] = acc[r][v] - xr * zv[v];
                }
            }
        }
    }
    for (int r = 0; r < MICRO_ROWS; ++r)
        for (int v = 0; v < MICRO_VECTORS; ++v) store(out + r * TILE + v * L, acc[r][v]);
    if constexpr (F == Form::product) {  // as a tree: a chain of minima would wait for each other
        static_assert(MICRO_ROWS == 4, "two levels");
        for (int v = 0; v < MICRO_VECTORS; ++v)
            acc[0][v] = vmin(vmin(acc[0][v], acc[1][v]), vmin(acc[2][v], acc[3][v]));
        for (int v = 1; v < MICRO_VECTORS; ++v) acc[0][0] = vmin(acc[0][0], acc[0][v]);
    }
    return acc[0][0];
}

// Vectors of a micro-tile with a pair nearer than `near` again, from differences: the product form
// has lost their digits.
template <class T>
__attribute__((noinline)) void repair(const T* x, const T* z, int d, T near, T* h) {
    constexpr int64_t G = GROUP<T>;
    constexpr int L = LANES<T>;
    for (int r = 0; r < MICRO_ROWS; ++r)
        for (int v = 0; v < MICRO_VECTORS; ++v) {
            T* at = h + r * TILE + v * L;
            if (!any_below(load(at), near)) continue;
            vec<T> s = {};
            for (int c = 0; c < d; ++c) {
                const vec<T> delta = splat(x[c * G + r]) - load(z + c * G + v * L);
                s = s + delta * delta;
            }
            store(at, T(0.5) * s);
        }
}

// h (or -x.z) for BLOCK_ROWS rows starting at x against one tile of columns.
template <class T, Form F, int D>
void pairs(const T* x, const T* z, const T* x_norm, const T* z_norm, int d, T near, T* out) {
    constexpr int64_t G = GROUP<T>;
    constexpr int W = MICRO_VECTORS * LANES<T>;
    for (int64_t g = 0; g < TILE; g += G) {
        const T* zg = z + g * d;
        for (int c0 = 0; c0 < d; c0 += INNER_CHUNK) {
            const int chunk = d - c0 < INNER_CHUNK ? d - c0 : INNER_CHUNK;
            for (int64_t r = 0; r < BLOCK_ROWS<T>; r += MICRO_ROWS)
                for (int64_t j = 0; j < G; j += W) {
                    T* to = out + r * TILE + g + j;
                    const vec<T> least = micro<T, F, D>(x + c0 * G + r, zg + c0 * G + j, x_norm + r,
                                                        z_norm + g + j, chunk, c0 == 0, to);
                    if constexpr (F == Form::product)
                        if (c0 + chunk == d && any_below(least, near))
                            repair(x + r, zg + j, d, near, to);
                }
        }
    }
}

template <class T>
using PairsFn = void (*)(const T*, const T*, const T*, const T*, int, T, T*);

template <class T>
PairsFn<T> choose_pairs(const Component<T>& p) {
    if (p.family == Family::linear) return pairs<T, Form::dot, 0>;
    if (!p.differences) return pairs<T, Form::product, 0>;
    constexpr PairsFn<T> by_d[] = {pairs<T, Form::difference, 1>, pairs<T, Form::difference, 2>,
                                   pairs<T, Form::difference, 3>, pairs<T, Form::difference, 4>};
    static_assert(DIFFERENCE_MAX_D == 4, "one entry for each d that uses differences");
    return p.x.d <= DIFFERENCE_MAX_D ? by_d[p.x.d - 1] : pairs<T, Form::difference, 0>;
}

template <class T>
int near_level(T norms) {  // norms <= 2^((level - NEAR_LEVELS / 2) / 4)
    const double e =
        __builtin_ceil(4 * __builtin_log2(static_cast<double>(norms))) + NEAR_LEVELS / 2;
    return e > 0 ? (e < NEAR_LEVELS ? static_cast<int>(e) : NEAR_LEVELS - 1) : 0;
}

// Smallest h between the boxes of tile i of x and tile j of z.
template <class T>
T box_h(const Component<T>& p, int64_t i, int64_t j) {
    const int d = p.x.d;
    const T *xl = p.x.lo + i * d, *xh = p.x.hi + i * d, *zl = p.z.lo + j * d, *zh = p.z.hi + j * d;
    T s = 0;
    for (int c = 0; c < d; ++c) {
        const T a = zl[c] - xh[c], b = xl[c] - zh[c];
        T gap = a > b ? a : b;
        gap = gap > 0 ? gap : 0;
        s += gap * gap;
    }
    return p.differences ? s : T(0.5) * s;
}

template <class T>
bool culled(const Job<T>& job, int64_t i, int64_t j) {
    for (int p = 0; p < job.count; ++p)
        if (!(box_h(job.components[p], i, j) > job.components[p].cutoff)) return false;
    return true;
}

// What is the same for all row blocks of a tile pair.
template <class T>
struct TilePair {
    const Component<T>* p;
    PairsFn<T> pairs;
    const T *x, *z, *x_norm, *z_norm;
    T near;         // pairs below are computed again from differences
    bool diagonal;  // the tile's points with themselves

    TilePair() = default;
    TilePair(const Job<T>& job, const Component<T>& c, int64_t i, int64_t j)
        : p(&c),
          pairs(choose_pairs(c)),
          diagonal(job.symmetric && i == j && c.family != Family::linear) {
        x = c.x.packed + i * TILE * c.x.d;
        z = c.z.packed + j * TILE * c.x.d;
        x_norm = c.x.half_norm + i * TILE;
        z_norm = c.z.half_norm + j * TILE;
        near = 0;
        if (!c.differences && c.family != Family::linear && c.family != Family::constant) {
            const T level = c.near[near_level(c.x.norm_max[i] + c.z.norm_max[j])];
            near = box_h(c, i, j) < level ? level : T(0);
        }
    }
    const T* row(int64_t r) const {  // the packed rows r.. of this tile
        constexpr int64_t G = GROUP<T>;
        return x + (r / G) * G * p->x.d + r % G;
    }
    void h(int64_t r, T* out) const {
        if (p->family == Family::constant) return;
        pairs(row(r), z, x_norm + r, z_norm, p->x.d, near, out);
        if (p->wide)
            for (int64_t s = 0; s < BLOCK_ROWS<T> * TILE; ++s)
                out[s] = out[s] < T(1e30) ? out[s] : T(1e30);
        if (diagonal)
            for (int64_t s = 0; s < BLOCK_ROWS<T>; ++s) out[s * TILE + r + s] = 0;
    }
};

template <class T, Family F, bool FIRST>
void values(const T* h, T weight, T alpha, T* k) {
    constexpr int L = LANES<T>;
    for (int64_t j = 0; j < BLOCK_ROWS<T> * TILE; j += L) {
        const vec<T> v = value<F, T>(load(h + j), alpha);
        store(k + j, FIRST ? v : load(k + j) + weight * v);
    }
}

#define MEGAGP_FOR_FAMILY(family, CALL)       \
    switch (family) {                         \
        case Family::matern12:                \
            CALL(Family::matern12);           \
            break;                            \
        case Family::matern32:                \
            CALL(Family::matern32);           \
            break;                            \
        case Family::matern52:                \
            CALL(Family::matern52);           \
            break;                            \
        case Family::rbf:                     \
            CALL(Family::rbf);                \
            break;                            \
        case Family::rational_quadratic:      \
            CALL(Family::rational_quadratic); \
            break;                            \
        case Family::constant:                \
            CALL(Family::constant);           \
            break;                            \
        case Family::linear:                  \
            CALL(Family::linear);             \
            break;                            \
    }

// All components of K (in units of the largest outputscale) on one tile pair.
template <class T>
struct KernelTile {
    TilePair<T> pairs[MAX_COMPONENTS];  // the one of weight 1 first
    int count;

    KernelTile(const Job<T>& job, int64_t i, int64_t j) : count(job.count) {
        for (int q = 0; q < count; ++q)
            pairs[q] = TilePair<T>(job, job.components[(job.lead + q) % count], i, j);
    }
    // Rows r.. into k. A single component is evaluated in place: half the room in L1.
    void rows(int64_t r, T* scratch, T* k) const {
        for (int q = 0; q < count; ++q) {
            T* h = q == 0 ? k : scratch;
            pairs[q].h(r, h);
            const Component<T>& p = *pairs[q].p;
#define MEGAGP_CALL(F)                                   \
    q == 0 ? values<T, F, true>(h, p.weight, p.alpha, k) \
           : values<T, F, false>(h, p.weight, p.alpha, k)
            MEGAGP_FOR_FAMILY(p.family, MEGAGP_CALL)
#undef MEGAGP_CALL
        }
    }
};

// ---- contraction: rows += K v_col, and if SYM columns += K^T v_row -------------------------

// Right-hand sides along points: K's vectors times vectors of v; row sums keep their lanes.
template <class T, bool SYM>
void contract_points(const T* k, const Rhs<T>& vr, const Rhs<T>& vc, int64_t row, int64_t col,
                     T* row_lanes, T* col_sums) {
    constexpr int L = LANES<T>, R = CONTRACT_ROWS;
    for (int64_t c = 0; c < vc.t; ++c) {
        const T* v = vc.data + c * vc.stride + col;
        T* sums = col_sums + c * TILE;
        for (int64_t r = 0; r < BLOCK_ROWS<T>; r += R) {
            vec<T> acc[R], u[R];
            T* lanes = row_lanes + (c * BLOCK_ROWS<T> + r) * L;
            for (int q = 0; q < R; ++q) {
                acc[q] = load(lanes + q * L);
                if (SYM) u[q] = splat(vr.data[c * vr.stride + row + r + q]);
            }
            for (int64_t j = 0; j < TILE; j += L) {
                const vec<T> vj = load(v + j);
                vec<T> s = SYM ? load(sums + j) : vec<T>{};
                for (int q = 0; q < R; ++q) {
                    const vec<T> kv = load(k + (r + q) * TILE + j);
                    acc[q] = acc[q] + kv * vj;
                    if (SYM) s = s + kv * u[q];
                }
                if (SYM) store(sums + j, s);
            }
            for (int q = 0; q < R; ++q) store(lanes + q * L, acc[q]);
        }
    }
}

// Right-hand sides along columns of V: K's entries broadcast against vectors of t.
template <class T, bool SYM>
void contract_columns(const T* k, const Rhs<T>& vr, const Rhs<T>& vc, int64_t row, int64_t col,
                      double* row_out, T* col_sums) {
    constexpr int L = LANES<T>, R = CONTRACT_ROWS, J = 2;
    const int64_t t = vc.stride;
    for (int64_t c = 0; c < t; c += L) {
        for (int64_t r = 0; r < BLOCK_ROWS<T>; r += R) {
            vec<T> acc[R], u[R];
            for (int q = 0; q < R; ++q) {
                acc[q] = vec<T>{};
                if (SYM) u[q] = load(vr.data + (row + r + q) * t + c);
            }
            const T* kr = k + r * TILE;
            for (int64_t j = 0; j < TILE; j += J) {
                vec<T> v[J], s[J];
                for (int b = 0; b < J; ++b) {
                    v[b] = load(vc.data + (col + j + b) * t + c);
                    if (SYM) s[b] = load(col_sums + (j + b) * t + c);
                }
                for (int b = 0; b < J; ++b)
                    for (int q = 0; q < R; ++q) {
                        const vec<T> kb = splat(kr[q * TILE + j + b]);
                        acc[q] = acc[q] + kb * v[b];
                        if (SYM) s[b] = s[b] + kb * u[q];
                    }
                if (SYM)
                    for (int b = 0; b < J; ++b) store(col_sums + (j + b) * t + c, s[b]);
            }
            for (int q = 0; q < R; ++q)
                for (int l = 0; l < L; ++l)
                    row_out[(r + q) * t + c + l] += static_cast<double>(acc[q][l]);
        }
    }
}

// Contracts tile pair after tile pair of one row tile and adds to the task's double sums.
template <class T>
struct Contraction {
    const Rhs<T>&vr, &vc;
    Workspace<T>& ws;
    int64_t width;  // doubles per point in row_out and col_out

    Contraction(const Rhs<T>& vr, const Rhs<T>& vc, Workspace<T>& ws)
        : vr(vr), vc(vc), ws(ws), width(vc.along_points ? vc.t : vc.stride) {}

    void begin_rows() {
        if (vc.along_points)
            for (int64_t s = 0; s < TILE * LANES<T> * vc.t; ++s) ws.row_lanes[s] = 0;
        else
            for (int64_t s = 0; s < TILE * width; ++s) ws.row_tile[s] = 0;
    }
    void begin_pair(bool sym) {
        if (!sym) return;
        for (int64_t s = 0; s < TILE * width; ++s) ws.col_sums[s] = 0;
    }
    void block(const T* k, bool sym, int64_t row, int64_t col, int64_t r) {
        if (vc.along_points) {
            T* lanes = ws.row_lanes + r * LANES<T> * vc.t;
            sym ? contract_points<T, true>(k, vr, vc, row, col, lanes, ws.col_sums)
                : contract_points<T, false>(k, vr, vc, row, col, lanes, ws.col_sums);
        } else {
            double* out = ws.row_tile + r * width;
            sym ? contract_columns<T, true>(k, vr, vc, row, col, out, ws.col_sums)
                : contract_columns<T, false>(k, vr, vc, row, col, out, ws.col_sums);
        }
    }
    // Adds a tile's sums to `out`; the last column times `centre`, if any, belongs to the others.
    void add(double* sums, const T* centre, double* out) {
        if (centre)
            for (int64_t r = 0; r < TILE; ++r)
                for (int64_t c = 0; c + 1 < vc.t; ++c)
                    sums[r * width + c] +=
                        static_cast<double>(centre[c]) * sums[r * width + vc.t - 1];
        for (int64_t s = 0; s < TILE * width; ++s) out[s] += sums[s];
    }
    void end_rows(const T* centre, int64_t tile_row) {
        constexpr int L = LANES<T>;
        if (vc.along_points)
            for (int64_t b = 0; b < TILE; b += BLOCK_ROWS<T>)
                for (int64_t c = 0; c < vc.t; ++c)
                    for (int64_t r = 0; r < BLOCK_ROWS<T>; ++r) {
                        const T* lanes = ws.row_lanes + (b * vc.t + c * BLOCK_ROWS<T> + r) * L;
                        ws.row_tile[(b + r) * width + c] = hsum<T>(load(lanes));
                    }
        add(ws.row_tile, centre, ws.row_out + tile_row * TILE * width);
    }
    void end_pair(bool sym, const T* centre, int64_t tile_col) {
        if (!sym) return;
        for (int64_t j = 0; j < TILE; ++j)
            for (int64_t c = 0; c < width; ++c)
                ws.col_tile[j * width + c] = static_cast<double>(
                    ws.col_sums[vc.along_points ? c * TILE + j : j * width + c]);
        add(ws.col_tile, centre, ws.col_out + tile_col * TILE * width);
    }
};

// Visits the tile pairs of panel pair (I, J) that are not culled. `make(i, j)` sets up what serves
// a whole pair; the function it returns leaves in ws.k a block of what is to be contracted.
template <class T, class Body>
bool visit(const Job<T>& job, int64_t I, int64_t J, Workspace<T>& ws, Body make) {
    const Component<T>& first = job.components[0];
    Contraction<T> contraction(job.v_row, job.v_col, ws);
    bool any = false;
    for (int64_t a = 0; a < PANEL_TILES; ++a) {
        const int64_t i = I * PANEL_TILES + a;
        if (i >= first.x.tiles) break;
        bool used = false;
        if (!job.row_centres) contraction.begin_rows();
        for (int64_t b = 0; b < PANEL_TILES; ++b) {
            const int64_t j = J * PANEL_TILES + b;
            if (j >= first.z.tiles || (job.symmetric && j > i)) break;
            if (culled(job, i, j)) continue;
            any = used = true;
            const bool sym = job.symmetric ? i != j : job.both_sides;
            if (job.row_centres) contraction.begin_rows();
            contraction.begin_pair(sym);
            const auto rows = make(i, j);
            for (int64_t r = 0; r < TILE; r += BLOCK_ROWS<T>) {
                rows(r);
                contraction.block(ws.k, sym, i * TILE + r, j * TILE, r);
            }
            const int64_t d = job.v_col.t - 1;
            if (job.row_centres) contraction.end_rows(job.col_centres + j * d, a);
            contraction.end_pair(sym, job.row_centres ? job.row_centres + i * d : nullptr, b);
        }
        if (!job.row_centres && used) contraction.end_rows(nullptr, a);
    }
    return any;
}

template <class T>
bool matmul(const Job<T>& job, int64_t I, int64_t J, Workspace<T>& ws) {
    return visit(job, I, J, ws, [&](int64_t i, int64_t j) {
        return [&, tile = KernelTile<T>(job, i, j)](int64_t r) { tile.rows(r, ws.h, ws.k); };
    });
}

// From h and B: adds up B k and B dk/dalpha, leaves H = B dk/dh.
template <class T, Family F>
void gradient_values(const T* h, const T* b, T alpha, double factor, T* out, double scalars[2]) {
    constexpr int L = LANES<T>;
    for (int64_t r = 0; r < BLOCK_ROWS<T>; ++r) {
        vec<T> bk = {}, ba = {};
        for (int64_t j = r * TILE; j < (r + 1) * TILE; j += L) {
            const vec<T> hv = load(h + j), bv = -load(b + j);  // the dot stage leaves -B
            const Slope<T> s = slope<F, T>(hv, alpha);
            bk = bk + bv * s.value;
            if constexpr (F == Family::rational_quadratic) ba = ba + bv * s.by_alpha;
            store(out + j, bv * s.by_h);
        }
        scalars[0] += factor * hsum<T>(bk);
        scalars[1] += factor * hsum<T>(ba);
    }
}

template <class T>
bool gradient(const Job<T>& job, int q, int64_t I, int64_t J, Workspace<T>& ws) {
    const Component<T>& p = job.components[q];
    constexpr int64_t G = GROUP<T>;
    return visit(job, I, J, ws, [&](int64_t i, int64_t j) {
        const bool diagonal = job.symmetric && i == j;
        const T* left = job.left + i * TILE * job.inner;
        const T* right = job.right + j * TILE * job.inner;
        return [&, diagonal, left, right, pair = TilePair<T>(job, p, i, j)](int64_t r) {
            pair.h(r, ws.h);
            const T* row = left + r / G * G * job.inner + r % G;
            const T* no_norm = nullptr;
            pairs<T, Form::dot, 0>(row, right, no_norm, no_norm, job.inner, T(0), ws.b);
            // A diagonal tile holds each pair twice, and B is already U W' + W U'.
            const double factor = diagonal ? 0.5 : 1.0;
#define MEGAGP_CALL(F) gradient_values<T, F>(ws.h, ws.b, p.alpha, factor, ws.k, ws.scalars)
            MEGAGP_FOR_FAMILY(p.family, MEGAGP_CALL)
#undef MEGAGP_CALL
            // A point's distance to itself does not move: exactly 0, not what float sums leave.
            if (diagonal && p.family != Family::linear)
                for (int64_t s = 0; s < BLOCK_ROWS<T>; ++s) ws.k[s * TILE + r + s] = 0;
        };
    });
}

template <class T>
void block(const Job<T>& job, int64_t i, int64_t j, int64_t rows, int64_t cols, T* out, int64_t ld,
           Workspace<T>& ws) {
    const KernelTile<T> tile(job, i, j);
    for (int64_t r = 0; r < rows; r += BLOCK_ROWS<T>) {
        tile.rows(r, ws.h, ws.k);
        for (int64_t q = 0; q < BLOCK_ROWS<T> && r + q < rows; ++q)
            for (int64_t c = 0; c < cols; ++c)
                out[(r + q) * ld + c] = job.outputscale * ws.k[q * TILE + c];
    }
}
