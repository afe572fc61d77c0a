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
// Rows of a block: 16 x 256 entries (float32) for right-hand sides along points, where sums over
// long rows pay; 32 x 64 along columns of V, where sums of rows and of columns take the same room
// in L1.
template <class T>
constexpr int64_t WIDE_ROWS = 64 / sizeof(T);
template <class T>
constexpr int64_t NARROW_ROWS = 128 / sizeof(T);
constexpr int INNER_CHUNK = 96;  // dimensions per pass: a group's chunk of 24 KB stays in L1

enum class Form { product, difference, halved, dot };
// A tile pair goes over from products to halved differences when this share of its vectors needed
// repair so far: about where both cost the same.
constexpr int64_t MANY_NEAR = 4;  // a quarter

// The part of a tile pair that goes through the stages at a time: rows of one packed group, whole
// groups of columns. Stored as [group of columns][row][column in group].
struct Block {
    int64_t row, col;  // where in the tile pair
    int64_t rows, cols;
    int64_t size() const { return rows * cols; }
    template <class T>
    int64_t at(int64_t r, int64_t c) const {
        return (c / GROUP<T> * rows + r) * GROUP<T> + c % GROUP<T>;
    }
};

// out (+)= a micro-tile of MICRO_ROWS x MICRO_VECTORS over `inner` dimensions (D of them if D > 0).
//   product: h = |x|^2/2 + |z|^2/2 - x.z    dot: -x.z
//   difference: h = sum (x - z)^2           halved: half of that
// Returns the smallest entries that it wrote, lane by lane.
template <class T, Form F, int D>
__attribute__((always_inline)) inline vec<T> micro(const T* x, const T* z, const T* x_norm,
                                                   const T* z_norm, int inner, bool first,
                                                   bool last, T* out) {
    constexpr int64_t G = GROUP<T>;
    constexpr int L = LANES<T>;
    vec<T> acc[MICRO_ROWS][MICRO_VECTORS];
    if (first) {
        for (int r = 0; r < MICRO_ROWS; ++r)
            for (int v = 0; v < MICRO_VECTORS; ++v)
                acc[r][v] = F == Form::product      ? load(z_norm + v * L)
                            : F == Form::difference ? splat(TINY<T>)
                            : F == Form::halved     ? splat(2 * TINY<T>)
                                                    : vec<T>{};
    } else {
        for (int r = 0; r < MICRO_ROWS; ++r)
            for (int v = 0; v < MICRO_VECTORS; ++v) acc[r][v] = load(out + r * G + v * L);
    }
    const int count = D > 0 ? D : inner;
    for (int c = 0; c < count; ++c) {
        vec<T> zv[MICRO_VECTORS];
        for (int v = 0; v < MICRO_VECTORS; ++v) zv[v] = load(z + c * G + v * L);
        for (int r = 0; r < MICRO_ROWS; ++r) {
            const vec<T> xr = splat(x[c * G + r]);
            for (int v = 0; v < MICRO_VECTORS; ++v) {
                if constexpr (F == Form::difference || F == Form::halved) {
                    const vec<T> delta = xr - zv[v];
                    acc[r][v] = acc[r][v] + delta * delta;
                } else {
                    acc[r][v] = acc[r][v] - xr * zv[v];
                }
            }
        }
    }
    // Not at the start: rounded sums of two norms depend on the last bits of each, an error that is
    // the same for rows with the same bits, and adds up over the points as random ones do not.
    if (F == Form::product && last)
        for (int r = 0; r < MICRO_ROWS; ++r)
            for (int v = 0; v < MICRO_VECTORS; ++v) acc[r][v] = acc[r][v] + x_norm[r];
    if (F == Form::halved && last)
        for (int r = 0; r < MICRO_ROWS; ++r)
            for (int v = 0; v < MICRO_VECTORS; ++v) acc[r][v] = T(0.5) * acc[r][v];
    for (int r = 0; r < MICRO_ROWS; ++r)
        for (int v = 0; v < MICRO_VECTORS; ++v) store(out + r * G + v * L, acc[r][v]);
    if constexpr (F == Form::product) {  // as a tree: a chain of minima would wait for each other
        static_assert(MICRO_ROWS == 4, "two levels");
        for (int v = 0; v < MICRO_VECTORS; ++v)
            acc[0][v] = vmin(vmin(acc[0][v], acc[1][v]), vmin(acc[2][v], acc[3][v]));
        for (int v = 1; v < MICRO_VECTORS; ++v) acc[0][0] = vmin(acc[0][0], acc[0][v]);
    }
    return acc[0][0];
}

