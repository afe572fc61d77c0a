#include "far_driver.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "parallel.h"
#include "reproducible_sum.h"

namespace megagp {

namespace {

constexpr int64_t CHUNK = 64;         // target cells whose translations are one task
constexpr int64_t STRIPE = 1024;      // points: pairs of ranges evaluated directly, and locks
constexpr int64_t BATCH = 32;         // vectors translated by one table at a time
constexpr double ENTRY_COST = 28;     // vector operations to evaluate an entry and use it twice,
constexpr double TRANSLATE_COST = 3;  // and for a multiply-add of a translation and its return
constexpr double ROOM = 256e6;        // bytes for moments: right-hand sides go in parts

int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

uint64_t spread(uint64_t x, int d) {  // bit i of 21 to place i d
    uint64_t out = 0;
    for (int bit = 0; bit < 21; ++bit) out |= (x >> bit & 1) << (bit * d);
    return out;
}

}  // namespace

struct FarPlan::Columns {
    int64_t n, t;
    std::vector<double> wide;   // [t][n]
    std::vector<float> narrow;  // the same
};

FarPlan::FarPlan(const InstructionSet& isa, const FarInput& input)
    : isa_(isa),
      n_(input.n),
      d_(input.d),
      family_(input.family),
      outputscale_(input.outputscale),
      alpha_(input.alpha),
      side_(input.side),
      scale_(feature_scale(input.family, input.alpha)),
      direct_(input.direct) {
    for (int64_t s = 0; s < n_ * d_; ++s)
        if (!std::isfinite(input.x[s])) throw std::invalid_argument("x: expected finite numbers");
    std::vector<uint64_t> keys(n_);
    const double scale = std::ldexp(1.0, input.max_level) / side_;
    const int64_t top = (int64_t{1} << input.max_level) - 1;
    for (int64_t i = 0; i < n_; ++i)
        for (int c = 0; c < d_; ++c) {
            const double at = std::floor((input.x[i * d_ + c] - input.origin[c]) * scale);
            const int64_t cell =
                static_cast<int64_t>(std::min(std::max(at, 0.0), static_cast<double>(top)));
            keys[i] |= spread(static_cast<uint64_t>(cell), d_) << c;
        }
    order_.resize(n_);
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(),
              [&](int64_t a, int64_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; });
    std::vector<uint64_t> sorted(n_);
    for (int64_t i = 0; i < n_; ++i) sorted[i] = keys[order_[i]];
    split_cells(input, sorted);
    sort_points(input);
}

void FarPlan::split_cells(const FarInput& input, const std::vector<uint64_t>& keys) {
    cells_.push_back({{0, 0, 0}, 0, n_, 0, 0, -1});
    level_start_ = {0, 1};
    for (int level = 0; level < input.max_level; ++level) {
        const int shift = (input.max_level - level - 1) * d_;
        for (int64_t s = level_start_[level]; s < level_start_[level + 1]; ++s) {
            if (cells_[s].size() <= input.leaf) continue;
            cells_[s].first_child = static_cast<int32_t>(cells_.size());
            for (int64_t i = cells_[s].begin; i < cells_[s].end;) {
                const uint64_t key = keys[i] >> shift;
                const int64_t end =
                    std::upper_bound(
                        keys.begin() + i, keys.begin() + cells_[s].end, key,
                        [&](uint64_t k, uint64_t other) { return k < other >> shift; }) -
                    keys.begin();
                Cell child{{0, 0, 0}, i, end, 0, 0, static_cast<int32_t>(s)};
                for (int c = 0; c < d_; ++c)
                    child.at[c] = 2 * cells_[s].at[c] + static_cast<int32_t>(key >> c & 1);
                cells_.push_back(child);
                ++cells_[s].children;
                i = end;
            }
        }
        if (static_cast<int64_t>(cells_.size()) == level_start_.back()) break;
        level_start_.push_back(static_cast<int64_t>(cells_.size()));
    }
}

void FarPlan::sort_points(const FarInput& input) {
    coordinates_.resize(n_ * d_);
    for (int c = 0; c < d_; ++c) {
        const double middle = input.origin[c] + 0.5 * side_;
        for (int64_t i = 0; i < n_; ++i) {
            const double x = (input.x[order_[i] * d_ + c] - middle) * scale_;
            if (!(std::fabs(x) < 1e15))
                throw std::invalid_argument("X: points span more lengthscales than float32 can");
            coordinates_[c * n_ + i] = x;
        }
    }
}

