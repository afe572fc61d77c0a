#include "driver.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

#include "parallel.h"
#include "reproducible_sum.h"

namespace megagp {

namespace {

constexpr double LOG2E = 1.44269504088896340736;
// Entries are summed relative to a multiple of 1 / LEVELS.
constexpr double LEVELS = 16;

template <class T>
double largest_half_norm(const Points<T>& points) {
    double found = 0;
    for (int64_t s = 0; s < points.tiles; ++s)
        found = std::max(found, static_cast<double>(points.norm_max[s]));
    return found;
}

// A bound on |k|, in units of the outputscale.
template <class T>
double largest_entry(const Component<T>& p) {
    if (p.family != Family::linear) return 1;
    return 2.01 * std::sqrt(largest_half_norm(p.x) * largest_half_norm(p.z));
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
const Ops<T>& ops_of(const InstructionSet& isa) {
    if constexpr (sizeof(T) == 4)
        return isa.f32;
    else
        return isa.f64;
}

bool cancels(Family f) { return f != Family::constant && f != Family::linear; }

// k(h) without outputscale, in double; decreasing in h.
double kernel_of(Family f, double h, double alpha) {
    const double b = std::sqrt(h) / LOG2E;
    switch (f) {
        case Family::matern12:
            return std::exp(-b);
        case Family::matern32:
            return (1 + b) * std::exp(-b);
        case Family::matern52:
            return (1 + b + b * b / 3) * std::exp(-b);
        case Family::rbf:
            return std::exp2(-h);
        case Family::rational_quadratic:
            return std::pow(1 + h, -alpha);
        case Family::constant:
        case Family::linear:
            return 1;
    }
    return 1;
}

// |dk/dh|, decreasing in h.
double slope_of(Family f, double h, double alpha) {
    const double b = std::sqrt(h) / LOG2E, l = 1 / LOG2E;
    switch (f) {
        case Family::matern12:
            return 0.5 * l * l * std::exp(-b) / b;
        case Family::matern32:
            return 0.5 * l * l * std::exp(-b);
        case Family::matern52:
            return l * l * (1 + b) * std::exp(-b) / 6;
        case Family::rbf:
            return l * std::exp2(-h);
        case Family::rational_quadratic:
            return alpha * std::pow(1 + h, -alpha - 1);
        case Family::constant:
        case Family::linear:
            return 0;
    }
    return 0;
}

// Smallest h (up to a factor 2^(1/4)) from which a decreasing function is at most `level`; 0 if it
// always is, infinity if it never is in the range of floats.
template <class Function>
double first_at_most(Function f, double level) {
    double low = 1e-28, high = 1e30;
    if (f(low) <= level) return 0;
    if (f(high) > level) return std::numeric_limits<double>::infinity();
    while (high > 1.2 * low) {
        const double middle = std::sqrt(low * high);
        (f(middle) <= level ? high : low) = middle;
    }
    return high;
}

double widest(const ComponentInput& in, int64_t n, int64_t m) {  // the largest |feature|
    double top = 0;
    for (int64_t s = 0; s < n * in.d; ++s) top = std::max(top, std::fabs(in.x[s]));
    if (in.z)
        for (int64_t s = 0; s < m * in.d; ++s) top = std::max(top, std::fabs(in.z[s]));
    return top;
}

template <class T>
PackedPoints<T> pack(const double* x, int64_t n, int d, const std::vector<double>& centre,
                     double scale) {
    constexpr int64_t G = GROUP<T>;
    PackedPoints<T> p;
    const int64_t tiles = ceil_div(n, TILE), padded = tiles * TILE;
    p.packed = AlignedArray<T>(padded * d);
    p.half_norm = AlignedArray<T>(padded);
    p.lo = AlignedArray<T>(tiles * d);
    p.hi = AlignedArray<T>(tiles * d);
    p.norm_max = AlignedArray<T>(tiles);
    for (int64_t tile = 0; tile < tiles; ++tile) {
        T *lo = p.lo.data() + tile * d, *hi = p.hi.data() + tile * d,
          *top = p.norm_max.data() + tile;
        std::fill(lo, lo + d, std::numeric_limits<T>::max());
        std::fill(hi, hi + d, std::numeric_limits<T>::lowest());
        for (int64_t i = tile * TILE; i < (tile + 1) * TILE; ++i) {
            const double* row = x + std::min(i, n - 1) * d;  // padding repeats the last point
            double norm = 0;
            for (int c = 0; c < d; ++c) {
                const T v = static_cast<T>((row[c] - centre[c]) * scale);
                if (!std::isfinite(v))
                    throw std::invalid_argument(
                        "X: points in units of the lengthscale are beyond the range of the dtype; "
                        "use a longer lengthscale or float64");
                p.packed.data()[(i / G) * G * d + c * G + i % G] = v;
                lo[c] = std::min(lo[c], v);
                hi[c] = std::max(hi[c], v);
                norm += static_cast<double>(v) * v;
            }
            p.half_norm.data()[i] = static_cast<T>(
                std::min(0.5 * norm, 0.5 * static_cast<double>(std::numeric_limits<T>::max())));
            *top = std::max(*top, p.half_norm.data()[i]);
        }
    }
    p.view = {p.packed.data(),
              p.half_norm.data(),
              p.lo.data(),
              p.hi.data(),
              p.norm_max.data(),
              tiles,
              n,
              d};
    return p;
}

template <class T>
double feature(const Points<T>& points, int64_t i, int c) {
    constexpr int64_t G = GROUP<T>;
    return static_cast<double>(points.packed[(i / G) * G * points.d + c * G + i % G]);
}

// k averaged over pairs that are spread evenly over all; the same on every machine.
template <class T>
double mean_entry(const Component<T>& p) {
    constexpr int64_t PAIRS = 4096;
    const auto spread = [](int64_t s, uint64_t step, int64_t n) {
        return static_cast<int64_t>(
            (static_cast<uint64_t>(s) * step >> 32) * static_cast<uint64_t>(n) >> 32);
    };
    double total = 0;
    for (int64_t s = 0; s < PAIRS; ++s) {
        const int64_t i = spread(s, 0xC13FA9A902A6328Fu, p.x.n);
        const int64_t j = spread(s, 0x91E10DA5C79E7B1Cu, p.z.n);
        double h = 0;
        for (int c = 0; c < p.x.d; ++c) {
            const double side = feature(p.x, i, c) - feature(p.z, j, c);
            h += (p.differences ? 1.0 : 0.5) * side * side;
        }
        total += kernel_of(p.family, h, static_cast<double>(p.alpha));
    }
    return total / PAIRS;
}

// The mean of each tile's points: [tiles][d].
template <class T>
std::vector<T> tile_centres(const Points<T>& points) {
    std::vector<double> sums(points.tiles * points.d, 0.0);
    for (int64_t i = 0; i < points.tiles * TILE; ++i)
        for (int c = 0; c < points.d; ++c)
            sums[i / TILE * points.d + c] += feature(points, i, c) / TILE;
    return std::vector<T>(sums.begin(), sums.end());
}

// e with |v| < 2^e in each column, so that scaling by 2^-e makes its size irrelevant; 0 for zeros.
std::vector<int> column_exponents(const double* v, int64_t m, int64_t t) {
    std::vector<double> top(t, 0.0);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t c = 0; c < t; ++c) top[c] = std::max(top[c], std::fabs(v[i * t + c]));
    std::vector<int> exponents(t, 0);
    for (int64_t c = 0; c < t; ++c) std::frexp(top[c], &exponents[c]);
    return exponents;
}

// x 2^e, by a factor where there is one: ldexp on every entry of V would take longer than packing
// it.
class PowerOfTwo {
  public:
    explicit PowerOfTwo(int e) : e_(e), factor_(std::ldexp(1.0, e)), plain_(std::abs(e) < 1000) {}
    double operator()(double x) const { return plain_ ? x * factor_ : std::ldexp(x, e_); }

