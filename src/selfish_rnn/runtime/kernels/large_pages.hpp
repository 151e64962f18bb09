// Weights that are read once for every word wait for the translation of addresses, and processors fetch ahead no
// further than a page. Pages of 2 MiB, where the system gives them instead of 4 KiB, make large models a quarter
// faster.
#pragma once

#include <cstdint>
#include <memory>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace selfish {

constexpr int64_t kLargePage = int64_t{1} << 21;

// Asks for large pages wherever one lies wholly in memory that was not written to yet.
inline void ask_large_pages([[maybe_unused]] char* memory, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto from = (reinterpret_cast<uintptr_t>(memory) + kLargePage - 1) / kLargePage * kLargePage;
  const auto to = (reinterpret_cast<uintptr_t>(memory) + bytes) / kLargePage * kLargePage;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // whether or not it is granted
#endif
}

// Memory that nothing was written to yet: it begins on a cache line, and with a large page where it has room for one.
class FreshMemory {
 public:
  FreshMemory() = default;
  explicit FreshMemory(int64_t bytes) : room_(bytes + (bytes < kLargePage ? 64 : kLargePage)) {
#ifdef __linux__  // what new gives may have been in use before, in small pages
    constexpr int kKind = MAP_PRIVATE | MAP_ANONYMOUS;
    void* fresh = bytes < kLargePage ? MAP_FAILED : mmap(nullptr, room_, PROT_READ | PROT_WRITE, kKind, -1, 0);
    if (fresh != MAP_FAILED) memory_.reset(static_cast<char*>(fresh), [room = room_](char* old) { munmap(old, room); });
#endif
    if (memory_ == nullptr) memory_.reset(new char[room_], [](char* old) { delete[] old; });
    const uintptr_t step = room_ - bytes;
    begin_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_.get()) + step - 1) / step * step);
  }
  char* begin() const { return begin_; }

 private:
  int64_t room_ = 0;
  std::shared_ptr<char> memory_;
  char* begin_ = nullptr;
};

}  // namespace selfish
