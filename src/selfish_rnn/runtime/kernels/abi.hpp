// The boundary between Python and the kernels for inference, in the form that ../abi.hpp describes.
#pragma once

#include <cstdint>

#define SELFISH_INFERENCE_ABI(...) \
  __VA_ARGS__                      \
  constexpr char kInferenceDescription[] = #__VA_ARGS__;

namespace selfish {

// clang-format off
SELFISH_INFERENCE_ABI(

// What an int8 matrix in windows begins with; see windows.hpp.
struct WindowsHeader {
  int64_t bytes;
  int64_t rows, columns, count;
  int64_t height, planes;  // rows of a group; the window has 16 << planes columns, -1 is bits
  int64_t groups, pairs;   // of steps; in bits: weights
  int64_t offset[6];  // of every section
};

// The weights of a matrix, none of them zero, sorted by position.
struct Int8Weights {
  int64_t rows, columns, count;
  int64_t together;         // weights of all matrices that are read for a word, of which this is one
  const int64_t* first;     // rows + 1: the first weight of each row
  const uint16_t* column;   // of each weight
  const int8_t* value;      // of each weight
  const float* scale;       // of each row
};

// A layer over a window: x is steps x batch x columns of the input matrix, h and c batch x hidden.
struct Int8Layer {
  int64_t kind, steps, batch, hidden;  // kind: a CellKind
  int64_t ahead;  // the inputs of so many steps are multiplied at once
  const void* input;
  const void* recurrent;
  const float* bias;
  const float* recurrent_bias;
  const float* x;
  const float* h_first;
  const float* c_first;
  float* y;
  float* c_last;
  float* input_sums;      // work: ahead x batch x rows
  float* recurrent_sums;  // work: batch x rows
};

extern "C" {

// How many bytes a matrix takes in windows, and the same written to memory that is aligned to 64 bytes.
int64_t selfish_windows_bytes(const Int8Weights* weights);
void selfish_windows_build(const Int8Weights* weights, char* memory);
// Whether bytes from anywhere, aligned to 64, are a matrix that was laid out so for the kernels in use.
int64_t selfish_windows_valid(const void* windows, int64_t bytes);
// The inverse: first has rows + 1 places, the others as many as there are weights, scale one for each row.
void selfish_windows_weights(const void* windows, int64_t* first, uint16_t* column, int8_t* value, float* scale);

void selfish_int8_linear(const void* windows, const float* bias, const float* x, int64_t n, float* y);
void selfish_int8_lookup(const void* windows, const int64_t* tokens, int64_t n, float* y);
void selfish_int8_layer(const Int8Layer* layer);

// Which int8 kernels are in use, and whether this processor runs those of a number; see library.py.
int64_t selfish_int8_target();
int64_t selfish_int8_target_runs(int64_t wanted);
void selfish_int8_use_target(int64_t wanted);

}

)  // SELFISH_INFERENCE_ABI
// clang-format on

}  // namespace selfish
