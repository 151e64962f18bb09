// Chooses the int8 kernels for the processor at hand, and offers them to the outside.
#include "../../engine/kernels/processor.hpp"
#include "api_functions.hpp"
#include "int8_kernels.hpp"
#include "windows_checking.hpp"

namespace selfish {

#define SELFISH_DECLARE(name)       \
  namespace name {                  \
  extern const Int8Kernels kernels; \
  }
SELFISH_DECLARE(int8_portable)
#ifdef SELFISH_X86
SELFISH_DECLARE(int8_avx2)
SELFISH_DECLARE(int8_avx_vnni)
SELFISH_DECLARE(int8_avx512_vnni)
SELFISH_DECLARE(int8_avx512_vbmi)
#endif

namespace {

constexpr Target kTargets[] = {Target::kPortable, Target::kAVX2, Target::kAVXVNNI, Target::kAVX512VNNI,
                               Target::kAVX512VBMI};
constexpr int64_t kTargetCount = sizeof(kTargets) / sizeof(kTargets[0]);

bool runs(int64_t wanted) { return wanted >= 0 && wanted < kTargetCount && processor_runs(kTargets[wanted]); }

int64_t int8_target = best_of(kTargets);

const Int8Kernels& chosen() {
  switch (kTargets[int8_target]) {
#ifdef SELFISH_X86
    case Target::kAVX2: return int8_avx2::kernels;
    case Target::kAVXVNNI: return int8_avx_vnni::kernels;
    case Target::kAVX512VNNI: return int8_avx512_vnni::kernels;
    case Target::kAVX512VBMI: return int8_avx512_vbmi::kernels;
#endif
    default: return int8_portable::kernels;
  }
}

WindowsPacking packing(const Int8Weights& weights) {
  return WindowsPacking(weights, chosen().step.rules.height, chosen().step.rules.planes_for(weights));
}

}  // namespace

const StepKernels& step_kernels() { return chosen().step; }

extern "C" {

int64_t selfish_windows_bytes(const Int8Weights* weights) { return packing(*weights).header().bytes; }
void selfish_windows_build(const Int8Weights* weights, char* memory) { packing(*weights).build(memory); }
int64_t selfish_windows_valid(const void* windows, int64_t bytes) {
  return WindowsChecking{static_cast<const char*>(windows), {}}.valid(bytes, chosen().step.rules.height,
                                                                      chosen().has_planes);
}
void selfish_windows_weights(const void* windows, int64_t* first, uint16_t* column, int8_t* value, float* scale) {
  windows_weights(Windows(windows), first, column, value, scale);
}

void selfish_int8_linear(const void* windows, const float* bias, const float* x, int64_t n, float* y) {
  chosen().linear(windows, bias, x, n, y);
}
void selfish_int8_lookup(const void* windows, const int64_t* tokens, int64_t n, float* y) {
  const Windows matrix(windows);
  for (int64_t at = 0; at < n; ++at) matrix.lookup(tokens[at], y + at * matrix.columns());
}
void selfish_int8_layer(const Int8Layer* layer) { chosen().layer(layer); }

int64_t selfish_int8_target() { return int8_target; }
int64_t selfish_int8_target_runs(int64_t wanted) { return runs(wanted); }
void selfish_int8_use_target(int64_t wanted) { int8_target = runs(wanted) ? wanted : best_of(kTargets); }

}  // extern "C"
}  // namespace selfish
