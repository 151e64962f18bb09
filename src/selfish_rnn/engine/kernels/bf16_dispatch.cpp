// Chooses the bfloat16 kernels, and offers them to the outside.
#include <cstdlib>

#include "bf16_kernels.hpp"
#include "processor.hpp"

namespace selfish {
namespace portable_bf16 {
extern const Bf16Kernels bf16_kernels;
}
#ifdef SELFISH_X86
namespace avx512_bf16 {
extern const Bf16Kernels bf16_kernels;
}
#endif

namespace {

enum Bf16Target : int64_t { kNone, kEmulation, kAVX512BF16 };

// The emulation belongs to the portable kernels, which nobody gets without asking for them on a better processor.
Bf16Target target() {
  static const bool native = processor_runs(Target::kAVX512BF16);
  if (selfish_target() == 0) return kEmulation;
  return native && selfish_target() == selfish_best_target() ? kAVX512BF16 : kNone;
}

const Bf16Kernels& chosen() {
#ifdef SELFISH_X86
  if (target() == kAVX512BF16) return avx512_bf16::bf16_kernels;
#endif
  return portable_bf16::bf16_kernels;
}

}  // namespace

extern "C" {

int64_t selfish_bf16_target() { return target(); }

int64_t selfish_bf16_step_columns(int64_t batch) { return chosen().step_columns(batch); }
int64_t selfish_bf16_wide_columns(int64_t n) { return chosen().wide_columns(n); }
void selfish_bf16_rows(const uint16_t* operands, int64_t features, int64_t n, float* rows) {
  chosen().rows(operands, features, n, rows);
}

int64_t selfish_bf16_linear(const void* index, const void* bf16_index, const float* values, const float* bias,
                            const float* x, int64_t n, float* y, void* work) {
  return chosen().linear(index, bf16_index, values, bias, x, n, y, work);
}

int64_t selfish_bf16_linear_backward(const void* index, const void* bf16_index, const float* values, const float* x,
                                     const float* d, int64_t n, float* x_gradient, float* gradients,
                                     float* bias_gradient, void* work) {
  return chosen().linear_backward(index, bf16_index, values, x, d, n, x_gradient, gradients, bias_gradient, work);
}

int64_t selfish_bf16_cross_entropy(const void* index, const void* bf16_index, const float* values, const float* bias,
                                   const float* x, const int64_t* targets, int64_t n, float* x_gradient,
                                   float* gradients, float* bias_gradient, double* loss, void* work) {
  return chosen().cross_entropy(index, bf16_index, values, bias, x, targets, n, x_gradient, gradients, bias_gradient,
                                loss, work);
}

int64_t selfish_bf16_layer_forward(const Bf16LayerForward* layer) { return chosen().layer_forward(layer); }
int64_t selfish_bf16_layer_backward(const Bf16LayerBackward* layer) { return chosen().layer_backward(layer); }
int64_t selfish_bf16_highway_forward(const Bf16HighwayForward* layer) { return chosen().highway_forward(layer); }
int64_t selfish_bf16_highway_backward(const Bf16HighwayBackward* layer) { return chosen().highway_backward(layer); }

}  // extern "C"
}  // namespace selfish
