// K V for a radial kernel in up to three dimensions in O(n): near pairs are evaluated, far ones go
// through polynomials (a fast multipole method).
//
// Cells are cubes of side s_l = s_0 2^-l. With o the offset of cell A from cell B in sides, x = a
// + s u / 2 in A and z = b + s w / 2 in B, u and w in [-1, 1]^d,
//
//     k(|x - z|) = sum over |b|, |c| <= p of T_b(u) M_o[b, c] T_c(w)   up to a known error,
//
// T products of Chebyshev polynomials of total degree at most p. M_o depends on the level and on o
// alone; tables of it come from Python (engines/far_field) with their errors. A product is
//
//     moments of v in every cell (exact from children to parents), translated by M_o, added
//     up in the cell (exact from parents to children), evaluated at the points;
//
// and the entries of K between cells for whose offset there is no table, directly.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "driver.h"

namespace megagp {

struct FarInput {
    Family family;
    double outputscale, alpha;
    int d;
    int64_t n;
    const double* x;  // n x d features: distance is Euclidean, in lengthscales
    std::array<double, 3> origin;
    double side;  // of the root
    int max_level;
    int64_t leaf;   // cells of more points can be split,
    double direct;  // and pairs of cells with more entries than this are, if they have no table
};

// M of one level for offsets with no negative component; others follow by reflection.
struct FarLevel {
    int64_t count;
    const int32_t* offsets;                 // [count][3]
    const double* errors;                   // largest |error| of an entry of K, outputscale apart
    std::vector<const float*> left, right;  // M = L R': [rank][terms] and [terms][rank]
    std::vector<int64_t> terms, ranks;
};

struct FarStatistics {
    double evaluations;   // of entries of K, for both sides at once but within a cell
    double translations;  // multiply-adds for one right-hand side
    double cells;
    double near_entries, culled_entries;  // of the n^2
    double culling_bound;
    double error;  // largest of an entry, and
    double bound;  // of the infinity norm (hence the spectral norm) of all that goes far
};

class FarPlan {
  public:
    FarPlan(const InstructionSet& isa, const FarInput& input);
    FarPlan(const FarPlan&) = delete;
    FarPlan(FarPlan&&) = default;

    int depth() const { return static_cast<int>(level_start_.size()) - 1; }  // levels
    // Decides for all pairs of cells. Entries at distances above `cutoff` are at most `level`
    // (outputscale apart) and left out.
    void link(int degree, const std::vector<FarLevel>& tables, double cutoff, double level);
    FarStatistics statistics() const { return statistics_; }
    // out (n x t) = K v, both row-major.
    void matmul(const double* v, int64_t t, double* out, const Run& run) const;

  private:
    struct Cell {
        std::array<int32_t, 3> at;
        int64_t begin, end;  // points
        int32_t first_child, children, parent;
        int64_t size() const { return end - begin; }
    };
    struct Table {
        int64_t terms, rank;
        int64_t stride, rank_stride;  // padded
        int64_t left, right;          // where in `data`
        double error;
        double work() const { return static_cast<double>(terms * rank_stride + rank * stride); }
    };
    struct Level {
        int reach = -1;
        std::vector<int32_t> index;  // [(reach + 1)^3]: the table, or -1
        std::vector<Table> tables;
        AlignedArray<float> data;
    };
    struct Translation {
        int32_t target, source;
        int16_t table;
        int8_t signs;  // bit i: component i of the offset is negative
    };
    struct Range {
        int64_t begin, end;
    };
    struct Near {
        Range rows, cols;
        bool same;
    };
    // The move from a cell to its parent or back along one dimension, a sparse matrix by rows.
    struct Shift {
        std::vector<int32_t> start, column;
        std::vector<double> weight;
    };
    struct Columns;  // right-hand sides in the order of the points here

    void sort_points(const FarInput& input);
    void prune(std::vector<std::vector<Translation>>& found);
    void set_local();
    void split_cells(const FarInput& input, const std::vector<uint64_t>& keys);
    void set_basis(int degree);
    void visit(int level, int32_t a, int32_t b, double cutoff, double least,
               std::vector<std::vector<Translation>>& found, std::vector<double>& loss);
    void add_near(const Cell& a, const Cell& b);
    void near_field(const Columns& v, const Run& run, class ReproducibleSums& sums) const;
    void far_field(const Columns& v, int64_t first, int64_t t, const Run& run, double* out) const;
    void translate(int level, int64_t chunk, const float* moments, int64_t t, const Run& run,
                   float* room, double* local) const;
    void move(const double* from, double* to, double* room, const Cell& child, bool up) const;

    const InstructionSet& isa_;
    int64_t n_;
    int d_;
    Family family_;
    double outputscale_, alpha_, side_, scale_, direct_;
    std::vector<int64_t> order_;
    std::vector<double> coordinates_;  // [d][n], scaled for radial.h
    std::vector<double> local_;        // [3][size] of each leaf at 3 begin: u
    std::vector<Cell> cells_;
    std::vector<int64_t> level_start_;

    int degree_ = 0;
    int64_t terms_ = 0, stride_ = 0;
    std::vector<int32_t> powers_;                                // [3][terms]
    std::vector<float> signs_;                                   // [8][stride]
    std::array<std::array<std::array<Shift, 2>, 2>, 3> shifts_;  // [dimension][half][up, down]
    std::vector<Level> levels_;
    std::vector<Translation> translations_;          // by level, chunk of targets and table
    std::vector<std::vector<int64_t>> chunk_start_;  // [level][chunk]
    std::vector<Near> near_;
    std::vector<int64_t> near_start_;  // of each run with the same rows
    FarStatistics statistics_{};
};

}  // namespace megagp