  private:
    int e_;
    double factor_;
    bool plain_;
};

template <class T>
struct PackedRhs {
    AlignedArray<T> data;
    Rhs<T> view;

    // Room for `points` (padded) x t, zero. Few columns go along the points; along t go as many as
    // nearly fill a vector.
    PackedRhs(int64_t points, int64_t t, int lanes) {
        const bool along = t * 8 < lanes * 7;
        const int64_t stride = along ? points : ceil_div(t, lanes) * lanes;
        data = AlignedArray<T>(along ? stride * t : points * stride);
        view = {data.data(), t, stride, along};
    }
    T& at(int64_t i, int64_t c) {
        return data.data()[view.along_points ? c * view.stride + i : i * view.stride + c];
    }
};

template <class T>
class Workspaces {
  public:
    Workspaces(int threads, int64_t width, int64_t tasks)
        : ws_(std::min<int64_t>(threads, std::max<int64_t>(tasks, 1))) {
        for (size_t k = 0; k < ws_.size(); ++k) {
            small_.emplace_back(3 * BLOCK<T> + 2 * TILE * width);
            out_.emplace_back(2 * PANEL * width);
            T* p = small_.back().data();
            Workspace<T>& w = ws_[k];
            w.h = p;
            w.k = p + BLOCK<T>;
            w.b = p + 2 * BLOCK<T>;
            w.row_sums = p + 3 * BLOCK<T>;
            w.col_sums = w.row_sums + TILE * width;
            w.row_out = out_.back().data();
            w.col_out = w.row_out + PANEL * width;
            for (double& scalar : w.scalars) scalar = 0;
        }
    }
    Workspace<T>& operator[](int thread) { return ws_[thread]; }

