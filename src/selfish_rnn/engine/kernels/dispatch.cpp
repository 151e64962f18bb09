// Chooses the kernels for the processor at hand, and offers them to the outside.
#include <string>

#include "../../runtime/kernels/abi.hpp"
#include "bf16_abi.hpp"
#include "kernels.hpp"
#include "processor.hpp"

namespace selfish {
namespace portable {
extern const Kernels kernels;
}
#ifdef SELFISH_X86
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

constexpr Target kTargets[] = {Target::kPortable, Target::kAVX2, Target::kAVX512};

int64_t target = best_of(kTargets);

const Kernels& chosen() {
#ifdef SELFISH_X86
  if (kTargets[target] == Target::kAVX512) return avx512::kernels;
  if (kTargets[target] == Target::kAVX2) return avx2::kernels;
#endif
  return portable::kernels;
}

}  // namespace

extern "C" {

const char* selfish_description() {
  static const std::string all = std::string(kDescription) + " " + kInferenceDescription + " " + kBf16Description;
  return all.c_str();
}

const int64_t* selfish_structure_sizes() {
  static const int64_t sizes[] = {sizeof(IndexHeader),
                                  sizeof(LayerShape),
                                  sizeof(LayerWeights),
                                  sizeof(LayerGradients),
                                  sizeof(LayerForward),
                                  sizeof(LayerBackward),
                                  sizeof(HighwayForward),
                                  sizeof(HighwayBackward),
                                  sizeof(OrderedForward),
                                  sizeof(OrderedBackward),
                                  sizeof(WindowsHeader),
                                  sizeof(Int8Weights),
                                  sizeof(Int8Layer),
                                  sizeof(Bf16Weights),
                                  sizeof(Bf16LayerForward),
                                  sizeof(Bf16LayerBackward),
                                  sizeof(Bf16HighwayForward),
                                  sizeof(Bf16HighwayBackward),
                                  0};
  return sizes;
}

int64_t selfish_best_target() { return best_of(kTargets); }
int64_t selfish_target_runs(int64_t wanted) { return wanted >= 0 && wanted <= best_of(kTargets); }
int64_t selfish_target() { return target; }
void selfish_use_target(int64_t wanted) { target = selfish_target_runs(wanted) ? wanted : best_of(kTargets); }

int64_t selfish_threaded() { return kThreaded; }

int64_t selfish_panel_width(int64_t columns) { return chosen().panel_width(columns); }
int64_t selfish_panel_floats(int64_t columns, int64_t features) { return chosen().panel_floats(columns, features); }
int64_t selfish_step_floats(int64_t batch, int64_t features) { return chosen().step_floats(batch, features); }
int64_t selfish_cross_entropy_floats(int64_t n, int64_t rows, int64_t columns) {
  return chosen().cross_entropy_floats(n, rows, columns);
}

void selfish_linear(const void* index, const float* values, const float* bias, const float* x, int64_t n, float* y,
                    float* work) {
  chosen().linear(index, values, bias, x, n, y, work);
}

void selfish_linear_backward(const void* index, const float* values, const float* x, const float* d, int64_t n,
                             float* x_gradient, float* gradients, float* bias_gradient, float* values_t, float* work) {
  chosen().linear_backward(index, values, x, d, n, x_gradient, gradients, bias_gradient, values_t, work);
}

double selfish_cross_entropy(const void* index, const float* values, const float* bias, const float* x,
                             const int64_t* targets, int64_t n, float* x_gradient, float* gradients,
                             float* bias_gradient, float* values_t, float* work) {
  return chosen().cross_entropy(index, values, bias, x, targets, n, x_gradient, gradients, bias_gradient, values_t,
                                work);
}

void selfish_lookup(const void* index, const float* values, const int64_t* tokens, int64_t n, float* y) {
  chosen().lookup(index, values, tokens, n, y);
}

void selfish_lookup_backward(const void* index, const int64_t* tokens, const float* d, int64_t n, float* gradients) {
  chosen().lookup_backward(index, tokens, d, n, gradients);
}

void selfish_layer_forward(const LayerForward* layer) { chosen().layer_forward(layer); }
void selfish_layer_backward(const LayerBackward* layer) { chosen().layer_backward(layer); }
void selfish_highway_forward(const HighwayForward* layer) { chosen().highway_forward(layer); }
void selfish_highway_backward(const HighwayBackward* layer) { chosen().highway_backward(layer); }
void selfish_ordered_forward(const OrderedForward* layer) { chosen().ordered_forward(layer); }
void selfish_ordered_backward(const OrderedBackward* layer) { chosen().ordered_backward(layer); }

}  // extern "C"
}  // namespace selfish
