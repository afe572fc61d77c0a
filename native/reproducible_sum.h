// Sums of doubles that do not depend on the order of their terms.
//
// Every term is split on two fixed grids: hi = the multiple of q1 nearest to x, lo = the multiple
// of q2 nearest to x - hi. Sums of multiples of q below 2^53 q are exact, so any order (any number
// of threads, any distribution of tasks) gives the same bits. With a bound on the sums given in
// advance, q1 = bound 2^-51 and q2 = q1 2^-51 times the number of terms: some 90 bits below the
// bound are kept.
#pragma once
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>

#include "driver.h"

namespace megagp {

class ReproducibleSums {
  public:
    // `size` sums, each at most `bound` in magnitude, of at most `terms` terms; locked per `chunk`.
    ReproducibleSums(const InstructionSet& isa, int64_t size, int64_t chunk, double bound,
                     int64_t terms)
        : isa_(isa),
          hi_(size),
          lo_(size),
          chunk_(chunk),
          locks_(new std::mutex[size ? (size + chunk - 1) / chunk + 1 : 0]) {
        int e;
        std::frexp(bound > 0 ? bound : 1.0, &e);
        magic_hi_ = std::ldexp(1.5, e + 1);
        int bits;
        std::frexp(static_cast<double>(terms), &bits);
        magic_lo_ = std::ldexp(1.5, e + 1 - 52 + bits);
    }

    // Moves values[0 .. count) to sums [chunk_index * chunk, ...): adds them and leaves zeros.
    void take(int64_t chunk_index, double* values, int64_t count) {
        std::lock_guard<std::mutex> lock(locks_[chunk_index]);
        const int64_t first = chunk_index * chunk_;
        isa_.add_split(values, count, magic_hi_, magic_lo_, hi_.data() + first, lo_.data() + first);
    }

    // The same for sums [first, first + count), all of which lie in that chunk.
    void take_at(int64_t chunk_index, int64_t first, double* values, int64_t count) {
        std::lock_guard<std::mutex> lock(locks_[chunk_index]);
        isa_.add_split(values, count, magic_hi_, magic_lo_, hi_.data() + first, lo_.data() + first);
    }

    double operator[](int64_t s) const { return hi_.data()[s] + lo_.data()[s]; }

  private:
    const InstructionSet& isa_;
    AlignedArray<double> hi_, lo_;
    int64_t chunk_;
    double magic_hi_, magic_lo_;
    std::unique_ptr<std::mutex[]> locks_;
};

}  // namespace megagp