  private:
    std::vector<Workspace<T>> ws_;
    std::vector<AlignedArray<T>> small_;
    std::vector<AlignedArray<double>> out_;
};

void panel_pair(int64_t task, bool symmetric, int64_t column_panels, int64_t* I, int64_t* J) {
    if (!symmetric) {
        *I = task / column_panels;
        *J = task % column_panels;
        return;
    }
    int64_t i = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(task) + 1) - 1) / 2);
    while (i * (i + 1) / 2 > task) --i;
    while ((i + 1) * (i + 2) / 2 <= task) ++i;
    *I = i;
    *J = task - i * (i + 1) / 2;
}

}  // namespace

double feature_scale(Family f, double alpha) {  // see radial.h
    switch (f) {
        case Family::matern12:
            return LOG2E;
        case Family::matern32:
            return std::sqrt(3.0) * LOG2E;
        case Family::matern52:
            return std::sqrt(5.0) * LOG2E;
        case Family::rbf:
            return std::sqrt(0.5 * LOG2E);
        case Family::rational_quadratic:
            return 1 / std::sqrt(2 * alpha);
        case Family::constant:
        case Family::linear:
            return 1;
    }
    return 1;
}

template <class T>
AlignedArray<T>::AlignedArray(int64_t size, bool zeros) : size_(size) {
    const size_t bytes = (static_cast<size_t>(size) * sizeof(T) + 127) / 64 * 64;
    void* p = std::aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    if (zeros) std::memset(p, 0, bytes);
    data_.reset(static_cast<T*>(p));
}

template <class T>
void AlignedArray<T>::Free::operator()(T* p) const {
    std::free(p);
}