// Vectors of a micro-tile with a pair nearer than `near` again, from differences: the product form
// has lost their digits. Returns how many vectors that were.
template <class T>
__attribute__((noinline)) int64_t repair(const T* x, const T* z, int d, T near, T* h) {
    constexpr int64_t G = GROUP<T>;
    constexpr int L = LANES<T>;
    int64_t count = 0;
    for (int r = 0; r < MICRO_ROWS; ++r)
        for (int v = 0; v < MICRO_VECTORS; ++v) {
            T* at = h + r * G + v * L;
            if (!any_below(load(at), near)) continue;
            ++count;
            vec<T> s = splat(2 * TINY<T>);
            for (int c = 0; c < d; ++c) {
                const vec<T> delta = splat(x[c * G + r]) - load(z + c * G + v * L);
                s = s + delta * delta;
            }
            store(at, T(0.5) * s);
        }
    return count;
}

// h (or -x.z) for a block: its rows start at x, its columns at z. Returns how many vectors of the
// product form had to be computed again.
template <class T, Form F, int D>
int64_t pairs(const T* x, const T* z, const T* x_norm, const T* z_norm, int d, T near, Block block,
              T* out) {
    constexpr int64_t G = GROUP<T>;
    constexpr int W = MICRO_VECTORS * LANES<T>;
    int64_t repaired = 0;
    for (int64_t g = 0; g < block.cols; g += G) {
        const T* zg = z + g * d;
        for (int c0 = 0; c0 < d; c0 += INNER_CHUNK) {
            const int chunk = d - c0 < INNER_CHUNK ? d - c0 : INNER_CHUNK;
            const bool last = c0 + chunk == d;
            for (int64_t r = 0; r < block.rows; r += MICRO_ROWS)
                for (int64_t j = 0; j < G; j += W) {
                    T* to = out + (g / G * block.rows + r) * G + j;
                    const vec<T> least = micro<T, F, D>(x + c0 * G + r, zg + c0 * G + j, x_norm + r,
                                                        z_norm + g + j, chunk, c0 == 0, last, to);
                    if constexpr (F == Form::product)
                        if (last && any_below(least, near))
                            repaired += repair(x + r, zg + j, d, near, to);
                }
        }
    }
    return repaired;
}

template <class T>
using PairsFn = int64_t (*)(const T*, const T*, const T*, const T*, int, T, Block, T*);

template <class T>
constexpr PairsFn<T> halved_differences = pairs<T, Form::halved, 0>;

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

template <class T>
const T* packed_row(const T* packed, int d, int64_t i) {
    constexpr int64_t G = GROUP<T>;
    return packed + i / G * G * d + i % G;
}

template <class T>
void set_diagonal(const Block& block, T value, T* out) {
    for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t c = block.row + r - block.col;
        if (c >= 0 && c < block.cols) out[block.at<T>(r, c)] = value;
    }
}

// What is the same for all blocks of a tile pair.
template <class T>
struct TilePair {
    const Component<T>* p;
    mutable PairsFn<T> pairs;  // how h is computed may change from block to block, not what it is
    mutable int64_t vectors = 0, repaired = 0;
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
            near = box_h(c, i, j) < level ? level : TINY<T>;
        }
    }
    // At least TINY, but for the linear kernel: roundoff of the product form is repaired.
    void h(const Block& block, T* out) const {
        if (p->family == Family::constant) return;
        repaired += pairs(packed_row(x, p->x.d, block.row), packed_row(z, p->x.d, block.col),
                          x_norm + block.row, z_norm + block.col, p->x.d, near, block, out);
        vectors += block.size() / LANES<T>;
        if (MANY_NEAR * repaired > vectors) pairs = halved_differences<T>;
        if (p->wide)
            for (int64_t s = 0; s < block.size(); ++s) out[s] = out[s] < T(1e30) ? out[s] : T(1e30);
        if (diagonal) set_diagonal(block, TINY<T>, out);
    }
};

template <class T, Family F>
void values(const T* h, int64_t size, T level, T alpha, T* k) {  // k = k(h) - level
    for (int64_t j = 0; j < size; j += LANES<T>)
        store(k + j, value<F, T>(load(h + j), alpha) - level);
}

template <class T, Family F>
void add_values(const T* h, int64_t size, T weight, T alpha, T* k) {  // k += weight k(h)
    for (int64_t j = 0; j < size; j += LANES<T>)
        store(k + j, load(k + j) + weight * value<F, T>(load(h + j), alpha));
}