void FarPlan::set_local() {
    local_.assign(3 * n_, 0.0);
    for (int level = 0; level < depth(); ++level) {
        const double side = std::ldexp(side_, -level) * scale_;
        for (int64_t s = level_start_[level]; s < level_start_[level + 1]; ++s) {
            const Cell& cell = cells_[s];
            if (cell.children) continue;
            for (int c = 0; c < d_; ++c) {
                const double middle = (cell.at[c] + 0.5) * side - 0.5 * side_ * scale_;
                double* u = local_.data() + 3 * cell.begin + c * cell.size();
                for (int64_t i = cell.begin; i < cell.end; ++i)
                    u[i - cell.begin] = std::min(
                        1.0, std::max(-1.0, (coordinates_[c * n_ + i] - middle) * 2 / side));
            }
        }
    }
}

// Leaves out cells that no translation reaches: their points belong to the last cell above that
// has one.
void FarPlan::prune(std::vector<std::vector<Translation>>& found) {
    std::vector<char> used(cells_.size(), 0);
    used[0] = 1;
    for (const auto& list : found)
        for (const Translation& t : list) used[t.target] = 1;
    for (size_t s = cells_.size(); s-- > 1;)
        if (used[s]) used[cells_[s].parent] = 1;
    // A cell that is used keeps all its siblings: the points of each must be somewhere.
    std::vector<char> kept(used);
    for (const Cell& cell : cells_) {
        bool any = false;
        for (int32_t q = 0; q < cell.children; ++q) any = any || used[cell.first_child + q];
        for (int32_t q = 0; any && q < cell.children; ++q) kept[cell.first_child + q] = 1;
    }
    std::vector<int32_t> place(cells_.size(), -1);
    std::vector<Cell> cells;
    std::vector<int64_t> starts{0};
    for (int level = 0; level < depth(); ++level) {
        for (int64_t s = level_start_[level]; s < level_start_[level + 1]; ++s) {
            if (!kept[s]) continue;
            place[s] = static_cast<int32_t>(cells.size());
            cells.push_back(cells_[s]);
            Cell& cell = cells.back();
            if (cell.parent >= 0) cell.parent = place[cell.parent];
            if (cell.children && !kept[cell.first_child]) cell.children = 0;
        }
        if (static_cast<int64_t>(cells.size()) > starts.back())
            starts.push_back(static_cast<int64_t>(cells.size()));
    }
    for (Cell& cell : cells)
        if (cell.children) cell.first_child = place[cell.first_child];
    for (auto& list : found)
        for (Translation& t : list) t.target = place[t.target], t.source = place[t.source];
    cells_ = std::move(cells);
    level_start_ = std::move(starts);
    found.resize(depth());
}

// T_b((x -+ 1) / 2) = sum over c <= b of E[b][c] T_c(x), by the recurrence of T.
static std::vector<std::vector<double>> halves(int degree, double sign) {
    std::vector<std::vector<double>> E(degree + 1, std::vector<double>(degree + 2, 0.0));
    E[0][0] = 1;
    if (degree > 0) E[1][0] = 0.5 * sign, E[1][1] = 0.5;
    for (int b = 2; b <= degree; ++b)  // T_b(y) = 2 y T_b-1(y) - T_b-2(y), 2 y = x + sign
        for (int c = 0; c <= b; ++c) {
            double x_times = c == 0 ? 0.5 * E[b - 1][1] : 0.5 * E[b - 1][c + 1];
            if (c == 1) x_times += E[b - 1][0];
            if (c > 1) x_times += 0.5 * E[b - 1][c - 1];
            E[b][c] = x_times + sign * E[b - 1][c] - E[b - 2][c];
        }
    return E;
}