template <class T>
Plan<T>::Plan(const InstructionSet& isa, const std::vector<ComponentInput>& inputs, int64_t n,
              int64_t m, bool symmetric, double cull_tolerance)
    : isa_(isa), ops_(ops_of<T>(isa)), n_(n), m_(m), symmetric_(symmetric), lead_(0) {
    for (size_t p = 0; p < inputs.size(); ++p)
        if (inputs[p].outputscale > inputs[lead_].outputscale) lead_ = static_cast<int>(p);
    outputscale_ = inputs[lead_].outputscale;
    const double roundoff = 0.5 * static_cast<double>(std::numeric_limits<T>::epsilon());
    const double accuracy = sizeof(T) == 4 ? 1e-6 : 1e-13;
    points_.reserve(2 * inputs.size());
    for (const ComponentInput& in : inputs) {
        Component<T> p{};
        const int d = static_cast<int>(in.d);
        p.family = in.family;
        p.wide = cancels(in.family) && widest(in, n, m) > (sizeof(T) == 4 ? 1e15 : 1e150);
        p.differences = cancels(in.family) && (d <= DIFFERENCE_MAX_D || p.wide);
        p.weight = static_cast<T>(in.outputscale / outputscale_);
        p.alpha = static_cast<T>(in.alpha);
        double scale = feature_scale(in.family, in.alpha);
        if (cancels(in.family) && !p.differences) scale *= std::sqrt(2.0);
        std::vector<double> centre(d, 0.0);
        if (cancels(in.family)) {
            for (int64_t i = 0; i < n; ++i)
                for (int c = 0; c < d; ++c) centre[c] += in.x[i * d + c] / static_cast<double>(n);
        }
        points_.push_back(pack<T>(in.x, n, d, centre, scale));
        p.x = points_.back().view;
        if (!symmetric) points_.push_back(pack<T>(in.z, m, d, centre, scale));
        p.z = points_.back().view;

        for (int e = 0; e < NEAR_LEVELS; ++e) {
            // d roundings of random sign, each of a partial sum between h and the norms
            const double error = roundoff * (1 + 0.3 * std::sqrt(static_cast<double>(d))) *
                                 std::exp2(0.25 * (e - NEAR_LEVELS / 2));
            const double h = first_at_most(
                [&](double s) { return error * slope_of(in.family, s, in.alpha); }, accuracy);
            // At least the error itself, so that coinciding points are at distance 0 exactly; and
            // every pair where the norms are beyond the last level.
            const double all = 0.25 * static_cast<double>(std::numeric_limits<T>::max());
            p.near[e] = static_cast<T>(e + 1 < NEAR_LEVELS ? std::min(h + 4 * error, all) : all);
        }
        components_.push_back(p);
        scales_.push_back(scale);
    }

    // The norm of what is skipped is at most sqrt(n m) times its largest entry (with padding),
    // which is pessimistic: most of what is skipped is far smaller. So a level 16 times as high is
    // tried, and kept if the bound summed over all tile pairs stays within the tolerance.
    const double tiles =
        static_cast<double>(components_[0].x.tiles) * static_cast<double>(components_[0].z.tiles);
    const double level =
        cull_tolerance / (TILE * std::sqrt(tiles)) / static_cast<double>(inputs.size());
    set_cutoffs(inputs, 16 * level);
    if (cull_tolerance == 0 || tiles > 4e7 || culling().bound > cull_tolerance)
        set_cutoffs(inputs, level);
    choose_entries();
}