inline void values_less_one(Family family, float* k, int64_t size) {
    const auto all = [&](auto f) {
        for (int64_t j = 0; j < size; j += LANES<float>) store(k + j, f(load(k + j)));
    };
    if (family == Family::matern12) all(less_one<Family::matern12>);
    if (family == Family::matern32) all(less_one<Family::matern32>);
    if (family == Family::matern52) all(less_one<Family::matern52>);
    if (family == Family::rbf) all(less_one<Family::rbf>);
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
    T level;
    bool less_one;

    KernelTile(const Job<T>& job, int64_t i, int64_t j)
        : count(job.count), level(job.level), less_one(job.less_one) {
        for (int q = 0; q < count; ++q)
            pairs[q] = TilePair<T>(job, job.components[(job.lead + q) % count], i, j);
    }
    // A block into k. A single component is evaluated in place: half the room in L1.
    void evaluate(const Block& block, T* scratch, T* k) const {
        for (int q = 0; q < count; ++q) {
            T* h = q == 0 ? k : scratch;
            pairs[q].h(block, h);
            const Component<T>& p = *pairs[q].p;
            if constexpr (sizeof(T) == 4) {
                if (less_one && q == 0) {
                    values_less_one(p.family, k, block.size());
                    continue;
                }
            }
#define MEGAGP_CALL(F)                                        \
    q == 0 ? values<T, F>(h, block.size(), level, p.alpha, k) \
           : add_values<T, F>(h, block.size(), p.weight, p.alpha, k)
            MEGAGP_FOR_FAMILY(p.family, MEGAGP_CALL)
#undef MEGAGP_CALL
        }
    }
};

// ---- contraction: rows += K v_col, and if SYM columns += K^T v_row -------------------------
// Every few terms are summed by themselves first: in one chain of 256, float32 would lose more of
// the sums than of the entries.

// Right-hand sides along points: K's vectors times vectors of v. Sums are [t][TILE].
template <class T, bool SYM>
void contract_points(const T* k, const Block& block, const Rhs<T>& vr, const Rhs<T>& vc,
                     int64_t row, int64_t col, T* row_sums, T* col_sums) {
    constexpr int L = LANES<T>, R = CONTRACT_ROWS;
    constexpr int64_t G = GROUP<T>;
    const int64_t rows = block.rows, cols = block.cols, t = vc.t;
    for (int64_t c = 0; c < t; ++c) {
        for (int64_t r = 0; r < rows; r += R) {
            vec<T> acc[R], u[R];
            for (int q = 0; q < R; ++q) {
                acc[q] = vec<T>{};
                if (SYM) u[q] = splat(vr.data[c * vr.stride + row + r + q]);
            }
            const T *v = vc.data + c * vc.stride + col, *kg = k + r * G;
            T* sums = col_sums + c * TILE;
            for (int64_t g = 0; g < cols; g += G, kg += rows * G)
                for (int64_t j = 0; j < G; j += L) {
                    const vec<T> vj = load(v + g + j);
                    vec<T> s = {};
                    for (int q = 0; q < R; ++q) {
                        const vec<T> kv = keep(load(kg + q * G + j));
                        acc[q] = acc[q] + kv * vj;
                        if (SYM) s = s + kv * u[q];
                    }
                    if (SYM) store(sums + g + j, load(sums + g + j) + s);
                }
            add_lanes<R>(acc, row_sums + c * TILE + r);
        }
    }
}

// Right-hand sides along columns of V: K's entries broadcast against vectors of t. Sums are
// [TILE][t].
template <class T, bool SYM>
void contract_columns(const T* k, const Block& block, const Rhs<T>& vr, const Rhs<T>& vc,
                      int64_t row, int64_t col, T* row_sums, T* col_sums) {
    constexpr int L = LANES<T>, R = CONTRACT_ROWS, J = 2;
    constexpr int64_t G = GROUP<T>;
    const int64_t t = vc.stride, rows = block.rows;
    for (int64_t c = 0; c < t; c += L) {
        for (int64_t r = 0; r < rows; r += R) {
            vec<T> acc[R], u[R];
            for (int q = 0; q < R; ++q) {
                acc[q] = vec<T>{};
                if (SYM) u[q] = load(vr.data + (row + r + q) * t + c);
            }
            const T *kr = k + r * G, *vj = vc.data + col * t + c;
            T* sj = col_sums + c;
            for (int64_t j = 0; j < G; j += J) {
                vec<T> v[J], s[J] = {};
                for (int b = 0; b < J; ++b) v[b] = load(vj + b * t);
                for (int q = 0; q < R; ++q)
                    for (int b = 0; b < J; ++b) {
                        const vec<T> kb = splat(kr[q * G + j + b]);
                        acc[q] = acc[q] + kb * v[b];
                        if (SYM) s[b] = s[b] + kb * u[q];
                    }
                if (SYM)
                    for (int b = 0; b < J; ++b) store(sj + b * t, load(sj + b * t) + s[b]);
                vj += J * t;
                sj += J * t;
            }
            for (int q = 0; q < R; ++q) {
                T* sum = row_sums + (r + q) * t + c;
                store(sum, load(sum) + acc[q]);
            }
        }
    }
}

