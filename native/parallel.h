// Threads over a counter of tasks, stoppable from the calling thread.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "driver.h"

namespace megagp {

// Kernels of far points underflow to subnormal numbers, on which arithmetic is many times
// slower. They are below any error that matters: our own threads (and no other) treat them as 0.
inline void flush_subnormals() {
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

// Calls work(thread, task) for every task. The calling thread only waits and
// asks `run.interrupted` twenty times a second, so Ctrl-C stops the threads at their next task.
template <class Work>
void parallel(int64_t tasks, const Run& run, Work work) {
    const int count = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(run.threads, tasks)));
    std::atomic<int64_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable done;
    std::exception_ptr error;
    int active = count;

    auto loop = [&](int thread) {
        flush_subnormals();
        try {
            while (!stop.load(std::memory_order_relaxed)) {
                const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
                if (task >= tasks) break;
                work(thread, task);
            }
        } catch (...) {
            stop = true;
            std::lock_guard<std::mutex> lock(mutex);
            error = std::current_exception();
        }
        std::lock_guard<std::mutex> lock(mutex);
        if (--active == 0) done.notify_all();
    };

    std::vector<std::thread> threads;
    for (int k = 0; k < count; ++k) {
        try {
            threads.emplace_back(loop, k);
        } catch (...) {  // no more threads to be had: finish with those that run
            std::lock_guard<std::mutex> lock(mutex);
            active -= count - k;
            if (k == 0) error = std::current_exception();
            break;
        }
    }
    bool interrupted = false;
    {
        std::unique_lock<std::mutex> lock(mutex);
        while (active > 0) {
            done.wait_for(lock, std::chrono::milliseconds(50));
            if (active > 0 && !interrupted) {
                lock.unlock();
                if (run.interrupted()) interrupted = stop = true;
                lock.lock();
            }
        }
    }
    for (std::thread& t : threads) t.join();
    if (error) std::rethrow_exception(error);
    if (interrupted) throw Interrupted{};
}

}  // namespace megagp