// The component of largest outputscale s is summed as s (c 1 1' + (k - c)), where no tile pair is
// skipped: entries that differ little from c leave less roundoff in the sums, and solves live on
// what tells entries apart. Where all are next to 1, c is 1, and k - 1 has digits of its own
// (radial.h); else c is about their mean.
template <class T>
void Plan<T>::choose_entries() {
    const Component<T>& p = components_[lead_];
    if (sizeof(T) != 4 || !cancels(p.family)) return;
    // The diagonal of the box around all points.
    double h = 0;
    for (int c = 0; c < p.x.d; ++c) {
        T lo = p.x.lo[c], hi = p.x.hi[c];
        for (const Points<T>* points : {&p.x, &p.z})
            for (int64_t i = 0; i < points->tiles; ++i) {
                lo = std::min(lo, points->lo[i * p.x.d + c]);
                hi = std::max(hi, points->hi[i * p.x.d + c]);
            }
        const double side = static_cast<double>(hi) - static_cast<double>(lo);
        h += side * side;
    }
    if (!p.differences) {
        h *= 0.5;
        // No two are further apart than the furthest are from the centre.
        const double furthest =
            std::sqrt(largest_half_norm(p.x)) + std::sqrt(largest_half_norm(p.z));
        h = std::min(h, furthest * furthest);
    }
    const double b = (p.family == Family::rbf ? h : std::sqrt(h)) / LOG2E;
    summed_ = 1 - kernel_of(p.family, h, 1);
    for (const Component<T>& other : components_)
        if (&other != &p) summed_ += static_cast<double>(other.weight) * largest_entry(other);
    less_one_ = p.family != Family::rational_quadratic && b <= LESS_ONE_REACH &&
                h < static_cast<double>(p.cutoff) && summed_ < 1;
    if (less_one_)
        level_ = 1;
    else if (culling().culled_pairs == 0)
        level_ = std::round(LEVELS * mean_entry(p)) / LEVELS;
}

template <class T>
void Plan<T>::set_cutoffs(const std::vector<ComponentInput>& inputs, double level) {
    for (size_t p = 0; p < inputs.size(); ++p) {
        const ComponentInput& in = inputs[p];
        const auto k = [&](double h) { return in.outputscale * kernel_of(in.family, h, in.alpha); };
        const double cutoff = level > 0 && cancels(in.family)
                                  ? first_at_most(k, level)
                                  : std::numeric_limits<double>::infinity();
        components_[p].cutoff = static_cast<T>(
            std::min(cutoff * 1.0001, 0.5 * static_cast<double>(std::numeric_limits<T>::max())));
    }
}

template <class T>
Job<T> Plan<T>::job() const {
    Job<T> job{};
    job.components = components_.data();
    job.count = static_cast<int>(components_.size());
    job.symmetric = symmetric_;
    job.lead = lead_;
    job.outputscale = static_cast<T>(outputscale_);
    return job;
}

template <class T>
int64_t Plan<T>::task_count() const {
    const int64_t rows = ceil_div(n_, PANEL), cols = ceil_div(m_, PANEL);
    return symmetric_ ? rows * (rows + 1) / 2 : rows * cols;
}

template <class T>
int64_t Plan<T>::tile_pairs() const {
    const int64_t rows = ceil_div(n_, TILE), cols = ceil_div(m_, TILE);
    return symmetric_ ? rows * (rows + 1) / 2 : rows * cols;
}

template <class T>
int64_t Plan<T>::bytes_to_keep() const {
    return tile_pairs() * TILE * TILE * static_cast<int64_t>(sizeof(T));
}

template <class T>
void Plan<T>::keep() {
    auto kept = std::make_unique<Kept>();
    kept->entries = AlignedArray<T>(tile_pairs() * TILE * TILE, false);
    kept->filled = std::make_unique<bool[]>(tile_pairs());
    kept_ = std::move(kept);
}