// Contracts tile pair after tile pair and adds to the task's double sums.
template <class T>
struct Contraction {
    const Rhs<T>&vr, &vc;
    Workspace<T>& ws;
    int64_t width;  // doubles per point in row_out and col_out
    Block first;    // of a tile pair

    Contraction(const Rhs<T>& vr, const Rhs<T>& vc, Workspace<T>& ws)
        : vr(vr),
          vc(vc),
          ws(ws),
          width(vc.width()),
          first(vc.along_points ? Block{0, 0, WIDE_ROWS<T>, TILE}
                                : Block{0, 0, NARROW_ROWS<T>, GROUP<T>}) {}

    void begin() {
        for (int64_t s = 0; s < TILE * width; ++s) ws.row_sums[s] = ws.col_sums[s] = 0;
    }
    // i, j: the first points of the tiles
    void add(const T* k, const Block& block, bool sym, int64_t i, int64_t j) {
        const int64_t row = i + block.row, col = j + block.col, step = vc.along_points ? 1 : width;
        T *rows = ws.row_sums + block.row * step, *cols = ws.col_sums + block.col * step;
        if (vc.along_points)
            sym ? contract_points<T, true>(k, block, vr, vc, row, col, rows, cols)
                : contract_points<T, false>(k, block, vr, vc, row, col, rows, cols);
        else
            sym ? contract_columns<T, true>(k, block, vr, vc, row, col, rows, cols)
                : contract_columns<T, false>(k, block, vr, vc, row, col, rows, cols);
    }
    // Adds a tile's sums to `out`; the last column times `centre`, if any, belongs to the others.
    void end(const T* sums, const T* centre, double* out) {
        for (int64_t s = 0; s < TILE * width; ++s) out[s] += static_cast<double>(sums[s]);
        if (!centre) return;
        const int64_t by_point = vc.along_points ? 1 : width,
                      by_column = vc.along_points ? TILE : 1;
        for (int64_t i = 0; i < TILE; ++i, sums += by_point, out += by_point) {
            const double last = static_cast<double>(sums[(vc.t - 1) * by_column]);
            for (int64_t c = 0; c + 1 < vc.t; ++c)
                out[c * by_column] += static_cast<double>(centre[c]) * last;
        }
    }
};

// Visits the tile pairs of panel pair (I, J) that are not culled. `make(i, j)` sets up what serves
// a whole pair; the function it returns leaves in ws.k a block of what is to be contracted.
template <class T, class Body>
bool visit(const Job<T>& job, int64_t I, int64_t J, Workspace<T>& ws, Body make) {
    const Component<T>& first = job.components[0];
    Contraction<T> contraction(job.v_row, job.v_col, ws);
    const int64_t d = job.v_col.t - 1, tile_out = TILE * contraction.width;
    bool any = false;
    for (int64_t a = 0; a < PANEL_TILES; ++a)
        for (int64_t b = 0; b < PANEL_TILES; ++b) {
            const int64_t i = I * PANEL_TILES + a, j = J * PANEL_TILES + b;
            if (i >= first.x.tiles || j >= first.z.tiles || (job.symmetric && j > i)) break;
            if (culled(job, i, j)) continue;
            any = true;
            const bool sym = job.symmetric ? i != j : job.both_sides;
            contraction.begin();
            const auto evaluate = make(i, j);
            Block at = contraction.first;
            for (at.col = 0; at.col < TILE; at.col += at.cols)
                for (at.row = 0; at.row < TILE; at.row += at.rows) {
                    evaluate(at);
                    if (job.v_col.t) contraction.add(ws.k, at, sym, i * TILE, j * TILE);
                }
            const T* row_centre = job.row_centres ? job.row_centres + i * d : nullptr;
            const T* col_centre = job.col_centres ? job.col_centres + j * d : nullptr;
            contraction.end(ws.row_sums, col_centre, ws.row_out + a * tile_out);
            if (sym) contraction.end(ws.col_sums, row_centre, ws.col_out + b * tile_out);
        }
    return any;
}

// The runs of memory, one for each group of columns, that a block has in a kept tile pair and in k.
template <class T, class Move>
void each_run(const Block& block, T* kept, T* k, Move move) {
    constexpr int64_t G = GROUP<T>;
    for (int64_t g = 0; g < block.cols; g += G)
        move(kept + ((block.col + g) / G * TILE + block.row) * G, k + g * block.rows,
             block.rows * G * sizeof(T));
}

