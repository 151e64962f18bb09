// The bfloat16 kernels as library.py calls them; see abi.hpp. Each that takes `work` returns how many floats of it
// there must be if it is null, and computes otherwise.
#pragma once

#include "abi.hpp"

#define SELFISH_BF16_ABI(...) \
  __VA_ARGS__                 \
  constexpr char kBf16Description[] = #__VA_ARGS__;

namespace selfish {

// clang-format off
SELFISH_BF16_ABI(

// Both indexes of two matrices: bf16_index is derived by selfish_bf16_index_build.
struct Bf16Weights {
  const void* input_index;
  const void* input_bf16_index;
  const float* input_values;
  const void* recurrent_index;
  const void* recurrent_bf16_index;
  const float* recurrent_values;
};

// The members have the meanings of LayerForward; panels are operands, rounded.
struct Bf16LayerForward {
  LayerShape shape;
  int64_t keep;  // a backward pass follows
  Bf16Weights weights;
  const float* bias;
  const float* recurrent_bias;
  const float* x;
  const float* h_first;
  const float* c_first;
  float* y;
  float* h_last;
  float* c_last;
  float* gates;            // kept
  float* states;           // kept, by a cell whose backward pass reads them; without a backward pass two steps
  float* cells;            // kept; without a backward pass two steps
  float* extra;            // kept, by a cell that needs more
  uint16_t* h_panels;    // kept: h before every token, in wide panels
  void* work;
};

struct Bf16LayerBackward {
  LayerShape shape;
  Bf16Weights weights;
  const float* x;
  const float* gates;
  const float* states;
  const float* cells;
  const float* extra;
  const uint16_t* h_panels;
  const float* dy;
  const float* dh_last;
  const float* dc_last;
  LayerGradients gradients;
  uint16_t* d_input_panels;      // work: gradients of the input sums, in wide panels
  uint16_t* d_recurrent_panels;  // work: of the recurrent sums, of a cell that keeps them apart
  void* work;
};

// As HighwayForward and HighwayBackward.
struct Bf16HighwayForward {
  LayerShape shape;
  int64_t depth, keep;
  const void* input_index;
  const void* input_bf16_index;
  const float* input_values;
  const void* const* recurrent_index;
  const void* const* recurrent_bf16_index;
  const float* const* recurrent_values;
  const float* const* biases;
  const float* x;
  const float* h_first;
  const float* mask;
  float* y;
  float* gates;
  float* later_gates;
  float* states;
  uint16_t* h_panels;  // null without a backward pass
  void* work;
};

struct Bf16HighwayBackward {
  LayerShape shape;
  int64_t depth;
  const void* input_index;
  const void* input_bf16_index;
  const float* input_values;
  const void* const* recurrent_index;
  const void* const* recurrent_bf16_index;
  const float* const* recurrent_values;
  const float* x;
  const float* mask;
  const float* gates;
  const float* later_gates;
  const float* states;
  const uint16_t* h_panels;
  const float* dy;
  float* dx;
  float* dh_first;
  float* input_gradients;
  float* const* recurrent_gradients;
  float* const* bias_gradients;
  uint16_t* d_panels;  // work: for each depth
  void* work;
};

extern "C" {

// The bfloat16 kernels in use: 0 none, 1 emulation, 2 AVX512_BF16.
int64_t selfish_bf16_target();

int64_t selfish_bf16_index_bytes(const void* index);
void selfish_bf16_index_build(const void* index, char* memory);

// Columns of a step, and numbers of the wide panels of n tokens, for each feature.
int64_t selfish_bf16_step_columns(int64_t batch);
int64_t selfish_bf16_wide_columns(int64_t n);
// Wide panels as rows (tokens x features).
void selfish_bf16_rows(const uint16_t* operands, int64_t features, int64_t n, float* rows);

int64_t selfish_bf16_linear(const void* index, const void* bf16_index, const float* values, const float* bias,
                            const float* x, int64_t n, float* y, void* work);
int64_t selfish_bf16_linear_backward(const void* index, const void* bf16_index, const float* values, const float* x,
                                     const float* d, int64_t n, float* x_gradient, float* gradients,
                                     float* bias_gradient, void* work);
// The loss is written to loss.
int64_t selfish_bf16_cross_entropy(const void* index, const void* bf16_index, const float* values, const float* bias,
                                   const float* x, const int64_t* targets, int64_t n, float* x_gradient,
                                   float* gradients, float* bias_gradient, double* loss, void* work);

int64_t selfish_bf16_layer_forward(const Bf16LayerForward* layer);
int64_t selfish_bf16_layer_backward(const Bf16LayerBackward* layer);
int64_t selfish_bf16_highway_forward(const Bf16HighwayForward* layer);
int64_t selfish_bf16_highway_backward(const Bf16HighwayBackward* layer);

}

)  // SELFISH_BF16_ABI
// clang-format on

}  // namespace selfish