void FarPlan::set_basis(int degree) {
    degree_ = degree;
    std::vector<std::array<int, 3>> list;
    for (int total = 0; total <= degree; ++total)
        for (int a = total; a >= 0; --a)
            for (int b = total - a; b >= 0; --b) {
                const std::array<int, 3> power{a, b, total - a - b};
                if ((d_ < 2 && power[1]) || (d_ < 3 && power[2])) continue;
                list.push_back(power);
            }
    terms_ = static_cast<int64_t>(list.size());
    if (terms_ > FAR_MAX_TERMS) throw std::invalid_argument("degree: too many polynomials");
    stride_ = padded(terms_, FAR_ALIGN);
    powers_.resize(3 * terms_);
    signs_.assign(8 * stride_, 0.0f);
    std::vector<int16_t> place((degree + 1) * (degree + 1) * (degree + 1), -1);
    const auto at = [&](const std::array<int, 3>& p) -> int16_t& {
        return place[(p[0] * (degree + 1) + p[1]) * (degree + 1) + p[2]];
    };
    for (int64_t s = 0; s < terms_; ++s) {
        at(list[s]) = static_cast<int16_t>(s);
        for (int c = 0; c < 3; ++c) powers_[c * terms_ + s] = list[s][c];
        for (int g = 0; g < 8; ++g) {
            int odd = 0;
            for (int c = 0; c < 3; ++c) odd += (g >> c & 1) * list[s][c];
            signs_[g * stride_ + s] = odd % 2 ? -1.0f : 1.0f;
        }
    }
    for (int half = 0; half < 2; ++half) {
        const auto E = halves(degree, half ? 1.0 : -1.0);
        for (int c = 0; c < d_; ++c) {
            std::vector<std::vector<std::pair<int32_t, double>>> up(terms_), down(terms_);
            for (int64_t s = 0; s < terms_; ++s)
                for (int b = 0; b <= list[s][c]; ++b) {
                    std::array<int, 3> lower = list[s];
                    lower[c] = b;
                    up[s].emplace_back(at(lower), E[list[s][c]][b]);
                    down[at(lower)].emplace_back(s, E[list[s][c]][b]);
                }
            for (int k = 0; k < 2; ++k) {
                Shift& shift = shifts_[c][half][k];
                shift = {{0}, {}, {}};
                for (const auto& row : k ? down : up) {
                    for (const auto& [column, weight] : row) {
                        shift.column.push_back(column);
                        shift.weight.push_back(weight);
                    }
                    shift.start.push_back(static_cast<int32_t>(shift.column.size()));
                }
            }
        }
    }
}

void FarPlan::link(int degree, const std::vector<FarLevel>& tables, double cutoff, double least) {
    set_basis(degree);
    statistics_ = {};
    levels_.clear();
    for (const FarLevel& from : tables) {
        Level level;
        for (int64_t s = 0; s < 3 * from.count; ++s)
            level.reach = std::max(level.reach, static_cast<int>(from.offsets[s]));
        const int64_t width = level.reach + 1;
        level.index.assign(width * width * width, -1);
        int64_t size = 0;
        for (int64_t s = 0; s < from.count; ++s) {
            const int32_t* o = from.offsets + 3 * s;
            level.index[(o[0] * width + o[1]) * width + o[2]] = static_cast<int32_t>(s);
            const int64_t terms = from.terms[s], rank = from.ranks[s];
            if (terms > terms_) throw std::invalid_argument("tables: more terms than the degree");
            Table table{
                terms, rank,          padded(terms, FAR_ALIGN), padded(rank, FAR_ALIGN), size,
                0,     from.errors[s]};
            table.right = table.left + rank * table.stride;
            size = table.right + terms * table.rank_stride;
            level.tables.push_back(table);
        }
        level.data = AlignedArray<float>(size);
        for (int64_t s = 0; s < from.count; ++s) {
            const Table& t = level.tables[s];
            float *left = level.data.data() + t.left, *right = level.data.data() + t.right;
            for (int64_t r = 0; r < t.rank; ++r)
                std::copy_n(from.left[s] + r * t.terms, t.terms, left + r * t.stride);
            for (int64_t b = 0; b < t.terms; ++b)
                std::copy_n(from.right[s] + b * t.rank, t.rank, right + b * t.rank_stride);
        }
        levels_.push_back(std::move(level));
    }

    near_.clear();
    std::vector<std::vector<Translation>> found(depth());
    std::vector<double> loss(2 * cells_.size(), 0.0);  // per row of each cell: error, culled
    visit(0, 0, 0, cutoff, least, found, loss);

    for (size_t s = 0; s < cells_.size(); ++s) {
        for (int k = 0; k < 2; ++k)
            if (cells_[s].parent >= 0) loss[2 * s + k] += loss[2 * cells_[s].parent + k];
        statistics_.bound = std::max(statistics_.bound, outputscale_ * loss[2 * s]);
        statistics_.culling_bound =
            std::max(statistics_.culling_bound, outputscale_ * loss[2 * s + 1]);
    }
    prune(found);
    set_local();
    statistics_.cells = static_cast<double>(cells_.size());

    translations_.clear();
    chunk_start_.assign(depth(), {});
    for (int level = 0; level < depth(); ++level) {
        const int64_t first = level_start_[level];
        const int64_t chunks = (level_start_[level + 1] - first + CHUNK - 1) / CHUNK;
        const auto key = [&](const Translation& t) {
            return std::make_pair((t.target - first) / CHUNK, static_cast<int64_t>(t.table));
        };
        std::sort(found[level].begin(), found[level].end(),
                  [&](const Translation& a, const Translation& b) {
                      const auto ka = key(a), kb = key(b);
                      return ka != kb ? ka < kb
                                      : std::make_pair(a.target, a.source) <
                                            std::make_pair(b.target, b.source);
                  });
        std::vector<int64_t>& starts = chunk_start_[level];
        size_t s = 0;
        for (int64_t chunk = 0; chunk <= chunks; ++chunk) {
            while (s < found[level].size() && (found[level][s].target - first) / CHUNK < chunk) ++s;
            starts.push_back(static_cast<int64_t>(translations_.size() + s));
        }
        translations_.insert(translations_.end(), found[level].begin(), found[level].end());
        std::vector<Translation>().swap(found[level]);
    }
    std::sort(near_.begin(), near_.end(), [](const Near& a, const Near& b) {
        return std::make_tuple(a.rows.begin, a.rows.end, a.cols.begin) <
               std::make_tuple(b.rows.begin, b.rows.end, b.cols.begin);
    });
    near_start_.clear();
    for (size_t s = 0; s < near_.size(); ++s)
        if (s == 0 || near_[s].rows.begin != near_[s - 1].rows.begin ||
            near_[s].rows.end != near_[s - 1].rows.end)
            near_start_.push_back(static_cast<int64_t>(s));
    near_start_.push_back(static_cast<int64_t>(near_.size()));
}