template <class T>
void Plan<T>::matmul(const double* v, int64_t t, double* out, const Run& run) const {
    const int64_t rows = ceil_div(n_, PANEL) * PANEL, cols = ceil_div(m_, PANEL) * PANEL;
    const std::vector<int> exponents = column_exponents(v, m_, t);
    PackedRhs<T> rhs(cols, t, isa_.lanes32 * 4 / static_cast<int>(sizeof(T)));
    std::vector<PowerOfTwo> down, up;
    for (int e : exponents) {
        down.emplace_back(-e);
        up.emplace_back(e);
    }
    for (int64_t i = 0; i < m_; ++i)
        for (int64_t c = 0; c < t; ++c) rhs.at(i, c) = static_cast<T>(down[c](v[i * t + c]));

    double bound = 0;  // of |K| row sums
    for (const Component<T>& p : components_)
        bound += 1.01 * largest_entry(p) * static_cast<double>(p.weight) * static_cast<double>(m_);
    const int64_t width = rhs.view.width(), terms = (rows + cols) / PANEL;
    ReproducibleSums sums(isa_, rows * width, PANEL * width, bound, terms);
    Workspaces<T> workspaces(run.threads, width, task_count());
    Job<T> j = job();
    j.v_row = j.v_col = rhs.view;
    j.less_one = less_one_;
    j.level = static_cast<T>(level_);
    std::unique_lock<std::mutex> alone;
    if (kept_) {
        alone = std::unique_lock<std::mutex>(kept_->products);
        j.kept = {kept_->entries.data(), kept_->filled.get()};
    }
    parallel(task_count(), run, [&](int thread, int64_t task) {
        int64_t I, J;
        panel_pair(task, symmetric_, cols / PANEL, &I, &J);
        Workspace<T>& ws = workspaces[thread];
        if (!run.owns(I, J) || !ops_.matmul(j, I, J, ws)) return;
        sums.take(I, ws.row_out, PANEL * width);
        if (symmetric_) sums.take(J, ws.col_out, PANEL * width);
    });
    std::vector<double> ones(t, 0.0);  // c 1' v, of one of the shares
    if (level_ > 0 && run.share_start == 0 && run.share_stop > 0)
        for (int64_t i = 0; i < m_; ++i)
            for (int64_t c = 0; c < t; ++c) ones[c] += level_ * v[i * t + c];
    for (int64_t i = 0; i < n_; ++i)
        for (int64_t c = 0; c < t; ++c)
            out[i * t + c] = outputscale_ * (up[c](sums[rhs.view.sum_at(i, c)]) + ones[c]);
}

