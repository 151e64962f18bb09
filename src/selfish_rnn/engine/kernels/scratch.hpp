// Memory in which a thread works.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "packed.hpp"

namespace selfish {
namespace SELFISH_TARGET {

// Memory of one thread that is kept from call to call.
inline float* scratch(int64_t floats) {
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  static thread_local std::unique_ptr<float, Free> memory;
  static thread_local int64_t size = 0;
  if (floats > size) {
    size = (floats + 1023) / 1024 * 1024;
    memory.reset(static_cast<float*>(std::aligned_alloc(kAlignment, size * sizeof(float))));
  }
  return memory.get();
}

}  // namespace SELFISH_TARGET
}  // namespace selfish