void FarPlan::visit(int level, int32_t a, int32_t b, double cutoff, double least,
                    std::vector<std::vector<Translation>>& found, std::vector<double>& loss) {
    const Cell &A = cells_[a], &B = cells_[b];
    const double entries = static_cast<double>(A.size()) * static_cast<double>(B.size());
    const double side = std::ldexp(side_, -level);
    int offset[3], signs = 0, top = 0;
    double gap = 0;
    for (int c = 0; c < 3; ++c) {
        const int o = A.at[c] - B.at[c];
        offset[c] = std::abs(o);
        signs |= (o < 0) << c;
        top = std::max(top, offset[c]);
        const double g = side * std::max(0, offset[c] - 1);
        gap += g * g;
    }
    if (gap > cutoff * cutoff) {
        loss[2 * a + 1] += least * static_cast<double>(B.size());
        loss[2 * b + 1] += least * static_cast<double>(A.size());
        statistics_.culled_entries += 2 * entries;
        return;
    }
    const bool known = level < static_cast<int>(levels_.size()) && top <= levels_[level].reach;
    if (known) {
        const Level& l = levels_[level];
        const int64_t width = l.reach + 1;
        const int32_t table = l.index[(offset[0] * width + offset[1]) * width + offset[2]];
        if (table >= 0) {
            const Table& t = l.tables[table];
            const double work = t.work();
            if (ENTRY_COST * entries <= TRANSLATE_COST * work) return add_near(A, B);
            int back = 0;
            for (int c = 0; c < 3; ++c) back |= (B.at[c] < A.at[c]) << c;
            found[level].push_back({a, b, static_cast<int16_t>(table), static_cast<int8_t>(signs)});
            found[level].push_back({b, a, static_cast<int16_t>(table), static_cast<int8_t>(back)});
            loss[2 * a] += t.error * static_cast<double>(B.size());
            loss[2 * b] += t.error * static_cast<double>(A.size());
            statistics_.error = std::max(statistics_.error, outputscale_ * t.error);
            statistics_.translations += 2 * work;
            return;
        }
    }
    if (!A.children || !B.children || entries <= direct_) return add_near(A, B);
    for (int32_t s = 0; s < A.children; ++s)
        for (int32_t r = 0; r < (a == b ? s + 1 : B.children); ++r)
            visit(level + 1, A.first_child + s, B.first_child + r, cutoff, least, found, loss);
}

