// The threads that work on one call, and what of it falls to each. Without OpenMP there is one.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace selfish {
namespace SELFISH_TARGET {

struct Part {
  int64_t begin, end;
};

struct Team {
  int64_t thread = 0, size = 1;

#ifdef _OPENMP
  Team() : thread(omp_get_thread_num()), size(omp_get_num_threads()) {}
#else
  Team() = default;
#endif
  Team(int64_t thread_, int64_t size_) : thread(thread_), size(size_) {}
  static Team alone() { return {0, 1}; }

  // So much of the numbers from 0 on, in pieces of at least 16: no two threads write to one cache line.
  Part of(int64_t count) const {
    const auto bound = [&](int64_t which) { return std::min(count, (count * which / size + 15) / 16 * 16); };
    return {bound(thread), thread + 1 == size ? count : bound(thread + 1)};
  }
  // So many tasks in turn.
  template <class Task>
  void each(int64_t count, Task task) const {
    for (int64_t at = thread; at < count; at += size) task(at);
  }

  void wait() const {
#pragma omp barrier
  }
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