template <class T>
void Plan<T>::gradient(const double* u, const double* w, int64_t t, const std::vector<double*>& gx,
                       const std::vector<double*>& gz, std::vector<double>& scalars,
                       const Run& run) const {
    constexpr int64_t G = GROUP<T>;
    const int64_t rows = ceil_div(n_, PANEL) * PANEL, cols = ceil_div(m_, PANEL) * PANEL;
    // Columns are added up, so that one scale 2^-common must serve all; what it takes to bring each
    // column of U to unit size moves over to W.
    const std::vector<int> u_exponents = column_exponents(u, n_, t);
    const std::vector<int> w_exponents = column_exponents(w, m_, t);
    int common = std::numeric_limits<int>::min();
    for (int64_t c = 0; c < t; ++c) common = std::max(common, u_exponents[c] + w_exponents[c]);
    std::vector<int> u_shift(t), w_shift(t);
    for (int64_t c = 0; c < t; ++c) {
        u_shift[c] = -u_exponents[c];
        w_shift[c] = u_exponents[c] - common;
    }

    // B = U W' (+ W U' if symmetric: both orders of a pair at once) as left . right.
    const int inner = static_cast<int>(symmetric_ ? 2 * t : t);
    AlignedArray<T> left(rows * inner), right(cols * inner);
    auto place = [&](AlignedArray<T>& to, const double* from, int64_t count,
                     const std::vector<int>& shift, int64_t first) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t c = 0; c < t; ++c)
                to.data()[(i / G) * G * inner + (first + c) * G + i % G] =
                    static_cast<T>(std::ldexp(from[i * t + c], shift[c]));
    };
    place(left, u, n_, u_shift, 0);
    place(right, w, m_, w_shift, 0);
    if (symmetric_) {
        place(left, w, m_, w_shift, t);
        place(right, u, n_, u_shift, t);
    }

    Job<T> j = job();
    j.left = left.data();
    j.right = right.data();
    j.inner = inner;
    j.both_sides = !symmetric_;
    const int64_t tasks = task_count();
    const int lanes = isa_.lanes32 * 4 / static_cast<int>(sizeof(T));
    for (int p = 0; p < j.count; ++p) {
        const Component<T>& comp = components_[p];
        const int d = comp.x.d;
        const bool by_features = gx[p];
        // Features relative to the centre of their tile, and 1: where H is not small, points are
        // near, and what their features have in common would only cost digits.
        const std::vector<T> row_centres = tile_centres(comp.x), col_centres = tile_centres(comp.z);
        auto with_ones = [&](const Points<T>& points, const std::vector<T>& centres,
                             int64_t padded) {
            PackedRhs<T> rhs(padded, by_features ? d + 1 : 0, lanes);
            for (int64_t i = 0; by_features && i < points.n; ++i) {
                for (int c = 0; c < d; ++c)
                    rhs.at(i, c) = static_cast<T>(feature(points, i, c) -
                                                  static_cast<double>(centres[i / TILE * d + c]));
                rhs.at(i, d) = 1;
            }
            return rhs;
        };
        const PackedRhs<T> at_rows = with_ones(comp.x, row_centres, rows);
        const PackedRhs<T> at_cols = with_ones(comp.z, col_centres, cols);
        j.v_row = at_rows.view;
        j.v_col = at_cols.view;
        j.row_centres = by_features ? row_centres.data() : nullptr;
        j.col_centres = by_features ? col_centres.data() : nullptr;
        const int64_t width = at_rows.view.width();

        // The largest |feature|.
        const double largest = std::max(largest_half_norm(comp.x), largest_half_norm(comp.z));
        const double reach = std::max(1.0, std::sqrt(2.0 * largest));
        const double slope = std::max(
            1.0, slope_of(comp.family, STEEPEST * STEEPEST, static_cast<double>(comp.alpha)));
        const double bound = 2.0 * static_cast<double>(inner) * reach * slope *
                             static_cast<double>(std::max(n_, m_));
        ReproducibleSums row_sums(isa_, rows * width, PANEL * width, bound, (rows + cols) / PANEL);
        ReproducibleSums col_sums(isa_, symmetric_ ? 0 : cols * width, PANEL * width, bound,
                                  rows / PANEL);
        // |k| and |h dk/dh| <= 1 (linear: reach^2) and |dk/dalpha| <= 1 + 1 / (e alpha)
        const double value = reach * reach + 1 / static_cast<double>(comp.alpha);
        ReproducibleSums scalar_sums(
            isa_, GRADIENT_SCALARS, GRADIENT_SCALARS,
            value * inner * static_cast<double>(n_) * static_cast<double>(m_), tasks);
        Workspaces<T> workspaces(run.threads, width, task_count());
        parallel(tasks, run, [&](int thread, int64_t task) {
            int64_t I, J;
            panel_pair(task, symmetric_, cols / PANEL, &I, &J);
            Workspace<T>& ws = workspaces[thread];
            if (!run.owns(I, J) || !ops_.gradient(j, p, I, J, ws)) return;
            scalar_sums.take(0, ws.scalars, GRADIENT_SCALARS);
            if (!by_features) return;
            row_sums.take(I, ws.row_out, PANEL * width);
            (symmetric_ ? row_sums : col_sums).take(J, ws.col_out, PANEL * width);
        });

        const double weight = static_cast<double>(comp.weight) * outputscale_;
        double* found = scalars.data() + GRADIENT_SCALARS * p;
        found[0] = std::ldexp(scalar_sums[0], common);
        found[1] = std::ldexp(scalar_sums[1], common) * weight;
        found[2] = std::ldexp(scalar_sums[2], common) * weight;
        if (!by_features) continue;
        // With H = B dk/dh and h = sum (x - z)^2 (or half of it): dh/dx = 2 (x - z) (or x - z);
        // linear: h = -x.z, dh/dx = -z.
        const bool linear = comp.family == Family::linear;
        const double factor = weight * scales_[p] * (comp.differences ? 2 : 1);
        auto finish = [&](const Points<T>& points, const ReproducibleSums& sums, int64_t count,
                          double* g) {
            for (int64_t i = 0; i < count; ++i) {
                const double total = linear ? 0.0 : sums[at_rows.view.sum_at(i, d)];
                for (int c = 0; c < d; ++c) {
                    const double f =
                        static_cast<double>(points.packed[(i / G) * G * d + c * G + i % G]);
                    g[i * d + c] =
                        std::ldexp(factor * (total * f - sums[at_rows.view.sum_at(i, c)]), common);
                }
            }
        };
        finish(comp.x, row_sums, n_, gx[p]);
        if (!symmetric_) finish(comp.z, col_sums, m_, gz[p]);
    }
}