void FarPlan::add_near(const Cell& a, const Cell& b) {
    const bool same = a.begin == b.begin && a.end == b.end;
    for (int64_t i = a.begin; i < a.end; i += STRIPE)
        for (int64_t j = b.begin; j < (same ? i + 1 : b.end); j += STRIPE) {
            const Near item{
                {i, std::min(i + STRIPE, a.end)}, {j, std::min(j + STRIPE, b.end)}, same && i == j};
            near_.push_back(item);
            const double entries = static_cast<double>((item.rows.end - item.rows.begin) *
                                                       (item.cols.end - item.cols.begin));
            statistics_.evaluations += entries;
            statistics_.near_entries += item.same ? entries : 2 * entries;
        }
}

namespace {

// Adds values of points [begin, begin + count) to sums kept as [stripe][t][STRIPE].
void add_points(ReproducibleSums& sums, int64_t begin, int64_t count, int64_t t, double* values,
                int64_t value_stride) {
    for (int64_t i = begin; i < begin + count;) {
        const int64_t stripe = i / STRIPE, end = std::min(begin + count, (stripe + 1) * STRIPE);
        for (int64_t c = 0; c < t; ++c)
            sums.take_at(stripe, (stripe * t + c) * STRIPE + i % STRIPE,
                         values + c * value_stride + (i - begin), end - i);
        i = end;
    }
}

}  // namespace

void FarPlan::near_field(const Columns& v, const Run& run, ReproducibleSums& sums) const {
    const int64_t t = v.t, tasks = static_cast<int64_t>(near_start_.size()) - 1;
    const int threads =
        static_cast<int>(std::min<int64_t>(run.threads, std::max<int64_t>(tasks, 1)));
    // x, z: [d]; u, v, sums: [t] of FAR_BLOCK each
    std::vector<AlignedArray<float>> rooms;
    std::vector<AlignedArray<double>> totals;
    for (int k = 0; k < threads; ++k) {
        rooms.emplace_back(FAR_BLOCK * (6 + 4 * t + FAR_ROWS));
        totals.emplace_back(t * (STRIPE + FAR_BLOCK));
    }
    // Coordinates are relative to the point `base`, which is near: none of their digits are lost.
    const auto fill = [&](const Range& r, int64_t base, float* x, float* y) {
        const int64_t size = r.end - r.begin;
        for (int c = 0; c < d_; ++c) {
            const double *from = coordinates_.data() + c * n_ + r.begin,
                         middle = coordinates_[c * n_ + base];
            float* to = x + c * FAR_BLOCK;
            for (int64_t i = 0; i < size; ++i) to[i] = static_cast<float>(from[i] - middle);
            std::fill(to + size, to + padded(size, FAR_ALIGN), to[size - 1]);
        }
        for (int64_t c = 0; c < t; ++c) {
            const float* from = v.narrow.data() + c * n_ + r.begin;
            std::copy(from, from + size, y + c * FAR_BLOCK);
            std::fill(y + c * FAR_BLOCK + size, y + c * FAR_BLOCK + padded(size, FAR_ALIGN), 0.0f);
        }
    };
    parallel(tasks, run, [&](int thread, int64_t task) {
        float* p = rooms[thread].data();
        double *rows = totals[thread].data(), *cols = rows + t * STRIPE;
        float *x = p, *z = p + 3 * FAR_BLOCK, *u = z + 3 * FAR_BLOCK, *w = u + t * FAR_BLOCK,
              *row_sums = w + t * FAR_BLOCK, *col_sums = row_sums + t * FAR_BLOCK,
              *k = col_sums + t * FAR_BLOCK;
        const Range all = near_[near_start_[task]].rows;
        bool any = false;
        for (int64_t i = all.begin; i < all.end; i += FAR_BLOCK) {
            const Range r{i, std::min(i + FAR_BLOCK, all.end)};
            fill(r, i, x, u);
            for (int64_t s = near_start_[task]; s < near_start_[task + 1]; ++s) {
                const Near& item = near_[s];
                if (!run.owns(item.rows.begin, item.cols.begin)) continue;
                any = true;
                for (int64_t j = item.cols.begin; j < item.cols.end; j += FAR_BLOCK) {
                    if (item.same && j > i) break;
                    const Range c{j, std::min(j + FAR_BLOCK, item.cols.end)};
                    fill(c, i, z, w);
                    std::fill(row_sums, row_sums + 2 * t * FAR_BLOCK, 0.0f);
                    const bool both = !(item.same && i == j);
                    isa_.far.near_block({family_, static_cast<float>(alpha_), d_, t,
                                         padded(r.end - r.begin, FAR_ROWS),
                                         padded(c.end - c.begin, FAR_ALIGN), x, z, u, w, both,
                                         row_sums, col_sums, k});
                    for (int64_t b = 0; b < t; ++b)
                        for (int64_t q = 0; q < r.end - r.begin; ++q)
                            rows[b * STRIPE + i - all.begin + q] +=
                                static_cast<double>(row_sums[b * FAR_BLOCK + q]);
                    if (!both) continue;
                    for (int64_t b = 0; b < t; ++b)
                        for (int64_t q = 0; q < c.end - c.begin; ++q)
                            cols[b * FAR_BLOCK + q] =
                                static_cast<double>(col_sums[b * FAR_BLOCK + q]);
                    add_points(sums, j, c.end - c.begin, t, cols, FAR_BLOCK);
                }
            }
        }
        if (any) add_points(sums, all.begin, all.end - all.begin, t, rows, STRIPE);
    });
}

