// What the driver and the instruction-set-specific code agree on: plain structs, no behaviour.
//
// Points are scaled so that a kernel is a function of h alone (see radial.h) and packed in
// groups that fill four cache lines, [group][dimension][point in group], so that one stretch of
// memory serves as vectors (a run of points) and as broadcasts (one point).
#pragma once
#include <cstdint>

#include "far_ops.h"
#include "joint_ops.h"
#include "vecchia_ops.h"

namespace megagp {

constexpr int64_t TILE = 256;       // points per tile: sums within it are in T, beyond it in double
constexpr int64_t PANEL_TILES = 4;  // tiles per panel
constexpr int64_t PANEL = TILE * PANEL_TILES;  // points per panel: a task is a pair of panels
constexpr int DIFFERENCE_MAX_D = 4;            // up to here h is summed from differences

// Matérn-1/2 is not taken to be steeper than at this distance (in lengthscales / log2(e)): sums are
// on a grid as coarse as the steepest slope makes it, and what nearer pairs lose is less than this.
constexpr double STEEPEST = 1e-9;

// Up to this b (radial.h) between any two points, float32 products contract k - 1.
constexpr double LESS_ONE_REACH = 1;

template <class T>
constexpr int64_t GROUP = 256 / sizeof(T);  // points per packed group
template <class T>
constexpr int64_t BLOCK = 16384 / sizeof(T);  // entries of K held in L1 at a time, at most

enum class Family : int {
    matern12 = 0,
    matern32 = 1,
    matern52 = 2,
    rbf = 3,
    rational_quadratic = 4,
    constant = 5,
    linear = 6,
};

template <class T>
struct Points {
    const T* packed;     // [tiles * TILE / GROUP][d][GROUP]
    const T* half_norm;  // [tiles * TILE]: |x|^2 / 2 (product form), else unused
    const T* lo;         // [tiles][d]: the box of each tile
    const T* hi;
    const T* norm_max;  // [tiles]: largest half norm in each tile
    int64_t tiles;
    int64_t n;
    int d;
};

constexpr int MAX_COMPONENTS = 32;
constexpr int NEAR_LEVELS = 256;

template <class T>
struct Component {
    Points<T> x, z;
    Family family;
    bool wide;         // h may overflow: keep it finite
    bool differences;  // h = sum (x - z)^2; else h = |x|^2/2 + |z|^2/2 - x.z
    T weight;          // outputscale, in units of the largest component's
    T alpha;           // rational quadratic
    T cutoff;          // a tile pair whose smallest h exceeds this may be skipped
    // Product form cancels for near pairs: h below near[level] is computed again from
    // differences; level = how large the norms of the tile pair are, in powers of 2^(1/4).
    T near[NEAR_LEVELS];
};

// Right-hand sides, packed in one of two ways.
template <class T>
struct Rhs {
    const T* data;
    int64_t t;       // columns
    int64_t stride;  // along_points: points (data[c * stride + i]); else padded t (data[i * stride
                     // + c])
    bool along_points;
    int64_t width() const { return along_points ? t : stride; }
    // Where sums for these right-hand sides keep that of point i and column c.
    int64_t sum_at(int64_t i, int64_t c) const {
        return along_points ? (i / TILE * t + c) * TILE + i % TILE : i * stride + c;
    }
};

// Tile pairs as products contract them, kept for the next product: [pair][group of columns][row of
// tile][column in group]. No room: none is kept.
template <class T>
struct KeptTiles {
    T* entries;
    bool* filled;  // [pair]
};

template <class T>
struct Job {
    const Component<T>* components;
    int count;
    int lead;         // the component of largest outputscale
    T outputscale;    // and its outputscale, the unit in which K is summed
    T level;          // k - level of that component is contracted in place of k
    bool less_one;    // level is 1, and k - 1 evaluated as such (radial.h)
    bool symmetric;   // visit the lower triangle of tile pairs, each for both sides
    bool both_sides;  // not symmetric, but contract for the columns as well
    // product: out += K v
    Rhs<T> v_row, v_col;  // v_row: at the row points (symmetric only), v_col: at the column points
    KeptTiles<T> kept;
    // gradient: B = left . right over 2t or t inner columns, packed like points
    const T* left;   // [row groups][inner][GROUP]
    const T* right;  // [column groups][inner][GROUP]
    int inner;
    // gradient: v holds features relative to these, [tiles][t - 1], and ones, or nothing at all if
    // derivatives by features are not wanted; null for a product
    const T* row_centres;
    const T* col_centres;
};

// Of a gradient: sum B k, sum B dk/dalpha, sum B h dk/dh.
constexpr int GRADIENT_SCALARS = 3;

// One thread's room, allocated by the driver; sizes in driver.cpp.
template <class T>
struct Workspace {
    T* h;             // BLOCK
    T* k;             // BLOCK
    T* b;             // BLOCK
    T* row_sums;      // TILE x t: of one tile pair
    T* col_sums;      // TILE x t
    double* row_out;  // PANEL x t: contribution of this task to its rows, tile by tile
    double* col_out;  // PANEL x t: and, if symmetric, to its columns
    double scalars[GRADIENT_SCALARS];
};

template <class T>
struct Ops {
    // Adds the product of panel pair (I, J) into ws.row_out and ws.col_out.
    // False if every tile pair was culled and nothing was added.
    bool (*matmul)(const Job<T>&, int64_t I, int64_t J, Workspace<T>&);
    // The same for the gradient of component p: adds up scalars, and contracts H = B * dk/dh with
    // [features, 1] where v holds those.
    bool (*gradient)(const Job<T>&, int p, int64_t I, int64_t J, Workspace<T>&);
    // Writes K of tile pair (i, j) to out (row stride ld), rows x cols of it.
    void (*block)(const Job<T>&, int64_t i, int64_t j, int64_t rows, int64_t cols, T* out,
                  int64_t ld, Workspace<T>&);
};

struct InstructionSet {
    const char* name;
    int lanes32;  // float32 per vector
    Ops<float> f32;
    Ops<double> f64;
    // hi + lo += values, each split on two grids (reproducible_sum.h); values = 0.
    void (*add_split)(double* values, int64_t count, double grid_hi, double grid_lo, double* hi,
                      double* lo);
    JointOps joint32, joint64;    // by the precision of the factorisation
    VecchiaOps<float> vecchia32;  // by the precision of L
    VecchiaOps<double> vecchia64;
    FarOps far;
    double (*fma_rate)(double seconds);  // float32 multiply-adds per second of one thread, measured
};

// The instruction sets that were compiled and that this machine can run, best first.
int instruction_sets(const InstructionSet* out[4]);

}  // namespace megagp
