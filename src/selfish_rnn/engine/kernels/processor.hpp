// Targets of all kernels, and the instruction sets each needs: the only place that asks the processor.
#pragma once

#include <cstdint>

namespace selfish {

enum class Target : int64_t { kPortable, kAVX2, kAVXVNNI, kAVX512, kAVX512BF16, kAVX512VNNI, kAVX512VBMI };

inline bool processor_runs(Target target) {
#ifdef SELFISH_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  switch (target) {
    case Target::kPortable: return true;
    case Target::kAVX2: return avx2;
    case Target::kAVXVNNI: return avx2 && __builtin_cpu_supports("avxvnni");
    case Target::kAVX512: return avx512;
    case Target::kAVX512BF16: return avx512 && __builtin_cpu_supports("avx512bf16");
    case Target::kAVX512VNNI: return vnni;
    case Target::kAVX512VBMI:
      return vnni && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  }
#endif
  return target == Target::kPortable;
}

// The last of some targets, which are sorted from the slowest, that the processor runs.
template <int64_t count>
int64_t best_of(const Target (&targets)[count]) {
  int64_t best = count - 1;
  while (!processor_runs(targets[best])) --best;
  return best;
}

}  // namespace selfish