// Between a cell and its parent: moments up, or the polynomial (its transpose) down.
void FarPlan::move(const double* from, double* to, double* room, const Cell& child, bool up) const {
    const double* source = from;
    for (int c = 0; c < d_; ++c) {
        const bool last = c + 1 == d_;
        double* target = last ? to : room + (c % 2) * stride_;
        const Shift& shift = shifts_[c][child.at[c] & 1][up ? 0 : 1];
        const int32_t *column = shift.column.data(), *start = shift.start.data();
        const double* weight = shift.weight.data();
        for (int64_t b = 0; b < terms_; ++b) {
            double sum = last ? target[b] : 0.0;
            for (int32_t q = start[b]; q < start[b + 1]; ++q) sum += weight[q] * source[column[q]];
            target[b] = sum;
        }
        source = target;
    }
}

void FarPlan::translate(int level, int64_t chunk, const float* moments, int64_t t, const Run& run,
                        float* room, double* local) const {
    const int64_t first = level_start_[level], stop = chunk_start_[level][chunk + 1];
    const Level& l = levels_[level];
    float *x = room, *y = x + (BATCH + t + FAR_COLUMNS) * stride_,
          *z = y + (BATCH + t + FAR_COLUMNS) * stride_;
    for (int64_t s = chunk_start_[level][chunk]; s < stop;) {
        const int32_t index = translations_[s].table;
        const Table& table = l.tables[index];
        int64_t end = s, count = 0;
        for (; end < stop && translations_[end].table == index && count < BATCH; ++end, count += t)
            for (int64_t c = 0; c < t; ++c) {
                const float* m = moments + (translations_[end].source * t + c) * stride_;
                const float* sign = signs_.data() + translations_[end].signs * stride_;
                isa_.far.reflect(sign, m, x + (count + c) * stride_, table.stride);
            }
        if (run.owns(first + chunk, index)) {
            const int64_t columns = padded(count, FAR_COLUMNS);
            isa_.far.translate(l.data.data() + table.right, table.terms, table.rank_stride, x, z,
                               columns, stride_);
            isa_.far.translate(l.data.data() + table.left, table.rank, table.stride, z, y, columns,
                               stride_);
            for (int64_t q = s; q < end; ++q)
                for (int64_t c = 0; c < t; ++c) {
                    const float* from = y + ((q - s) * t + c) * stride_;
                    const float* sign = signs_.data() + translations_[q].signs * stride_;
                    double* to = local + ((translations_[q].target - first) * t + c) * stride_;
                    isa_.far.add_reflected(sign, from, to, table.stride);
                }
        }
        s = end;
    }
}

