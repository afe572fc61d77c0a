// The Python face of the native core: checks shapes, releases the GIL, turns Ctrl-C into an
// exception.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "driver.h"
#include "far_driver.h"
#include "joint_driver.h"
#include "sparse.h"
#include "vecchia_driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megagp {
namespace {

using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// family, outputscale, alpha, features of X, features of Z (not read if symmetric)
using Input = std::tuple<int, double, double, Matrix, Matrix>;

const InstructionSet& find(const std::string& name) {
    const InstructionSet* sets[4];
    const int count = instruction_sets(sets);
    if (name.empty()) return *sets[0];
    std::string known;
    for (int k = 0; k < count; ++k) {
        if (name == sets[k]->name) return *sets[k];
        known += std::string(k ? ", " : "") + sets[k]->name;
    }
    throw std::invalid_argument("instruction_set: expected one of " + known + ", got " + name);
}

void expect(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

bool signalled() {  // PyErr_CheckSignals runs the handlers only on the main thread
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

// Runs `work` without the GIL; a pending signal surfaces as the exception its handler raised.
template <class Work>
void unlocked(Work work) {
    bool interrupted = false;
    {
        nb::gil_scoped_release released;
        try {
            work();
        } catch (const Interrupted&) {
            interrupted = true;
        }
    }
    if (interrupted) throw nb::python_error();
}

constexpr int64_t WHOLE = int64_t{1} << 32;

Run make_run(int threads, int64_t share_start, int64_t share_stop) {
    expect(threads >= 1 && threads <= 4096, "threads: expected 1 to 4096");
    expect(0 <= share_start && share_start <= share_stop && share_stop <= WHOLE,
           "share: expected 0 <= start <= stop <= 2^32");
    return {threads, share_start, share_stop, signalled};
}

template <class T>
class PyPlan {
  public:
    using Block = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

    PyPlan(const std::vector<Input>& inputs, bool symmetric, double cull_tolerance,
           const std::string& instruction_set)
        : symmetric_(symmetric), plan_(build(inputs, symmetric, cull_tolerance, instruction_set)) {
        n_ = static_cast<int64_t>(std::get<3>(inputs[0]).shape(0));
        m_ = symmetric ? n_ : static_cast<int64_t>(std::get<4>(inputs[0]).shape(0));
        for (const Input& in : inputs) d_.push_back(static_cast<int64_t>(std::get<3>(in).shape(1)));
    }

    PyPlan(const PyPlan&) = delete;

    void matmul(Matrix v, Output out, int threads, int64_t share_start, int64_t share_stop) const {
        const Run run = make_run(threads, share_start, share_stop);
        expect(static_cast<int64_t>(v.shape(0)) == m_ && v.shape(1) >= 1,
               "v: expected m x t, t >= 1");
        expect(static_cast<int64_t>(out.shape(0)) == n_ && out.shape(1) == v.shape(1),
               "out: expected n x t");
        unlocked(
            [&] { plan_.matmul(v.data(), static_cast<int64_t>(v.shape(1)), out.data(), run); });
    }

    std::vector<double> gradient(Matrix u, Matrix w, nb::list gx, nb::list gz, int threads,
                                 int64_t share_start, int64_t share_stop) const {
        const Run run = make_run(threads, share_start, share_stop);
        expect(static_cast<int64_t>(u.shape(0)) == n_ && u.shape(1) >= 1,
               "u: expected n x t, t >= 1");
        expect(static_cast<int64_t>(w.shape(0)) == m_ && w.shape(1) == u.shape(1),
               "w: expected m x t");
        expect(gx.size() == d_.size() && gz.size() == (symmetric_ ? 0 : d_.size()),
               "gx, gz: expected one array per component");
        std::vector<double*> px, pz;
        for (size_t p = 0; p < gx.size(); ++p)
            px.push_back(gx[p].is_none() ? nullptr : writable(gx[p], n_, d_[p]));
        for (size_t p = 0; p < gz.size(); ++p)
            pz.push_back(gz[p].is_none() ? nullptr : writable(gz[p], m_, d_[p]));
        for (size_t p = 0; p < pz.size(); ++p)
            expect(!px[p] == !pz[p], "gx, gz: expected both of a component, or neither");
        std::vector<double> scalars(GRADIENT_SCALARS * d_.size());
        unlocked([&] {
            plan_.gradient(u.data(), w.data(), static_cast<int64_t>(u.shape(1)), px, pz, scalars,
                           run);
        });
        return scalars;
    }

    void block(Block out, int threads) const {
        const Run run = make_run(threads, 0, WHOLE);
        expect(static_cast<int64_t>(out.shape(0)) == n_ && static_cast<int64_t>(out.shape(1)) == m_,
               "out: expected n x m");
        unlocked([&] { plan_.block(out.data(), run); });
    }

    std::tuple<int64_t, int64_t, double> culling() const {
        const CullingStatistics s = plan_.culling();
        return {s.tile_pairs, s.culled_pairs, s.bound};
    }

    double summed() const { return plan_.summed(); }
    int64_t bytes_to_keep() const { return plan_.bytes_to_keep(); }
    void keep() { plan_.keep(); }

  private:
    // The array's own memory, never that of a converted copy.
    static double* writable(nb::handle array, int64_t rows, int64_t cols) {
        Output g;
        expect(nb::try_cast(array, g, false), "gx, gz: expected contiguous float64 matrices");
        expect(static_cast<int64_t>(g.shape(0)) == rows && static_cast<int64_t>(g.shape(1)) == cols,
               "gx, gz: expected points x features");
        return g.data();
    }

    static Plan<T> build(const std::vector<Input>& inputs, bool symmetric, double cull_tolerance,
                         const std::string& instruction_set) {
        expect(!inputs.empty() && inputs.size() <= MAX_COMPONENTS, "components: expected 1 to 32");
        expect(cull_tolerance >= 0, "cull_tolerance: expected a number >= 0");
        const int64_t n = static_cast<int64_t>(std::get<3>(inputs[0]).shape(0));
        const int64_t m = symmetric ? n : static_cast<int64_t>(std::get<4>(inputs[0]).shape(0));
        expect(n >= 1 && m >= 1, "X, Z: expected at least one row");
        std::vector<ComponentInput> components;
        for (const auto& [family, outputscale, alpha, x, z] : inputs) {
            expect(family >= 0 && family <= static_cast<int>(Family::linear), "family: unknown");
            expect(outputscale > 0 && alpha > 0, "outputscale, alpha: expected positive numbers");
            expect(static_cast<int64_t>(x.shape(0)) == n,
                   "components: expected equal numbers of rows");
            expect(symmetric || (static_cast<int64_t>(z.shape(0)) == m && z.shape(1) == x.shape(1)),
                   "components: X and Z disagree in shape");
            expect(x.shape(1) >= 1 || family == static_cast<int>(Family::constant),
                   "components: expected at least one feature");
            expect(x.shape(1) < (1 << 20), "components: more than a million features");
            components.push_back({static_cast<Family>(family), outputscale, alpha,
                                  static_cast<int64_t>(x.shape(1)), x.data(),
                                  symmetric ? nullptr : z.data()});
        }
        nb::gil_scoped_release released;
        return Plan<T>(find(instruction_set), components, n, m, symmetric, cull_tolerance);
    }

    bool symmetric_;
    Plan<T> plan_;
    int64_t n_, m_;
    std::vector<int64_t> d_;
};

class PyFarPlan {
  public:
    using Offsets = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    using Errors = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    // offsets, errors, L' and R of one level
    using Tables = std::tuple<Offsets, Errors, std::vector<Table>, std::vector<Table>>;

    PyFarPlan(int family, double outputscale, double alpha, Matrix x,
              const std::vector<double>& origin, double side, int max_level, int64_t leaf,
              double direct, const std::string& instruction_set)
        : n_(static_cast<int64_t>(x.shape(0))),
          plan_(build(family, outputscale, alpha, x, origin, side, max_level, leaf, direct,
                      instruction_set)) {}
    PyFarPlan(const PyFarPlan&) = delete;

    int depth() const { return plan_.depth(); }

    void link(int degree, const std::vector<Tables>& tables, double cutoff, double level) {
        expect(!linked_, "link: expected once");
        expect(degree >= 1 && degree <= FAR_MAX_DEGREE, "degree: expected 1 to 31");
        std::vector<FarLevel> levels;
        for (const auto& [offsets, errors, left, right] : tables) {
            const size_t count = left.size();
            expect(right.size() == count && offsets.shape(0) == count && errors.shape(0) == count &&
                       offsets.shape(1) == 3 && count < 32768,
                   "tables: expected an offset of 3 numbers, an error, L' and R each");
            for (size_t s = 0; s < 3 * count; ++s)
                expect(offsets.data()[s] >= 0 && offsets.data()[s] < 64,
                       "offsets: expected 0 to 63");
            FarLevel l{static_cast<int64_t>(count), offsets.data(), errors.data(), {}, {}, {}, {}};
            for (size_t s = 0; s < count; ++s) {
                expect(left[s].shape(0) == right[s].shape(1) &&
                           left[s].shape(1) == right[s].shape(0) && left[s].size() > 0,
                       "tables: expected L' of rank x terms and R of terms x rank");
                l.left.push_back(left[s].data());
                l.right.push_back(right[s].data());
                l.ranks.push_back(static_cast<int64_t>(left[s].shape(0)));
                l.terms.push_back(static_cast<int64_t>(left[s].shape(1)));
            }
            levels.push_back(l);
        }
        nb::gil_scoped_release released;
        plan_.link(degree, levels, cutoff, level);
        linked_ = true;
    }

    void matmul(Matrix v, Output out, int threads, int64_t share_start, int64_t share_stop) const {
        const Run run = make_run(threads, share_start, share_stop);
        expect(linked_, "matmul: expected link first");
        expect(static_cast<int64_t>(v.shape(0)) == n_ && v.shape(1) >= 1,
               "v: expected n x t, t >= 1");
        expect(static_cast<int64_t>(out.shape(0)) == n_ && out.shape(1) == v.shape(1),
               "out: expected n x t");
        unlocked(
            [&] { plan_.matmul(v.data(), static_cast<int64_t>(v.shape(1)), out.data(), run); });
    }

    std::vector<double> statistics() const {
        const FarStatistics s = plan_.statistics();
        return {s.evaluations,    s.translations,  s.cells, s.near_entries,
                s.culled_entries, s.culling_bound, s.error, s.bound};
    }

  private:
    static FarPlan build(int family, double outputscale, double alpha, const Matrix& x,
                         const std::vector<double>& origin, double side, int max_level,
                         int64_t leaf, double direct, const std::string& instruction_set) {
        expect(family >= 0 && family <= static_cast<int>(Family::rational_quadratic),
               "family: expected a stationary kernel");
        expect(outputscale > 0 && alpha > 0, "outputscale, alpha: expected positive numbers");
        expect(x.shape(0) >= 1 && x.shape(1) >= 1 && x.shape(1) <= 3, "x: expected n x 1 to 3");
        expect(origin.size() == 3 && side > 0, "origin, side: expected 3 numbers and one > 0");
        expect(max_level >= 0 && max_level <= 20, "max_level: expected 0 to 20");
        expect(leaf >= 1 && x.shape(0) < (size_t{1} << 31), "leaf: expected at least 1");
        const FarInput input{static_cast<Family>(family),
                             outputscale,
                             alpha,
                             static_cast<int>(x.shape(1)),
                             static_cast<int64_t>(x.shape(0)),
                             x.data(),
                             {origin[0], origin[1], origin[2]},
                             side,
                             max_level,
                             leaf,
                             direct};
        nb::gil_scoped_release released;
        return FarPlan(find(instruction_set), input);
    }

    int64_t n_;
    bool linked_ = false;
    FarPlan plan_;
};

using Vector = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

ComponentInput joint_component(const Input& in, int64_t n, int64_t t) {
    const auto& [family, outputscale, alpha, x, z] = in;
    expect(family >= 0 && family <= static_cast<int>(Family::linear), "family: unknown");
    expect(outputscale > 0 && alpha > 0, "outputscale, alpha: expected positive numbers");
    expect(static_cast<int64_t>(x.shape(0)) == n && static_cast<int64_t>(z.shape(0)) == t &&
               x.shape(1) == z.shape(1) && x.shape(1) < (1 << 20),
           "components: expected features of n and of t points");
    return {static_cast<Family>(family),      outputscale, alpha,
            static_cast<int64_t>(x.shape(1)), x.data(),    z.data()};
}

// What joint variances and the making of kept factors are given in common.
JointInput joint_input(const std::vector<Input>& inputs, Vector noise, Matrix F, int64_t t,
                       const double* prior, const double* B, double jitter, double tolerance) {
    const int64_t n = static_cast<int64_t>(noise.shape(0)), k = static_cast<int64_t>(F.shape(1));
    expect(static_cast<int64_t>(F.shape(0)) == n, "F: expected n x k");
    expect(jitter >= 0 && tolerance >= 0, "jitter, tolerance: expected numbers >= 0");
    expect(!inputs.empty() && inputs.size() <= MAX_COMPONENTS, "components: expected 1 to 32");
    JointInput input{{}, n, t, k, noise.data(), F.data(), prior, B, jitter, tolerance};
    for (const Input& in : inputs) input.components.push_back(joint_component(in, n, t));
    return input;
}

JointInput joint_input(const std::vector<Input>& inputs, Vector noise, Matrix F, Vector prior,
                       Matrix B, double jitter, double tolerance) {
    const int64_t t = static_cast<int64_t>(prior.shape(0));
    expect(static_cast<int64_t>(B.shape(0)) == t && B.shape(1) == F.shape(1), "B: expected t x k");
    return joint_input(inputs, noise, F, t, prior.data(), B.data(), jitter, tolerance);
}

// Cells without factors. New points of cell c are ends[c - 1] .. ends[c]; none if `ends` is null.
std::vector<JointCell> joint_cells(const JointInput& input, const Indices* ends,
                                   const std::vector<Indices>& neighbours) {
    expect(!ends || neighbours.size() == ends->shape(0),
           "neighbours, ends: expected one entry per cell");
    std::vector<JointCell> cells;
    for (size_t c = 0; c < neighbours.size(); ++c) {
        const int64_t first = ends && c ? (*ends)(c - 1) : 0, last = ends ? (*ends)(c) : 0,
                      m = static_cast<int64_t>(neighbours[c].shape(0));
        expect(!ends || (first < last && last <= input.t), "ends: expected rising numbers up to t");
        expect(m >= 1, "neighbours: expected at least one");
        for (int64_t s = 0; s < m; ++s)
            expect(neighbours[c](s) >= 0 && neighbours[c](s) < input.n,
                   "neighbours: expected rows of F");
        cells.push_back({neighbours[c].data(), m, first, last - first, nullptr});
    }
    return cells;
}

template <class T>
const JointOps& joint_ops(const std::string& instruction_set) {
    const InstructionSet& isa = find(instruction_set);
    return sizeof(T) == 4 ? isa.joint32 : isa.joint64;
}

// Gives the cells their factors, one array of T each.
template <class T>
void join_factors(const JointOps& ops, nb::list factors, std::vector<JointCell>& cells) {
    using Factor = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    expect(factors.size() == cells.size(), "factors: expected one per cell");
    for (size_t c = 0; c < cells.size(); ++c) {
        Factor factor;
        expect(nb::try_cast(factors[c], factor, false), "factors: expected contiguous arrays");
        expect(static_cast<int64_t>(factor.shape(0)) == ops.kept_size(cells[c].m),
               "factors: expected the size that kept_factor_size says");
        expect(reinterpret_cast<uintptr_t>(factor.data()) % 64 == 0,
               "factors: expected arrays that start at a multiple of 64 bytes");
        cells[c].factor = factor.data();
    }
}

std::vector<int> as_ints(const std::vector<JointQuality>& found) {
    std::vector<int> qualities;
    for (JointQuality q : found) qualities.push_back(static_cast<int>(q));
    return qualities;
}

// Latent variances of t new points that come sorted by cell.
template <class T>
std::vector<int> joint(const std::vector<Input>& inputs, Vector noise, Matrix F, Vector prior,
                       Matrix B, Indices ends, const std::vector<Indices>& neighbours,
                       double jitter, double tolerance,
                       nb::ndarray<double, nb::ndim<1>, nb::c_contig> out, int threads,
                       const std::string& instruction_set) {
    const JointOps& ops = joint_ops<T>(instruction_set);
    const Run run = make_run(threads, 0, 1);
    const JointInput input = joint_input(inputs, noise, F, prior, B, jitter, tolerance);
    expect(static_cast<int64_t>(out.shape(0)) == input.t, "out: expected t entries");
    const std::vector<JointCell> cells = joint_cells(input, &ends, neighbours);
    std::vector<JointQuality> found;
    unlocked([&] { found = joint_variance(ops, sizeof(T), input, cells, run, out.data()); });
    return as_ints(found);
}

// Factors of cells, for new points to come.
template <class T>
std::vector<int> keep(const std::vector<Input>& inputs, Vector noise, Matrix F,
                      const std::vector<Indices>& neighbours, nb::list factors, double jitter,
                      double tolerance, int threads, const std::string& instruction_set) {
    const JointOps& ops = joint_ops<T>(instruction_set);
    const Run run = make_run(threads, 0, 1);
    const JointInput input = joint_input(inputs, noise, F, 0, nullptr, nullptr, jitter, tolerance);
    std::vector<JointCell> cells = joint_cells(input, nullptr, neighbours);
    join_factors<T>(ops, factors, cells);
    std::vector<JointQuality> found;
    unlocked([&] { found = make_kept(ops, sizeof(T), input, cells, run); });
    return as_ints(found);
}

// Latent variances of t new points that come sorted by cell, by kept factors.
template <class T>
void by_kept(const std::vector<Input>& inputs, Vector noise, Matrix F, Vector prior, Matrix B,
             Indices ends, const std::vector<Indices>& neighbours, nb::list factors,
             nb::ndarray<double, nb::ndim<1>, nb::c_contig> out, int threads,
             const std::string& instruction_set) {
    const JointOps& ops = joint_ops<T>(instruction_set);
    const Run run = make_run(threads, 0, 1);
    const JointInput input = joint_input(inputs, noise, F, prior, B, 0.0, 0.0);
    expect(static_cast<int64_t>(out.shape(0)) == input.t, "out: expected t entries");
    std::vector<JointCell> cells = joint_cells(input, &ends, neighbours);
    join_factors<T>(ops, factors, cells);
    unlocked([&] { kept_variance(ops, sizeof(T), input, cells, run, out.data()); });
}

template <class T>
void bind_joint(nb::module_& m, const std::string& bits) {
    m.def(("joint" + bits).c_str(), &joint<T>, "components"_a, "noise"_a, "F"_a, "prior"_a, "B"_a,
          "ends"_a, "neighbours"_a, "jitter"_a, "tolerance"_a, "out"_a.noconvert(), "threads"_a,
          "instruction_set"_a);
    m.def(("keep" + bits).c_str(), &keep<T>, "components"_a, "noise"_a, "F"_a, "neighbours"_a,
          "factors"_a, "jitter"_a, "tolerance"_a, "threads"_a, "instruction_set"_a);
    m.def(("by_kept" + bits).c_str(), &by_kept<T>, "components"_a, "noise"_a, "F"_a, "prior"_a,
          "B"_a, "ends"_a, "neighbours"_a, "factors"_a, "out"_a.noconvert(), "threads"_a,
          "instruction_set"_a);
}

// w and v (vecchia_ops.h) of `points` given their predecessors, n x m, with B for L in their rows.
template <class T>
void vecchia_weights(const std::vector<Input>& inputs, Vector noise,
                     nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu> L,
                     nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> nearest,
                     nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> points,
                     double least, Output w,
                     nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> v, int threads,
                     const std::string& instruction_set) {
    const InstructionSet& isa = find(instruction_set);
    const Run run = make_run(threads, 0, 1);
    const int64_t n = static_cast<int64_t>(noise.shape(0)),
                  rows = static_cast<int64_t>(points.shape(0)),
                  m = static_cast<int64_t>(nearest.shape(1));
    expect(static_cast<int64_t>(L.shape(0)) == n, "L: expected n x k");
    expect(static_cast<int64_t>(nearest.shape(0)) == n, "nearest: expected n x m");
    expect(m <= VECCHIA_MOST, "nearest: expected at most 512 predecessors");
    std::vector<int64_t> place(n, -1);  // among the points that are wanted
    for (int64_t r = 0; r < rows; ++r) {
        expect(points(r) >= 0 && points(r) < n && place[points(r)] < 0,
               "points: expected some of the n points, each once");
        place[points(r)] = r;
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < m; ++j) {
            const int64_t before = nearest(points(r), j);
            expect(before >= -1 && before < n, "nearest: expected points, or -1");
            expect(before < 0 || place[before] < r,
                   "nearest: expected points that come before their own in `points`");
        }
    expect(static_cast<int64_t>(w.shape(0)) == rows && static_cast<int64_t>(w.shape(1)) == m,
           "w: expected rows x m");
    expect(static_cast<int64_t>(v.shape(0)) == rows, "v: expected one entry per row");
    expect(!inputs.empty() && inputs.size() <= MAX_COMPONENTS, "components: expected 1 to 32");
    std::vector<ComponentInput> components;
    for (const Input& in : inputs) components.push_back(joint_component(in, n, 0));
    const VecchiaJob<T> job{
        nullptr,        0, noise.data(),  L.data(), static_cast<int64_t>(L.shape(1)),
        nearest.data(), m, points.data(), least};
    unlocked([&] {
        if constexpr (sizeof(T) == 4)
            vecchia(isa.vecchia32, job, components, n, rows, run, L.data(), w.data(), v.data());
        else
            vecchia(isa.vecchia64, job, components, n, rows, run, L.data(), w.data(), v.data());
    });
}

template <class T>
void bind_vecchia(nb::module_& m, const char* name) {
    m.def(name, &vecchia_weights<T>, "components"_a, "noise"_a, "L"_a.noconvert(),
          "nearest"_a.noconvert(), "points"_a.noconvert(), "least"_a, "w"_a.noconvert(),
          "v"_a.noconvert(), "threads"_a, "instruction_set"_a);
}

using Whole = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Columns = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A matrix by its rows; what they point to is checked once, here, and kept alive.
class PySparseRows {
  public:
    PySparseRows(Whole starts, Columns columns, Vector values, int64_t width)
        : starts_(starts), columns_(columns), values_(values), width_(width) {
        const int64_t entries = static_cast<int64_t>(columns.shape(0));
        expect(starts.shape(0) >= 1 && static_cast<int64_t>(values.shape(0)) == entries,
               "starts, columns, values: expected rows + 1, and as many columns as values");
        expect(starts(0) >= 0 && starts(rows()) <= entries, "starts: expected numbers of entries");
        for (int64_t i = 0; i < rows(); ++i)
            expect(starts(i) <= starts(i + 1), "starts: expected rising numbers");
        for (int64_t e = starts(0); e < starts(rows()); ++e)
            expect(columns(e) >= 0 && columns(e) < width, "columns: expected 0 .. width");
    }

    void times(Matrix X, Output out, int threads) const {
        expect(static_cast<int64_t>(X.shape(0)) == width_, "X: expected a row for each column");
        expect(static_cast<int64_t>(out.shape(0)) == rows() && out.shape(1) == X.shape(1),
               "out: expected rows x columns of X");
        const Run run = make_run(threads, 0, 1);
        unlocked([&] {
            sparse_times(view(), rows(), X.data(), static_cast<int64_t>(X.shape(1)), out.data(),
                         run);
        });
    }

    void solve(Whole order, Output Z) const {
        expect(rows() == width_ && static_cast<int64_t>(Z.shape(0)) == width_,
               "Z: expected a row for each of a square matrix");
        expect_rows(order);
        for (int64_t i = 0; i < rows(); ++i)
            expect(starts_(i) < starts_(i + 1) && columns_(starts_(i + 1) - 1) == i,
                   "columns: expected the diagonal last in each row");
        unlocked([&] {
            sparse_solve(view(), order.data(), static_cast<int64_t>(order.shape(0)), Z.data(),
                         static_cast<int64_t>(Z.shape(1)));
        });
    }

  private:
    int64_t rows() const { return static_cast<int64_t>(starts_.shape(0)) - 1; }
    SparseRows view() const { return {starts_.data(), columns_.data(), values_.data()}; }
    void expect_rows(const Whole& which) const {
        for (size_t s = 0; s < which.shape(0); ++s)
            expect(which(s) >= 0 && which(s) < rows(), "rows: expected some of the matrix");
    }

    Whole starts_;
    Columns columns_;
    Vector values_;
    int64_t width_;
};

template <class T>
void bind_plan(nb::module_& m, const char* name) {
    using P = PyPlan<T>;
    nb::class_<P>(m, name)
        .def(nb::init<const std::vector<Input>&, bool, double, const std::string&>(),
             "components"_a, "symmetric"_a, "cull_tolerance"_a, "instruction_set"_a)
        .def("matmul", &P::matmul, "v"_a, "out"_a.noconvert(), "threads"_a, "share_start"_a,
             "share_stop"_a)
        .def("gradient", &P::gradient, "u"_a, "w"_a, "gx"_a, "gz"_a, "threads"_a, "share_start"_a,
             "share_stop"_a)
        .def("block", &P::block, "out"_a.noconvert(), "threads"_a)
        .def("culling", &P::culling)
        .def("summed", &P::summed)
        .def("bytes_to_keep", &P::bytes_to_keep)
        .def("keep", &P::keep);
}

}  // namespace
}  // namespace megagp

NB_MODULE(_native, m) {
    using namespace megagp;
    bind_plan<float>(m, "Plan32");
    bind_plan<double>(m, "Plan64");
    nb::class_<PyFarPlan>(m, "FarPlan")
        .def(nb::init<int, double, double, Matrix, const std::vector<double>&, double, int, int64_t,
                      double, const std::string&>(),
             "family"_a, "outputscale"_a, "alpha"_a, "x"_a, "origin"_a, "side"_a, "max_level"_a,
             "leaf"_a, "direct"_a, "instruction_set"_a)
        .def("depth", &PyFarPlan::depth)
        .def("link", &PyFarPlan::link, "degree"_a, "tables"_a, "cutoff"_a, "level"_a)
        .def("matmul", &PyFarPlan::matmul, "v"_a, "out"_a.noconvert(), "threads"_a, "share_start"_a,
             "share_stop"_a)
        .def("statistics", &PyFarPlan::statistics);
    bind_joint<float>(m, "32");
    bind_joint<double>(m, "64");
    bind_vecchia<float>(m, "vecchia32");
    bind_vecchia<double>(m, "vecchia64");
    nb::class_<PySparseRows>(m, "SparseRows")
        .def(nb::init<Whole, Columns, Vector, int64_t>(), "starts"_a.noconvert(),
             "columns"_a.noconvert(), "values"_a.noconvert(), "width"_a)
        .def("times", &PySparseRows::times, "X"_a.noconvert(), "out"_a.noconvert(), "threads"_a)
        .def("solve", &PySparseRows::solve, "order"_a, "Z"_a.noconvert());
    m.def(
        "kept_factor_size",
        [](int64_t neighbours, bool single) {
            const InstructionSet& isa = find("");
            return (single ? isa.joint32 : isa.joint64).kept_size(neighbours);
        },
        "neighbours"_a, "single"_a);
    m.def("instruction_sets", [] {
        const InstructionSet* sets[4];
        const int count = instruction_sets(sets);
        std::vector<std::string> names;
        for (int k = 0; k < count; ++k) names.emplace_back(sets[k]->name);
        return names;
    });
    m.def(
        "fma_rate",
        [](const std::string& instruction_set, double seconds) {
            const InstructionSet& isa = find(instruction_set);
            nb::gil_scoped_release released;
            return isa.fma_rate(seconds);
        },
        "instruction_set"_a, "seconds"_a);
}