// In blocks of one shape, whatever the product: entries depend on it in their last bits.
template <class T>
void fill(const KernelTile<T>& tile, Workspace<T>& ws, T* kept) {
    for (Block at{0, 0, WIDE_ROWS<T>, TILE}; at.row < TILE; at.row += at.rows) {
        tile.evaluate(at, ws.h, ws.k);
        each_run(at, kept, ws.k, [](T* to, const T* k, size_t n) { __builtin_memcpy(to, k, n); });
    }
}

template <class T>
bool matmul(const Job<T>& job, int64_t I, int64_t J, Workspace<T>& ws) {
    const int64_t columns = job.components[0].z.tiles;
    return visit(job, I, J, ws, [&](int64_t i, int64_t j) {
        const KernelTile<T> tile(job, i, j);
        const int64_t at = job.symmetric ? i * (i + 1) / 2 + j : i * columns + j;
        T* kept = job.kept.entries ? job.kept.entries + at * TILE * TILE : nullptr;
        if (kept && !job.kept.filled[at]) {
            fill(tile, ws, kept);
            job.kept.filled[at] = true;
        }
        return [&, kept, tile](const Block& block) {
            if (kept)
                each_run(block, kept, ws.k,
                         [](const T* from, T* k, size_t n) { __builtin_memcpy(k, from, n); });
            else
                tile.evaluate(block, ws.h, ws.k);
        };
    });
}

// From h and B: adds up scalars, leaves H = B dk/dh.
template <class T, Family F>
void gradient_values(const T* h, const T* b, const Block& block, T alpha, double factor, T* out,
                     double* scalars) {
    constexpr int L = LANES<T>;
    for (int64_t s = 0; s < block.size(); s += TILE) {
        vec<T> bk = {}, ba = {}, bh = {};
        for (int64_t j = s; j < s + TILE; j += L) {
            const vec<T> hv = load(h + j), bv = -load(b + j);  // the dot stage leaves -B
            const Slope<T> f = slope<F, T>(hv, alpha);
            bk = bk + bv * f.value;
            if constexpr (F == Family::rational_quadratic) ba = ba + bv * f.by_alpha;
            const vec<T> by_h = bv * f.by_h;
            bh = bh + by_h * hv;
            store(out + j, by_h);
        }
        scalars[0] += factor * hsum<T>(bk);
        scalars[1] += factor * hsum<T>(ba);
        scalars[2] += factor * hsum<T>(bh);
    }
}

template <class T>
bool gradient(const Job<T>& job, int q, int64_t I, int64_t J, Workspace<T>& ws) {
    const Component<T>& p = job.components[q];
    return visit(job, I, J, ws, [&](int64_t i, int64_t j) {
        const bool diagonal = job.symmetric && i == j;
        const T* left = job.left + i * TILE * job.inner;
        const T* right = job.right + j * TILE * job.inner;
        return [&, diagonal, left, right, pair = TilePair<T>(job, p, i, j)](const Block& block) {
            pair.h(block, ws.h);
            const T* no_norm = nullptr;
            pairs<T, Form::dot, 0>(packed_row(left, job.inner, block.row),
                                   packed_row(right, job.inner, block.col), no_norm, no_norm,
                                   job.inner, T(0), block, ws.b);
            // A diagonal tile holds each pair twice, and B is already U W' + W U'.
            const double factor = diagonal ? 0.5 : 1.0;
#define MEGAGP_CALL(F) gradient_values<T, F>(ws.h, ws.b, block, p.alpha, factor, ws.k, ws.scalars)
            MEGAGP_FOR_FAMILY(p.family, MEGAGP_CALL)
#undef MEGAGP_CALL
            // A point's distance to itself does not move: exactly 0, not what float sums leave.
            if (diagonal && p.family != Family::linear) set_diagonal(block, T(0), ws.k);
        };
    });
}

template <class T>
void block(const Job<T>& job, int64_t i, int64_t j, int64_t rows, int64_t cols, T* out, int64_t ld,
           Workspace<T>& ws) {
    const KernelTile<T> tile(job, i, j);
    for (Block at{0, 0, WIDE_ROWS<T>, TILE}; at.row < rows; at.row += at.rows) {
        tile.evaluate(at, ws.h, ws.k);
        for (int64_t r = 0; r < at.rows && at.row + r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c)
                out[(at.row + r) * ld + c] = job.outputscale * ws.k[at.at<T>(r, c)];
    }
}