template <class T>
void Plan<T>::block(T* out, const Run& run) const {
    const int64_t rows = ceil_div(n_, TILE), cols = ceil_div(m_, TILE);
    Workspaces<T> workspaces(run.threads, 0, rows * cols);
    const Job<T> j = job();
    parallel(rows * cols, run, [&](int thread, int64_t task) {
        const int64_t a = task / cols, b = task % cols;
        ops_.block(j, a, b, std::min(TILE, n_ - a * TILE), std::min(TILE, m_ - b * TILE),
                   out + a * TILE * m_ + b * TILE, m_, workspaces[thread]);
    });
}

template <class T>
CullingStatistics Plan<T>::culling() const {
    CullingStatistics s{0, 0, 0.0};
    const int64_t rows = components_[0].x.tiles, cols = components_[0].z.tiles;
    bool any = true;
    for (const Component<T>& p : components_)
        any = any && p.cutoff < 0.4 * std::numeric_limits<T>::max();
    std::vector<double> row_loss(rows, 0.0), col_loss(cols, 0.0);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < (symmetric_ ? i + 1 : cols); ++j) {
            ++s.tile_pairs;
            double loss = 0;
            bool skip = any;
            for (size_t p = 0; skip && p < components_.size(); ++p) {
                const Component<T>& c = components_[p];
                T h = 0;  // as box_h in tile.h computes it, so that both take the same decision
                for (int k = 0; k < c.x.d; ++k) {
                    const T below = c.z.lo[j * c.x.d + k] - c.x.hi[i * c.x.d + k];
                    const T above = c.x.lo[i * c.x.d + k] - c.z.hi[j * c.x.d + k];
                    const T gap = std::max(std::max(below, above), T(0));
                    h += gap * gap;
                }
                if (!c.differences) h *= T(0.5);
                skip = h > c.cutoff;
                loss += outputscale_ * static_cast<double>(c.weight) *
                        kernel_of(c.family, static_cast<double>(h), static_cast<double>(c.alpha));
            }
            if (!skip) continue;
            ++s.culled_pairs;
            row_loss[i] += TILE * loss;
            col_loss[j] += TILE * loss;
        }
    }
    // Symmetric: a skipped pair (i, j) is missing from the rows of i and of j. Else the spectral
    // norm is at most the geometric mean of the largest row and column sums.
    double row_top = 0, col_top = 0;
    for (int64_t i = 0; i < rows; ++i)
        row_top = std::max(row_top, row_loss[i] + (symmetric_ ? col_loss[i] : 0.0));
    for (int64_t j = 0; j < cols; ++j) col_top = std::max(col_top, col_loss[j]);
    s.bound = symmetric_ ? row_top : std::sqrt(row_top * col_top);
    return s;
}

template class AlignedArray<char>;
template class AlignedArray<float>;
template class AlignedArray<double>;
template class Plan<float>;
template class Plan<double>;

}  // namespace megagp
