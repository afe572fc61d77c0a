// Packs points, hands panel pairs to threads, adds up their results.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ops.h"

namespace megagp {

// Features of one stationary (or linear, or constant) kernel at both point sets.
struct ComponentInput {
    Family family;
    double outputscale;
    double alpha;
    int64_t d;
    const double* x;  // n x d, row-major
    const double* z;  // m x d, or null: Z is X
};

struct CullingStatistics {
    int64_t tile_pairs, culled_pairs;
    double bound;  // at least the infinity norm of what is skipped, hence the spectral norm
};

// Where the panel pair (I, J) lies in [0, 2^32). Multiples of 1/g and 1/g^2, g^3 = g + 1, are
// spread evenly over the unit interval, along every row, diagonal or band of pairs too: a share
// gets its part of the dear pairs, of the cheap ones on the diagonal, and of those that culling
// leaves. In whole numbers, so that every machine agrees on who owns what.
inline int64_t share_place(int64_t I, int64_t J) {
    const uint64_t x = static_cast<uint64_t>(I) * 0xC13FA9A902A6328Fu +
                       static_cast<uint64_t>(J) * 0x91E10DA5C79E7B1Cu;
    return static_cast<int64_t>(x >> 32);
}

struct Run {
    int threads;
    int64_t share_start, share_stop;    // the part of [0, 2^32) whose panel pairs are computed
    std::function<bool()> interrupted;  // called now and then on the calling thread; true stops

    bool owns(int64_t I, int64_t J) const {
        const int64_t place = share_place(I, J);
        return share_start <= place && place < share_stop;
    }
};

// By what features are multiplied so that kernels are the functions of h in radial.h.
double feature_scale(Family family, double alpha);

// Thrown when `Run::interrupted` said so.
struct Interrupted {};

template <class T>
class AlignedArray {
  public:
    AlignedArray() = default;
    explicit AlignedArray(int64_t size, bool zeros = true);
    T* data() const { return data_.get(); }
    int64_t size() const { return size_; }

  private:
    struct Free {
        void operator()(T* p) const;
    };
    std::unique_ptr<T[], Free> data_;
    int64_t size_ = 0;
};

template <class T>
struct PackedPoints {
    AlignedArray<T> packed, half_norm, lo, hi, norm_max;
    Points<T> view;
};

// K = k(X, Z) at fixed points and hyperparameters.
template <class T>
class Plan {
  public:
    Plan(const InstructionSet& isa, const std::vector<ComponentInput>& inputs, int64_t n, int64_t m,
         bool symmetric, double cull_tolerance);
    Plan(const Plan&) = delete;
    Plan(Plan&&) = default;

    // out (n x t) = K v, v m x t, both row-major.
    void matmul(const double* v, int64_t t, double* out, const Run& run) const;
    // For each component: gradient of sum(u * (K w)) by its features, outputscale and alpha, and by
    // the logarithm of h (all distances as one). gx[p] is n x d, or null if it is not wanted, gz[p]
    // m x d (none if symmetric: gx holds the total), scalars has the other three.
    void gradient(const double* u, const double* w, int64_t t, const std::vector<double*>& gx,
                  const std::vector<double*>& gz, std::vector<double>& scalars,
                  const Run& run) const;
    // out (n x m, row-major) = K.
    void block(T* out, const Run& run) const;

    // The bytes that `keep` takes, at most: pairs that are culled, or of another share, take none.
    int64_t bytes_to_keep() const;
    // From now on products keep the entries that they evaluate. They wait for each other.
    void keep();

    CullingStatistics culling() const;
    // The largest |entry| that products add up, in units of the largest outputscale: 1, or less
    // where it is 1 - k of that component that they add up.
    double summed() const { return less_one_ ? summed_ : 1.0; }

  private:
    Job<T> job() const;
    void choose_entries();
    void set_cutoffs(const std::vector<ComponentInput>& inputs, double level);
    int64_t task_count() const;
    int64_t tile_pairs() const;

    struct Kept {
        AlignedArray<T> entries;
        std::unique_ptr<bool[]> filled;
        std::mutex products;
    };

    const InstructionSet& isa_;
    const Ops<T>& ops_;
    int64_t n_, m_;
    bool symmetric_;
    int lead_;               // the component of largest outputscale
    double outputscale_;     // and that outputscale: K is summed in units of it
    double level_ = 0;       // k - level of that component is summed
    bool less_one_ = false;  // and evaluated as such: level 1
    double summed_ = 1;
    std::vector<PackedPoints<T>> points_;
    std::vector<Component<T>> components_;
    std::vector<double> scales_;  // features are multiplied by this before packing
    std::unique_ptr<Kept> kept_;
};

}  // namespace megagp
