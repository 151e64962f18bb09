// The bfloat16 kernels as one table of functions, compiled for AVX512_BF16 and as an emulation for any processor.
#pragma once

#include "bf16_abi.hpp"

namespace selfish {

// Each has the signature of the function of the library that calls it.
struct Bf16Kernels {
  decltype(&selfish_bf16_rows) rows;
  decltype(&selfish_bf16_step_columns) step_columns;
  decltype(&selfish_bf16_wide_columns) wide_columns;
  decltype(&selfish_bf16_linear) linear;
  decltype(&selfish_bf16_linear_backward) linear_backward;
  decltype(&selfish_bf16_cross_entropy) cross_entropy;
  decltype(&selfish_bf16_layer_forward) layer_forward;
  decltype(&selfish_bf16_layer_backward) layer_backward;
  decltype(&selfish_bf16_highway_forward) highway_forward;
  decltype(&selfish_bf16_highway_backward) highway_backward;
};

}  // namespace selfish

#ifdef SELFISH_TARGET
#include "bf16_highway.hpp"
#include "bf16_loss.hpp"
#include "bf16_recurrent.hpp"

namespace selfish {
namespace SELFISH_TARGET {

extern const Bf16Kernels bf16_kernels;
const Bf16Kernels bf16_kernels = {
    [](const uint16_t* operands, int64_t features, int64_t n, float* rows) {
      rows_from_operands(operands, features, wide_panels(n), rows);
    },
    [](int64_t batch) { return StepBlocks(LayerShape{0, 1, batch, 1}).columns(); },
    [](int64_t n) { return operand_numbers(wide_panels(n), 1); },
    [](const void* index, const void* bf16_index, const float* values, const float* bias, const float* x, int64_t n,
       float* y, void* work) { return bf16_linear(Bf16Matrix(index, bf16_index, values), bias, x, n, y, work); },
    [](const void* index, const void* bf16_index, const float* values, const float* x, const float* d, int64_t n,
       float* x_gradient, float* gradients, float* bias_gradient, void* work) {
      return bf16_linear_backward(Bf16Matrix(index, bf16_index, values), x, d, n, x_gradient, gradients, bias_gradient,
                                  work);
    },
    [](const void* index, const void* bf16_index, const float* values, const float* bias, const float* x,
       const int64_t* targets, int64_t n, float* x_gradient, float* gradients, float* bias_gradient, double* loss,
       void* work) {
      return bf16_cross_entropy(Bf16Matrix(index, bf16_index, values), bias, x, targets, n, x_gradient, gradients,
                                bias_gradient, loss, work);
    },
    bf16_layer_forward,
    bf16_layer_backward,
    [](const Bf16HighwayForward* layer) { return bf16_highway_forward(*layer); },
    [](const Bf16HighwayBackward* layer) { return bf16_highway_backward(*layer); },
};

}  // namespace SELFISH_TARGET
}  // namespace selfish
#endif