void FarPlan::far_field(const Columns& v, int64_t column, int64_t t, const Run& run,
                        double* out) const {
    const int64_t width = t * stride_;
    const FarBasis basis{degree_, terms_, powers_.data()};
    AlignedArray<float> moments(static_cast<int64_t>(cells_.size()) * width);
    std::vector<AlignedArray<double>> rooms;
    std::vector<AlignedArray<float>> batches;
    for (int k = 0; k < run.threads; ++k) {
        rooms.emplace_back(t * terms_ * 8 + 2 * stride_);
        batches.emplace_back(3 * (BATCH + t + FAR_COLUMNS) * stride_);
    }
    const auto in_level = [&](int level) { return level_start_[level + 1] - level_start_[level]; };

    AlignedArray<double> below, here;
    for (int level = depth() - 1; level >= 0; --level) {
        here = AlignedArray<double>(in_level(level) * width);
        parallel((in_level(level) + CHUNK - 1) / CHUNK, run, [&](int thread, int64_t chunk) {
            const int64_t end = std::min((chunk + 1) * CHUNK, in_level(level));
            for (int64_t s = chunk * CHUNK; s < end; ++s) {
                const Cell& cell = cells_[level_start_[level] + s];
                double* m = here.data() + s * width;
                if (!cell.children)
                    isa_.far.moments(basis, local_.data() + 3 * cell.begin, cell.size(),
                                     v.wide.data() + column * n_ + cell.begin, n_, t, m, stride_,
                                     rooms[thread].data());
                for (int32_t q = 0; q < cell.children; ++q) {
                    const int64_t child = cell.first_child + q;
                    for (int64_t c = 0; c < t; ++c)
                        move(below.data() + (child - level_start_[level + 1]) * width + c * stride_,
                             m + c * stride_, rooms[thread].data(), cells_[child], true);
                }
                float* to = moments.data() + (level_start_[level] + s) * width;
                for (int64_t b = 0; b < width; ++b) to[b] = static_cast<float>(m[b]);
            }
        });
        std::swap(below, here);
    }

    AlignedArray<double> above;
    for (int level = 0; level < depth(); ++level) {
        here = AlignedArray<double>(in_level(level) * width);
        parallel((in_level(level) + CHUNK - 1) / CHUNK, run, [&](int thread, int64_t chunk) {
            const int64_t end = std::min((chunk + 1) * CHUNK, in_level(level));
            translate(level, chunk, moments.data(), t, run, batches[thread].data(), here.data());
            for (int64_t s = chunk * CHUNK; s < end; ++s) {
                const Cell& cell = cells_[level_start_[level] + s];
                double* l = here.data() + s * width;
                if (level > 0)
                    for (int64_t c = 0; c < t; ++c)
                        move(above.data() + (cell.parent - level_start_[level - 1]) * width +
                                 c * stride_,
                             l + c * stride_, rooms[thread].data(), cell, false);
                if (!cell.children)
                    isa_.far.evaluate(basis, local_.data() + 3 * cell.begin, cell.size(), l,
                                      stride_, t, out + cell.begin, n_);
            }
        });
        std::swap(above, here);
    }
}

void FarPlan::matmul(const double* v, int64_t t, double* out, const Run& run) const {
    std::vector<int> exponents(t, 0);
    std::vector<double> top(t, 0.0);
    for (int64_t i = 0; i < n_; ++i)
        for (int64_t c = 0; c < t; ++c) top[c] = std::max(top[c], std::fabs(v[i * t + c]));
    for (int64_t c = 0; c < t; ++c) std::frexp(top[c], &exponents[c]);
    Columns columns{n_, t, std::vector<double>(n_ * t), std::vector<float>(n_ * t)};
    for (int64_t i = 0; i < n_; ++i)
        for (int64_t c = 0; c < t; ++c) {
            const double x = std::ldexp(v[order_[i] * t + c], -exponents[c]);
            columns.wide[c * n_ + i] = x;
            columns.narrow[c * n_ + i] = static_cast<float>(x);
        }

    ReproducibleSums sums(isa_, padded(n_, STRIPE) * t, STRIPE * t, 1.01 * static_cast<double>(n_),
                          static_cast<int64_t>(near_.size()) + 1);
    near_field(columns, run, sums);
    const double each = static_cast<double>(cells_.size() * stride_) * 16;
    const int64_t part =
        std::max<int64_t>(1, std::min<int64_t>(t, static_cast<int64_t>(ROOM / each)));
    std::vector<double> far(n_ * part);
    for (int64_t first = 0; first < t; first += part) {
        const int64_t count = std::min(part, t - first);
        far_field(columns, first, count, run, far.data());
        for (int64_t i = 0; i < n_; ++i)
            for (int64_t c = 0; c < count; ++c)
                out[order_[i] * t + first + c] =
                    outputscale_ *
                    std::ldexp(
                        far[c * n_ + i] + sums[(i / STRIPE * t + first + c) * STRIPE + i % STRIPE],
                        exponents[first + c]);
    }
}

}  // namespace megagp
